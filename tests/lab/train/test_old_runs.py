"""Runs of version 0.1: their configurations are understood, their weights load, and their trainings go on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.errors import DataError, UnknownName
from foveate.lab import hub
from foveate.lab.models import (
    MODELS,
    LSTMCaptionerSettings,
)
from foveate.lab.recipes import RECIPES
from foveate.lab.train import Recipe, from_config, override, to_config, train_recipe
from foveate.lab.train.recipe import file_errors, rename_fields
from foveate.lab.train.records import CONFIG
from foveate.lab.train.weights import CHECKPOINT, WEIGHTS, load_tensors, save_tensors
from tests.lab.train.old_configs import CASES, SETTINGS, TRAINING, is_younger, older
from tests.lab.train.test_loop import assert_same
from tests.untrained import make_untrained

RENAMED = [(task, name) for task, kind in SETTINGS.items() for name in kind.renamed]
RENAMED_SIZES = [(model, name) for model, kind in MODELS.items() for name in kind.renamed]


@pytest.mark.parametrize("model", CASES)
def test_old_configurations_are_understood(model: str) -> None:
    case = CASES[model]
    recipe = from_config(case.config())
    assert recipe.settings == case.expected
    assert recipe == Recipe("a-b-c", case.task, case.expected, TRAINING, "about", "runs/first")
    assert from_config(json.loads(json.dumps(to_config(recipe)))) == recipe


def test_every_field_has_another_value_than_its_default() -> None:
    """A field that is dropped on the way would otherwise go unnoticed."""
    for name, case in CASES.items():
        paths = [SETTINGS[case.task].renamed.get(old, old) for old in case.settings]
        sizes = getattr(type(case.expected.model), "renamed", {})
        paths += [sizes.get(old, old) for old in case.settings.get("model", {})]
        # Fields that are younger than the format cannot be in such a file.
        written = {part for path in paths for part in path.split(".")}
        for part in (case.expected, case.expected.model):
            for field, default in vars(type(part)()).items():
                if field not in written:
                    continue
                absent = {"vqa": ["train_split"], "matching": ["mechanism_options"]}.get(case.task, [])
                assert getattr(part, field) != default or field in absent, (name, field)


@pytest.mark.parametrize(("task", "name"), RENAMED)
def test_every_renamed_field_is_needed(task: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in CASES.values() if case.task == task)
    assert name in case.settings
    kept = {old: new for old, new in SETTINGS[task].renamed.items() if old != name}
    monkeypatch.setattr(SETTINGS[task], "renamed", kept)
    with pytest.raises(DataError), file_errors(Path("run")):
        from_config(case.config())


@pytest.mark.parametrize(("model", "name"), RENAMED_SIZES)
def test_every_renamed_size_is_needed(model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[model]
    assert name in case.settings["model"]
    kept = {old: new for old, new in MODELS[model].renamed.items() if old != name}
    monkeypatch.setattr(MODELS[model], "renamed", kept)
    with pytest.raises(UnknownName, match=f"settings.model.{name}: expected a known name, got '{name}'"):
        from_config(case.config())


def test_every_task_and_every_model_is_here() -> None:
    assert {case.task for case in CASES.values()} == {"vqa", "captioning", "matching"}
    assert set(CASES) == {"mcan", "rdan", "lstm", "scan", "bfan", "mdan"}
    assert len(RENAMED) > 20
    assert len(RENAMED_SIZES) == 4


def test_a_second_captioner_does_not_change_old_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Captioning had a single model and did not name it."""
    other = type("Other", (LSTMCaptionerSettings,), {})
    rows = dict(MODELS)
    MODELS.clear()
    try:
        MODELS.update({"other": other, **rows})
        assert type(from_config(CASES["lstm"].config()).settings.model) is LSTMCaptionerSettings
    finally:
        MODELS.clear()
        MODELS.update(rows)


def test_present_configurations_have_no_old_names() -> None:
    case = CASES["scan"]
    for old in ({"data": "scenes"}, {"forget": 0.1}, {"ccr": 1.0}):
        config = to_config(Recipe("a-b-c", case.task, case.expected, TRAINING))
        config["settings"] = {**config["settings"], **old}
        with pytest.raises((DataError, UnknownName)):
            from_config(config)


