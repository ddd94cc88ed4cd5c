"""The recipes of captioning: complete, buildable, through JSON and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.lab.data.vocabulary import Vocabulary
from foveate.lab.recipes.captioning_recipes import CAPTIONING_RECIPES
from foveate.lab.tasks import Captioning
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.train.recipe import decode, encode


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
