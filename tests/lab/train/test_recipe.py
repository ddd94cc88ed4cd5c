"""Recipes as JSON: there and back, and explained when a file is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from foveate.errors import DataError, UnknownName
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import (
    SGD,
    Adam,
    AdamW,
    Cosine,
    Decay,
    Recipe,
    Steps,
    Training,
    from_config,
    recipe_fields,
    to_config,
)
from tests.lab.train.made_up import Inner, Settings, Weighted, made_up_recipe


@pytest.fixture
def recipe() -> Recipe:
    return made_up_recipe()


@pytest.fixture(autouse=True)
def fake_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "fake", type("Fake", (), {"Settings": Settings}))


@pytest.mark.parametrize("schedule", [Steps((10, 12), 0.2, 4), Decay(), Cosine(0.5)])
@pytest.mark.parametrize("optimiser", [Adam(0.1, (0.8, 0.9)), AdamW(0.1), SGD(0.1)])
def test_json_and_back(recipe: Recipe, schedule, optimiser) -> None:
    settings = Settings(
        "tvmax",
        {"alpha": 2, "basis": {"count": 3}},
        {"a": 1.5},
        Inner(9),
        "lenient",
        True,
        "w",
        (1, 2),
        3.0,
        Weighted(1.0, 0.5),
    )
    made = Recipe("a-b-c", "fake", settings, Training(optimiser, schedule, clip=1.0, steps=4), "about", "runs/x")
    assert from_config(json.loads(json.dumps(to_config(made)))) == made


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_goes_through_json(name: str) -> None:
    made = RECIPES[name]()
    assert made.name == name
    assert from_config(json.loads(json.dumps(to_config(made)))) == made
    for one in recipe_fields(made):
        assert one.path


def broken(recipe: Recipe, **changes: Any) -> dict[str, Any]:
    return {**to_config(recipe), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"format": 3},
            "x: expected format 2, got 3; it was written by another version of foveate: run pip install -U foveate",
        ),
        ({"format": None}, "x: expected the configuration of a run, got none; pass the directory of a run"),
        ({"task": "fak"}, "x: task: expected a known name, got 'fak'; did you mean 'fake'?"),
        ({"training": 3}, "x.training: expected the fields of Training, got 3"),
        ({"training": {}}, "x.training: expected the field 'optimiser', got none"),
        ({"settings": {"flag": 1}}, "x.settings.flag: expected true or false, got 1"),
        ({"settings": {"flagg": True}}, "x.settings.flagg: expected a known name, got 'flagg'; did you mean 'flag'?"),
        ({"settings": {"words": 3}}, "x.settings.words: expected text or none, got 3"),
        ({"settings": {"weights": {"a": "b"}}}, "x.settings.weights: expected a number, got 'b'"),
        ({"start": 3}, "x.start: expected text or none, got 3"),
    ],
)
def test_a_broken_configuration_is_explained(recipe: Recipe, changes: dict, message: str) -> None:
    with pytest.raises((DataError, UnknownName)) as found:
        from_config(broken(recipe, **changes), "x")
    assert str(found.value).startswith(message)


def test_something_else_is_no_configuration() -> None:
    with pytest.raises(DataError, match="expected the configuration of a run"):
        from_config([1, 2])  # type: ignore[arg-type]
