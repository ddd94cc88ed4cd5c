"""The multiply-adds of the tables, counted again by torch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from foveate.lab.data.vocabulary import SPECIAL, AnswerVocabulary, Vocabulary
from foveate.lab.features import ImageFeatures
from foveate.lab.papers.tables.cost import MULTIPLY_ADDS
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.inputs import Inputs

# Recipe, grid (None for 36 regions), tokens, images, captions or questions per image.
CASES = {
    "vqa-mcan-vqa2": ("vqa-mcan-vqa2", (14, 14), 14, 1, 1),
    "vqa-mcan-vqa2-grid": ("vqa-mcan-vqa2-grid", (19, 32), 14, 1, 1),
    "vqa-rdan": ("vqa-rdan-vqa1", (14, 14), 14, 1, 1),
    "captioning-lstm": ("captioning-lstm-coco", (8, 8), 12, 1, 5),
    "matching-mdan": ("matching-mdan-flickr30k", (14, 14), 14, 1, 1),
    "matching-scan": ("matching-scan-flickr30k", None, 14, 128, 1),
    "matching-bfan": ("matching-bfan-flickr30k", None, 14, 128, 1),
}


def test_every_number_is_counted() -> None:
    assert set(CASES) == set(MULTIPLY_ADDS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_multiply_adds(kind: str) -> None:
    name, grid, tokens, images, each = CASES[kind]
    recipe = RECIPES[name]()
    # A captioner scores every word: COCO has about 10 000 that occur five times.
    words = 10_000 if recipe.task == "captioning" else 100
    vocabulary = Inputs(Vocabulary((*SPECIAL, *(f"w{n}" for n in range(words)))), 2048).to_json()
    if recipe.task == "vqa":
        count = recipe.settings.max_answers or 3129
        vocabulary["answers"] = AnswerVocabulary(tuple(f"a{n}" for n in range(count))).to_json()
    model = TASKS[recipe.task].from_vocabulary(recipe.settings, vocabulary).build_model().eval()
    locations = 36 if grid is None else grid[0] * grid[1]
    features = ImageFeatures(torch.randn(images, locations, 2048), grid=grid)
    texts = torch.randint(4, 100, (images * each, tokens)), torch.ones(images * each, tokens, dtype=torch.bool)
    index = (torch.arange(images).repeat_interleave(each),) if recipe.task == "captioning" else ()
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        model(features, *texts, *index)
    items = images if recipe.task == "captioning" else images * each
    assert counted.get_total_flops() / 2 / items == pytest.approx(MULTIPLY_ADDS[kind], rel=0.05)
