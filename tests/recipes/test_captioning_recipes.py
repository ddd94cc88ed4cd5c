"""The recipes of captioning: complete, buildable, through JSON and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.data.vocabulary import Vocabulary
from foveate.recipes.captioning_recipes import CAPTIONING_RECIPES
from foveate.tasks import Captioning
from foveate.tasks.captioning.settings import CaptioningSettings
from foveate.tasks.images import Conv
from foveate.tasks.inputs import Inputs
from foveate.train import override
from foveate.train.recipe import decode, encode


@pytest.mark.parametrize("name", CAPTIONING_RECIPES)
def test_recipes_build_and_survive_the_way_through_json(name: str) -> None:
    recipe = CAPTIONING_RECIPES[name]()
    assert recipe.name == name
    assert recipe.task == "captioning"
    assert CAPTIONING_RECIPES[name].__doc__
    assert decode(CaptioningSettings, encode(recipe.settings), "settings") == recipe.settings
    small = replace(recipe.settings, model=replace(recipe.settings.model, hidden=8, score_dim=None))
    dim = None if isinstance(recipe.settings.images, Conv) else 8
    assert Captioning(small, Inputs(Vocabulary.from_tokens([["a"]]), dim)).build_model()


def test_paper_settings() -> None:
    for name, data in (("captioning-lstm-coco", "coco-karpathy"), ("captioning-lstm-flickr30k", "flickr30k")):
        recipe = CAPTIONING_RECIPES[name]()
        chosen, training = recipe.settings, recipe.training
        assert (chosen.dataset, chosen.word_dim, chosen.model.hidden, chosen.min_count) == (data, 256, 512, 5)
        assert (training.optimiser.lr, training.optimiser.betas, training.epochs) == (1e-4, (0.8, 0.999), 50)
        rates = [training.schedule.rate(epoch, 50) for epoch in (0, 9, 10, 11)]
        assert rates == pytest.approx([1, 1, 0.99, 0.99**2])
    assert CAPTIONING_RECIPES["captioning-lstm-coco"]().settings.train_split == "train+restval"
    changed = override(
        CAPTIONING_RECIPES["captioning-lstm-coco"](), ["mechanism=tvmax", "mechanism_options.smoothness=0.01"]
    )
    assert changed.settings.mechanism_options == {"smoothness": 0.01}
