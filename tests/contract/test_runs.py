"""The laws of runs: a run of any recipe, mechanism and option can be saved and loaded, with the same numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foveate.attention import MECHANISMS
from foveate.io import write_json
from foveate.lab.data.vocabulary import AnswerVocabulary, Vocabulary
from foveate.lab.hub import load
from foveate.lab.models import MCANSettings
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.vqa import VQA, VQASettings
from foveate.lab.train import Adam, Recipe, Training, to_config
from foveate.lab.train.records import CONFIG, VOCABULARY
from foveate.lab.train.weights import WEIGHTS, named_tensors, save_tensors

# A value for every option of a mechanism that differs from its default; a new option needs a row here.
VALUES: dict[str, Any] = {
    "alpha": 1.3,
    "smoothness": 0.05,
    "floor": 1e-6,
    "max_components": 2,
    "components": 3,
    "penalty": 0.7,
    "iterations": 4,
    "start": "random",
    "background": False,
    "likelihood": "point",
    "basis": {"count": 9, "variance": 0.01},
    "ridge": 0.1,
    "padding": False,
    "transform": "sparsemax",
    "family": "beta-gaussian",
    "temperature": 2.0,
    "learnable": True,
    "positions": "ends",
    "criterion": "equation",
}
GIVEN = {"scores", "mask", "dim", "edges", "fit", "self", "heads"}  # the pooling of a run has no heads
INPUTS = Inputs(Vocabulary.from_tokens([["is", "it", "red"]]))


def options(name: str) -> set[str]:
    """The options of a mechanism."""
    return {option.name for option in MECHANISMS[name].options or ()} - GIVEN


def save(directory: Path, recipe: Recipe, task: Any, model: torch.nn.Module) -> Path:
    directory.mkdir()
    write_json(directory / CONFIG, to_config(recipe))
    write_json(directory / VOCABULARY, task.vocabulary())
    save_tensors(directory / WEIGHTS, named_tensors(model))
    return directory


def small_vqa(mechanism: str, chosen: dict[str, Any]) -> VQA:
    settings = VQASettings(
        model=MCANSettings(hidden=8, heads=2, layers=1, dropout=0.0),
        images=Conv((8, 8), blocks=0, size=28),
        mechanism=mechanism,
        mechanism_options=chosen,
        word_dim=4,
    )
    return VQA(settings, INPUTS, AnswerVocabulary(("yes", "no")))


def scores_of(model: torch.nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    tokens, mask = torch.tensor([[4, 5, 6]]), torch.ones(1, 3, dtype=torch.bool)
    with torch.no_grad():
        found: torch.Tensor = model.eval()(torch.randn(1, 3, 28, 28), tokens, mask).scores
    return found


CASES = [(name, option) for name in MECHANISMS for option in (None, *sorted(options(name)))]


@pytest.mark.parametrize(("mechanism", "option"), CASES)
def test_every_option_of_every_mechanism_loads(mechanism: str, option: str | None, tmp_path: Path) -> None:
    torch.manual_seed(0)
    chosen = {} if option is None else {option: VALUES[option]}
    task = small_vqa(mechanism, chosen)
    model = task.build_model()
    recipe = Recipe("law", "vqa", task.settings, Training(Adam(1e-3)))
    loaded = load(save(tmp_path / "run", recipe, task, model))
    assert loaded.task == task
    torch.testing.assert_close(scores_of(loaded.model), scores_of(model), rtol=0, atol=0)


def shrink(recipe: Recipe) -> Recipe:
    """The recipe with a network of a few units; everything else as it is."""
    model = recipe.settings.model
    small = {name: value for name, value in {"hidden": 8, "heads": 2, "layers": 1}.items() if hasattr(model, name)}
    return replace(recipe, settings=replace(recipe.settings, model=replace(model, **small), word_dim=4))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_loads(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    recipe = shrink(RECIPES[name]())
    dim = None if isinstance(recipe.settings.images, Conv) else 6
    vocabulary = replace(INPUTS, image_dim=dim).to_json()
    if recipe.task == "vqa":
        vocabulary["answers"] = AnswerVocabulary(("yes", "no")).to_json()
    task = TASKS[recipe.task].from_vocabulary(recipe.settings, vocabulary)
    model = task.build_model()
    loaded = load(save(tmp_path / "run", recipe, task, model))
    assert loaded.task.settings == recipe.settings
    for key, value in named_tensors(model).items():
        assert torch.equal(named_tensors(loaded.model)[key], value)


def test_another_mechanism_can_be_loaded_into_every_recipe(tmp_path: Path) -> None:
    recipe = shrink(RECIPES["vqa-mcan-scenes"]())
    task = TASKS["vqa"].from_vocabulary(recipe.settings, small_vqa("softmax", {}).vocabulary())
    run = save(tmp_path / "run", recipe, task, task.build_model())
    for name in MECHANISMS:
        assert load(run, [f"mechanism={name}"]).task.settings.mechanism == name
