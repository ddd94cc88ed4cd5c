"""Captions as examples and batches."""

from __future__ import annotations

import pytest
import torch

from foveate.lab.data.samples import Caption, Dataset, ImageRecord, Phrase
from foveate.lab.data.scenes import make_scenes
from foveate.lab.data.vocabulary import BOS, EOS, Vocabulary
from foveate.lab.tasks import Captioning
from foveate.lab.tasks.captioning.data import CaptionExample, collate, object_names
from foveate.lab.tasks.inputs import Inputs
from foveate.ops.boxes import Box
from tests.lab.tasks.captioning.small import batch_of, settings


@pytest.fixture(scope="module")
def task() -> Captioning:
    return Captioning.from_data(settings(), None)


def test_an_example_is_an_image_with_its_captions(task: Captioning) -> None:
    examples = task.examples("val", None)
    data = make_scenes(split="val", count=6)
    assert len(examples) == 6
    assert examples[1].captions == data.captions_of(data.images[1].id)
    assert examples.fingerprint() == data.fingerprint()


def test_batches_shift_the_words_by_one(task: Captioning) -> None:
    batch = batch_of(task)
    captions = [caption for example in batch.examples for caption in example.captions]
    assert batch.index.tolist() == [row for row, example in enumerate(batch.examples) for _ in example.captions]
    for row, caption in enumerate(captions):
        numbers = [BOS, *task.inputs.words.encode(caption.tokens), EOS][:9]
        count = len(numbers) - 1
        assert batch.tokens[row][batch.mask[row]].tolist() == numbers[:-1]
        assert batch.targets[row, :count].tolist() == numbers[1:]
        assert batch.mask[row].sum() == count


def test_a_caption_that_is_cut_off_has_no_end() -> None:
    inputs = Inputs(Vocabulary.from_tokens([["a", "b", "c"]]))
    captions = (Caption(1, 1, "a b c", ("a", "b", "c")), Caption(2, 1, "a", ("a",)))
    batch = collate([CaptionExample(1, torch.zeros(3, 2, 2), captions)], inputs, max_words=2)
    assert batch.tokens.tolist() == [[BOS, 4], [BOS, 4]]
    assert batch.targets.tolist() == [[4, 5], [4, EOS]]


def test_things_are_objects_or_entities() -> None:
    scenes = make_scenes(split="val", count=2)
    image = scenes.images[0].id
    names = {thing.name for thing in scenes.objects_of(image)}
    assert {names[0] for names in object_names(scenes, image)} == names
    box = (Box(0, 0, 0.5, 0.5),)
    captions = (
        Caption(
            1,
            1,
            "",
            ("a", "brown", "dog", "at", "night"),
            (Phrase(0, 3, 7, boxes=box), Phrase(4, 5, 0, unlinked="scene")),
        ),
        Caption(2, 1, "", ("the", "puppy", "runs"), (Phrase(0, 2, 7, boxes=box),)),
    )
    flickr = Dataset("mine", "val", (ImageRecord(1, lambda: None),), captions=captions)
    assert object_names(flickr, 1) == (("dog", "puppy"),)
