"""The recipes of matching: complete, buildable, through JSON and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.lab.data.vocabulary import SPECIAL, Vocabulary
from foveate.lab.models import MODELS, BFANSettings
from foveate.lab.recipes import RECIPES
from foveate.lab.recipes.matching_recipes import MATCHING_RECIPES
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.lab.tasks.task_settings import Constraint
from foveate.lab.train import override
from foveate.lab.train.recipe import decode, encode


@pytest.mark.parametrize("name", MATCHING_RECIPES)
def test_builds_and_survives_the_way_through_json(name: str) -> None:
    recipe = MATCHING_RECIPES[name]()
    assert RECIPES[name]().name == name
    assert recipe.task == "matching"
    assert isinstance(recipe.settings.model, MODELS[name.split("-")[1]])
    assert recipe.settings.dataset.startswith(name.split("-")[2])
    assert decode(MatchingSettings, encode(recipe.settings), "settings") == recipe.settings
    assert MATCHING_RECIPES[name].__doc__
    small = replace(recipe.settings, model=replace(recipe.settings.model, hidden=16))
    dim = None if isinstance(recipe.settings.images, Conv) else 8
    assert Matching(small, Inputs(Vocabulary((*SPECIAL, "a")), dim)).build_model()


def test_fields_are_changed_by_name() -> None:
    base = MATCHING_RECIPES["matching-scan-flickr8k"]()
    changed = override(base, ["ccr=1", "ccs=0.5", "mechanism=sparsemax", "direction=i2t", "negatives=all"]).settings
    assert (changed.ccr, changed.ccs) == (Constraint(1.0, 0.1, 470), Constraint(0.5, 0.2, 470))
    assert (changed.mechanism, changed.ranking.negatives) == ("sparsemax", "all")
    assert changed.model.direction == "i2t"
    other = override(base, ["model=bfan", "focal=equal"]).settings.model
    assert (type(other), other.focal, other.hidden) == (BFANSettings, "equal", 512)
