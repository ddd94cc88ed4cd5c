"""Attention of words that is guided by the boxes of their phrases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foveate.lab.data.samples import Phrase
from foveate.lab.models import SCANSettings
from foveate.lab.tasks.guidance import guide, phrase_targets
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.ops.boxes import Box
from tests.lab.tasks.matching.small import MODELS, SMALL, batch_of, caption

LEFT = Phrase(1, 3, "disc", (), (Box(0.0, 0.0, 0.5, 1.0),))
UNLINKED = Phrase(3, 4, "dog", (), unlinked="no box")


def test_the_words_of_a_phrase_are_drawn_to_the_cells_of_its_boxes() -> None:
    own = caption(0, "a", "a red disc dog", LEFT, UNLINKED)
    targets = phrase_targets([own], [(1, 4)], torch.zeros(1, 6, 4), first=1)
    left = [0.5, 0.5, 0.0, 0.0]
    assert targets[0].tolist() == [[0] * 4, [0] * 4, left, left, [0] * 4, [0] * 4]


def test_words_beyond_the_tokens_and_regions_without_boxes_have_no_target() -> None:
    own = caption(0, "a", "a red disc dog", LEFT)
    assert phrase_targets([own], [(1, 4)], torch.zeros(1, 3, 4), first=1).sum() == 1
    assert not phrase_targets([own], [None], torch.zeros(1, 6, 4), first=1).any()
    regions = torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]])
    assert phrase_targets([own], [regions], torch.zeros(1, 6, 3), first=1)[0, 2].tolist() == [1, 0, 0]


def test_the_loss_is_a_sum_over_captions_of_the_mean_divergence() -> None:
    captions = [caption(0, "a", "a red disc", LEFT), caption(1, "a", "a dog")]
    even = torch.full((2, 3, 4), 0.25, requires_grad=True)
    loss = guide(even, phrase_targets(captions, [(1, 4)] * 2, even, first=0))
    # Two words, each log 2 away from the left half; two captions.
    torch.testing.assert_close(loss, 2 * torch.tensor(2.0).log())
    loss.backward()
    assert even.grad is not None
    assert even.grad[0, 1].ne(0).tolist() == [True, True, False, False]
    assert not even.grad[1].any()
    assert guide(even, phrase_targets(captions[1:] * 2, [(1, 4)] * 2, even, first=0)) == 0


@pytest.mark.parametrize("name", ["scan", "bfan"])
def test_guidance_is_a_part_of_the_loss_with_its_weight(name: str) -> None:
    settings = replace(SMALL, model=MODELS[name], guidance=0.5)
    task = Matching.from_data(settings, None)
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    found = task.loss(model, batch, 0)
    assert found.parts["guidance"] > 0
    torch.testing.assert_close(found.total, found.parts["ranking"] + 0.5 * found.parts["guidance"])


def test_models_that_cannot_be_guided() -> None:
    with pytest.raises(ValueError, match=r"expected words that attend to images for guidance=1"):
        MatchingSettings(model=SCANSettings(direction="i2t"), guidance=1.0)
    with pytest.raises(ValueError, match=r"expected words that attend to images for guidance=1"):
        MatchingSettings(model=MODELS["m-dan"], guidance=1.0)
