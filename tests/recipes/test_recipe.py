"""Recipes: typed changes by name, and the way through JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from foveate.errors import DataError, UnknownName
from foveate.recipes import RECIPES, Recipe, from_config, override, recipe_fields, to_config
from foveate.tasks import TASKS
from foveate.train import SGD, Adam, AdamW, Cosine, Decay, Steps, Training


@dataclass(frozen=True)
class Inner:
    size: int = 3
    steps: int = 2


@dataclass(frozen=True)
class Settings:
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    rule: Literal["strict", "lenient"] = "strict"
    flag: bool = False
    words: str | None = None
    grid: tuple[int, int] = (14, 14)
    ccr: float = 0.0


@pytest.fixture
def recipe() -> Recipe:
    return Recipe("a-b-c", "fake", Settings(), Training(Adam(1e-3)))


@pytest.fixture(autouse=True)
def fake_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "fake", type("Fake", (), {"Settings": Settings}))


@pytest.mark.parametrize(
    ("change", "path", "expected"),
    [
        ("mechanism=tvmax", "settings.mechanism", "tvmax"),
        ("ccr=1", "settings.ccr", 1.0),
        ("flag=yes", "settings.flag", True),
        ("flag=0", "settings.flag", False),
        ("words=none", "settings.words", None),
        ("words=glove", "settings.words", "glove"),
        ("grid=7,8", "settings.grid", (7, 8)),
        ("rule=lenient", "settings.rule", "lenient"),
        ("inner.size=4", "settings.inner.size", 4),
        ("size=4", "settings.inner.size", 4),
        ("training.steps=9", "training.steps", 9),
        ("lr=2e-4", "training.optimiser.lr", 2e-4),
        ("betas=0.8,0.99", "training.optimiser.betas", (0.8, 0.99)),
        ("clip=0.1", "training.clip", 0.1),
        ("clip=none", "training.clip", None),
        ("optimiser=sgd", "training.optimiser", SGD(1e-3)),
        ("optimiser=AdamW", "training.optimiser", AdamW(1e-3, weight_decay=0.0)),
        ("schedule=cosine", "training.schedule", Cosine(warmup=0)),
        ("at=10,12", "training.schedule.at", (10, 12)),
        ("start=runs/a=b", "start", "runs/a=b"),
        ("mechanism_options.smoothness=0.1", "settings.mechanism_options", {"smoothness": 0.1}),
        ('mechanism_options.basis={"count": 49}', "settings.mechanism_options", {"basis": {"count": 49}}),
        ("mechanism_options.start=split", "settings.mechanism_options", {"start": "split"}),
        ("weights.a=2", "settings.weights", {"a": 2.0}),
    ],
)
def test_a_change_sets_one_field(recipe: Recipe, change: str, path: str, expected: Any) -> None:
    made: Any = override(recipe, [change])
    for name in path.split("."):
        made = getattr(made, name)
    assert made == expected
    assert type(made) is type(expected)
    assert recipe == Recipe("a-b-c", "fake", Settings(), Training(Adam(1e-3)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ("mecanism=tvmax", UnknownName, "a-b-c: expected a known name, got 'mecanism'; did you mean 'mechanism'?"),
        (
            "optimizer.lr=1",
            UnknownName,
            "a-b-c: expected a known name, got 'optimizer.lr'; did you mean 'optimiser.lr'?",
        ),
        ("name=x", UnknownName, "a-b-c: expected a known name, got 'name'"),
        ("epochs=many", ValueError, "epochs: expected int, got 'many'; write epochs=<int>"),
        ("epochs=1.5", ValueError, "epochs: expected int, got '1.5'; write epochs=<int>"),
        ("clip=big", ValueError, "clip: expected float or none, got 'big'; write clip=<float or none>"),
        ("flag=maybe", ValueError, "flag: expected bool, got 'maybe'; write flag=<bool>"),
        ("rule=lenent", UnknownName, "rule: expected a known name, got 'lenent'; did you mean 'lenient'?"),
        ("grid=7", ValueError, "grid: expected 2 values, got 1; write them as int,int"),
        ("epochs", ValueError, "a-b-c: expected field=value, got 'epochs'; write for instance epochs=3"),
        (
            "schedule=cosin",
            UnknownName,
            "training.schedule: expected a known name, got 'cosin'; did you mean 'cosine'?",
        ),
        ("mechanism_options=3", ValueError, "settings.mechanism_options: expected an entry, got '3'"),
        ("weights.a=x", ValueError, "weights.a: expected float, got 'x'"),
        ("epochs=0", ValueError, "Training: expected epochs >= 1, got 0"),
        (
            "steps=3",
            ValueError,
            "a-b-c: expected the name of one field, got 'steps'; write settings.inner.steps or training.steps",
        ),
    ],
)
def test_a_wrong_change_is_explained(recipe: Recipe, change: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        override(recipe, [change])
    assert str(found.value).startswith(message)


@pytest.mark.parametrize("schedule", [Steps((10, 12), 0.2, 4), Decay(), Cosine(0.5)])
@pytest.mark.parametrize("optimiser", [Adam(0.1, (0.8, 0.9)), AdamW(0.1), SGD(0.1)])
def test_json_and_back(recipe: Recipe, schedule, optimiser) -> None:
    settings = Settings(
        "tvmax", {"alpha": 2, "basis": {"count": 3}}, {"a": 1.5}, Inner(9), "lenient", True, "w", (1, 2), 3.0
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
        ({"format": 2}, "x: expected format 1 or older, got 2; a newer foveate wrote it: run pip install -U foveate"),
        ({"format": None}, "x: expected the configuration of a run, got none; point to the folder of a run"),
        ({"task": "fak"}, "x: task: expected a known name, got 'fak'; did you mean 'fake'?"),
        ({"training": 3}, "x.training: expected the fields of Training, got 3"),
        ({"training": {}}, "x.training: expected the field 'optimiser', got none"),
        ({"settings": {"flag": 1}}, "x.settings.flag: expected bool, got 1"),
        ({"settings": {"flagg": True}}, "x.settings.flagg: expected a known name, got 'flagg'; did you mean 'flag'?"),
        ({"settings": {"words": 3}}, "x.settings.words: expected str or none, got 3"),
        ({"settings": {"weights": {"a": "b"}}}, "x.settings.weights: expected float, got 'b'"),
        ({"start": 3}, "x.start: expected str or none, got 3"),
    ],
)
def test_a_broken_configuration_is_explained(recipe: Recipe, changes: dict, message: str) -> None:
    with pytest.raises((DataError, UnknownName)) as found:
        from_config(broken(recipe, **changes), "x")
    assert str(found.value).startswith(message)


def test_something_else_is_no_configuration() -> None:
    with pytest.raises(DataError, match="expected the configuration of a run"):
        from_config([1, 2])  # type: ignore[arg-type]
