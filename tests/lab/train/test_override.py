"""Single fields of a recipe changed by texts: typed, by name, and explained when they are wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from foveate.errors import UnknownName
from foveate.lab.tasks import TASKS
from foveate.lab.train import (
    SGD,
    AdamW,
    Cosine,
    Decay,
    Recipe,
    Steps,
    from_config,
    override,
    recipe_fields,
    to_config,
)
from tests.lab.train.made_up import Settings, Weighted, made_up_recipe


@pytest.fixture
def recipe() -> Recipe:
    return made_up_recipe()


@pytest.fixture(autouse=True)
def fake_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TASKS, "fake", type("Fake", (), {"Settings": Settings}))


@pytest.mark.parametrize(
    ("change", "path", "expected"),
    [
        ("mechanism=tvmax", "settings.mechanism", "tvmax"),
        ("guidance=1", "settings.guidance", 1.0),
        ("ccr=1", "settings.ccr", Weighted(weight=1.0)),
        ("settings.ccr=1", "settings.ccr", Weighted(weight=1.0)),
        ("ccr.weight=1", "settings.ccr", Weighted(weight=1.0)),
        ("ccs.margin=0.5", "settings.ccs", Weighted(margin=0.5)),
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
    assert recipe == made_up_recipe()


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
        ("epochs=many", ValueError, "epochs: expected a whole number, got 'many'; write, for example, epochs=2"),
        ("epochs=1.5", ValueError, "epochs: expected a whole number, got '1.5'; write, for example, epochs=2"),
        ("clip=big", ValueError, "clip: expected a number or none, got 'big'; write, for example, clip=0.5"),
        ("flag=maybe", ValueError, "flag: expected true or false, got 'maybe'; write, for example, flag=true"),
        ("rule=lenent", UnknownName, "rule: expected a known name, got 'lenent'; did you mean 'lenient'?"),
        ("grid=7", ValueError, "grid: expected 2 values, got 1; write, for example, 2,2"),
        ("epochs", ValueError, "a-b-c: expected field=value, got 'epochs'; write for instance epochs=3"),
        (
            "schedule=cosin",
            UnknownName,
            "training.schedule: expected a known name, got 'cosin'; did you mean 'cosine'?",
        ),
        ("mechanism_options=3", ValueError, "settings.mechanism_options: expected an entry, got '3'"),
        ("weights.a=x", ValueError, "weights.a: expected a number, got 'x'"),
        ("epochs=0", ValueError, "Training: expected epochs >= 1, got 0"),
        ("ccr=much", ValueError, "ccr: expected a number, got 'much'; write, for example, ccr=0.5"),
        ("inner=3", UnknownName, "a-b-c: expected a known name, got 'inner'"),
        (
            "margin=1",
            ValueError,
            "a-b-c: expected the name of one field, got 'margin'; write settings.ccr.margin or settings.ccs.margin",
        ),
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


@pytest.mark.parametrize("schedule", ["steps", "decay", "cosine"])
def test_another_schedule_keeps_what_fits_its_type(recipe: Recipe, schedule: str) -> None:
    half = replace(recipe, training=replace(recipe.training, schedule=Cosine(0.5)))
    made = override(half, [f"schedule={schedule}"])
    assert made.training.schedule == {"steps": Steps(), "decay": Decay(), "cosine": Cosine(0.5)}[schedule]
    assert from_config(json.loads(json.dumps(to_config(made)))) == made
    stairs = replace(recipe, training=replace(recipe.training, schedule=Steps(warmup=2)))
    assert override(stairs, ["schedule=cosine"]).training.schedule == Cosine(2.0)


def test_every_field_can_be_named(recipe: Recipe) -> None:
    paths = [one.path for one in recipe_fields(recipe)]
    assert len(set(paths)) == len(paths)
    assert {
        "settings.ccr.weight",
        "settings.ccs.margin",
        "training.optimiser",
        "training.optimiser.lr",
        "start",
    } <= set(paths)
    assert not {"name", "task", "about", "settings.ccr", "settings.inner"} & set(paths)
