"""The recipes of visual question answering: complete, buildable, through JSON and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate.lab.data.vocabulary import SPECIAL, AnswerVocabulary, Vocabulary
from foveate.lab.models import ReasoningDANSettings
from foveate.lab.recipes.vqa_recipes import VQA_RECIPES
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.vqa import VQA
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.train import override
from foveate.lab.train.recipe import decode, encode


@pytest.mark.parametrize("name", VQA_RECIPES)
def test_builds_and_survives_the_way_through_json(name: str) -> None:
    recipe = VQA_RECIPES[name]()
    assert recipe.name == name
    assert recipe.task == "vqa"
    assert decode(VQASettings, encode(recipe.settings), "settings") == recipe.settings
    assert VQA_RECIPES[name].__doc__
    words, answers = Vocabulary((*SPECIAL, "a")), AnswerVocabulary(("yes", "no"))
    small = replace(recipe.settings, model=replace(recipe.settings.model, hidden=16))
    dim = None if isinstance(recipe.settings.images, Conv) else 8
    assert VQA(small, Inputs(words, dim), answers).build_model()


def test_fields_are_changed_by_name() -> None:
    changed = override(
        VQA_RECIPES["vqa-mcan-scenes"](), ["mechanism=tvmax", "mechanism_options.smoothness=0.02", "layers=1"]
    )
    assert changed.settings.mechanism == "tvmax"
    assert changed.settings.mechanism_options == {"smoothness": 0.02}
    assert changed.settings.model.layers == 1
    other = override(changed, ["model=rdan", "images=stored", "store=f.h5"])
    assert type(other.settings.model) is ReasoningDANSettings
    assert other.settings.images.store == "f.h5"