@pytest.mark.parametrize("name", [name for name in RECIPES if not is_younger(RECIPES[name]())])
def test_every_recipe_is_understood_as_it_was_written(name: str) -> None:
    made = RECIPES[name]()
    old = json.loads(json.dumps(older(to_config(made))))
    assert old["settings"]["data"] == made.settings.dataset
    assert not {"dataset", "ranking"} & set(old["settings"])
    assert from_config(old) == made


def test_groups_are_joined_whatever_the_order() -> None:
    renamed = {"ccr": "ccr.weight", "ccr_margin": "ccr.margin"}
    for old in ({"ccr": 1, "ccr_margin": 2}, {"ccr_margin": 2, "ccr": 1}):
        assert rename_fields(old, renamed) == {"ccr": {"weight": 1, "margin": 2}}


SMALL = ["limit=4", "hidden=8", "word_dim=8", "channels=8,8", "images.start=random", "batch_size=4"]


def with_counter(path: Path, name: str, value: int) -> None:
    """Add the counter of batches that matching kept among its weights."""
    tensors, state = load_tensors(path)
    save_tensors(path, {**tensors, name: torch.tensor(value)}, state)


def test_weights_with_the_obsolete_counter_load(tmp_path: Path) -> None:
    directory = make_untrained(tmp_path / "run", "matching-scan-scenes", *SMALL)
    plain = hub.load(directory).model.state_dict()
    with_counter(directory / WEIGHTS, "batches", 750)
    found = hub.load(directory).model.state_dict()
    torch.testing.assert_close(found, plain, rtol=0, atol=0)
    saved = hub.save_pretrained(directory, tmp_path / "saved")
    torch.testing.assert_close(hub.load(saved).model.state_dict(), plain, rtol=0, atol=0)


def test_other_tensors_and_other_tasks_are_still_refused(tmp_path: Path) -> None:
    matching = make_untrained(tmp_path / "matching", "matching-scan-scenes", *SMALL)
    with_counter(matching / WEIGHTS, "counter", 750)
    captioning = make_untrained(tmp_path / "captioning", "captioning-lstm-scenes", *SMALL)
    with_counter(captioning / WEIGHTS, "batches", 750)
    for directory, name in ((matching, "counter"), (captioning, "batches")):
        with pytest.raises(DataError, match=f"for instance '{name}' only in the file"):
            hub.load(directory)


def test_a_training_of_version_0_1_goes_on(tmp_path: Path) -> None:
    """Old names in config.json, the counter in the checkpoint and in the weights: the result is the same."""
    changes = [*SMALL, "warmup_steps=4", "ccs=1", "ccs.after=5", "schedule=steps"]
    recipe = override(RECIPES["matching-scan-scenes"](), changes)
    longer = override(recipe, ["training.steps=6"])
    train_recipe(longer, tmp_path / "whole", progress=False)
    cut = tmp_path / "cut"
    train_recipe(override(recipe, ["training.steps=3"]), cut, progress=False)
    old = older(json.loads((cut / CONFIG).read_text()))
    (cut / CONFIG).write_text(json.dumps(old))
    with_counter(cut / CHECKPOINT, "model.batches", 3)
    with_counter(cut / WEIGHTS, "batches", 3)
    train_recipe(longer, cut, resume=True, progress=False)
    for name in (CHECKPOINT, "metrics.json"):
        assert (cut / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    both = [hub.load(directory).model.state_dict() for directory in (cut, tmp_path / "whole")]
    torch.testing.assert_close(*both, rtol=0, atol=0)


def test_a_training_starts_from_a_run_of_version_0_1(tmp_path: Path) -> None:
    recipe = override(RECIPES["matching-scan-scenes"](), [*SMALL, "training.steps=2"])
    train_recipe(recipe, tmp_path / "first", progress=False)
    begun = replace(recipe, start=str(tmp_path / "first"))
    train_recipe(begun, tmp_path / "a", progress=False)
    tensors, _ = load_tensors(tmp_path / "first" / WEIGHTS)
    save_tensors(tmp_path / "first" / WEIGHTS, {**tensors, "batches": torch.tensor(2)})
    train_recipe(begun, tmp_path / "b", progress=False)
    assert_same(tmp_path / "a", tmp_path / "b")
