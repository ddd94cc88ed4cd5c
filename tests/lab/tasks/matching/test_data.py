"""Images with their captions as examples and batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.lab.data.vocabulary import BOS, EOS
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.data import MatchingExample, collate
from tests.lab.tasks.matching.small import SMALL, WORDS, caption, features


@pytest.fixture(scope="module")
def scenes() -> Matching:
    return Matching.from_data(SMALL, None)


def test_examples_are_images_with_some_captions_in_training_and_all_beyond(scenes: Matching) -> None:
    one = scenes.examples("train", None)
    assert len(one) == 20
    assert [len(one[number].captions) for number in range(6)] == [1] * 6
    two = replace(scenes, settings=replace(SMALL, captions_per_example=2)).examples("train", None)
    assert [len(two[number].captions) for number in range(6)] == [2, 2, 1, 2, 2, 1]
    assert len({two[number].id for number in range(3)}) == 1
    val = scenes.examples("val", None)
    assert [len(val[number].captions) for number in range(len(val))] == [5] * 4
    assert one.fingerprint() == two.fingerprint() != val.fingerprint()


def test_a_batch_holds_every_image_once() -> None:
    examples = [
        MatchingExample("x", features("x"), (caption(1, "x", "a disc"), caption(2, "x", "a red disc"))),
        MatchingExample("y", features("y", 2.0), (caption(3, "y", "dog"),)),
        MatchingExample("x", features("x"), (caption(4, "x", "left of a disc"),)),
    ]
    batch = collate(examples, Inputs(WORDS), 3, bos_eos=True)
    assert batch.images.values.shape == (2, 4, 3)
    assert batch.owner.tolist() == [0, 0, 1, 0]
    assert [c.id for c in batch.captions] == [1, 2, 3, 4]
    assert batch.tokens[2, :3].tolist() == [BOS, WORDS.index("dog"), EOS]
    assert batch.mask.sum(-1).tolist() == [4, 5, 3, 5]  # the last one is cut after three words
    assert collate(examples, Inputs(WORDS), 9, bos_eos=False).mask.sum(-1).tolist() == [2, 3, 1, 4]
