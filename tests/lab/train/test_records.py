"""What a run records: evaluations, the log, TensorBoard, and that no other run is mixed in."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from foveate.errors import DataError, MissingExtra, UnknownName
from foveate.lab.train import Recipe, override, train_recipe
from foveate.lab.train.records import Evaluation, History, lock, read_log
from tests.lab.train.test_loop import run
from tests.lab.train.toy import Toy, changed


def test_a_torn_line_of_the_log_is_dropped(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 13, "eve')
    run(changed(recipe, epochs=2), tmp_path, resume=True)
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [13, 13, 20, 26, 26]


def test_an_objective_that_is_not_measured_is_named(recipe: Recipe, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(Toy, "objective", "acuracy")
    with pytest.raises(UnknownName, match="did you mean 'accuracy'"):
        run(changed(recipe, steps=1), tmp_path)


def test_no_number_is_never_best() -> None:
    history = History("a")
    for step, value in enumerate([float("nan"), 0.5, float("nan")]):
        history = history.after(Evaluation(step, 0.0, {"a": value}))
    assert history.best.step == 1


def test_a_tracker_needs_its_package(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ({"tensorboard": True}, {"tracker": "tensorboard"}):
        monkeypatch.setitem(sys.modules, "tensorboard", None)
        with pytest.raises(MissingExtra, match="tensorboard"):
            run(changed(recipe, epochs=1, **change), tmp_path / next(iter(change)))
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtra, match=r"train: expected the package .wandb., got none; run: pip install"):
        run(changed(recipe, epochs=1, tracker="wandb"), tmp_path / "w")


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_loss_metric_speed_and_time_left(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("tqdm.std.tqdm.monitor_interval", 0)  # no thread that outlives the test
    train_recipe(changed(recipe, epochs=2), tmp_path / "a")
    last = screen.getvalue().split("\r")[-1]
    assert "26/26 [" in last
    assert all(word in last for word in ("loss ", "accuracy ", "step/s", "<"))
    train_recipe(changed(recipe, epochs=2), tmp_path / "b", progress=False)
    assert screen.getvalue().split("\r")[-1] == last


def test_the_description_of_a_run_may_change(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, steps=1), tmp_path)
    run(replace(changed(recipe, steps=2), about="better than we said"), tmp_path, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["about"] == "better than we said"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seed=1", r"resume: expected config.json.training.seed = 0 as in the run, got 1"),
        ("hidden=9", r"resume: expected config.json.settings.hidden = 8 as in the run, got 9"),
        (
            "optimiser=sgd",
            r"resume: expected the same fields in config.json.training.optimiser, got a difference in betas",
        ),
    ],
)
def test_another_recipe_is_not_mixed_in(recipe: Recipe, change: str, message: str, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    with pytest.raises(DataError, match=message):
        run(override(recipe, [change]), tmp_path, resume=True)
    assert json.loads((tmp_path / "config.json").read_text())["training"]["seed"] == 0


def test_other_data_is_not_mixed_in(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    monkeypatch.setattr("tests.lab.train.toy.ToyExamples.fingerprint", lambda self: "other")
    with pytest.raises(DataError, match=r"resume: expected environment.json.data.train = 'train-100' as in the run"):
        run(recipe, tmp_path, resume=True)


def test_a_run_is_not_overwritten(recipe: Recipe, tmp_path: Path) -> None:
    run(changed(recipe, epochs=1), tmp_path)
    with pytest.raises(DataError, match=r"train: expected a new directory, got the run in .*; pass --resume"):
        run(recipe, tmp_path)


def test_two_trainings_do_not_share_a_directory(recipe: Recipe, tmp_path: Path) -> None:
    with (
        lock(tmp_path),
        pytest.raises(DataError, match=r"expected exclusive access to .*, got a lock held by another training"),
    ):
        run(recipe, tmp_path)
