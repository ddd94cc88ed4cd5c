"""Searching for the fields of a recipe: spaces, pruning, and studies that are killed and continue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foveate.apps.cli import main
from foveate.errors import DataError, UnknownName
from foveate.lab.train import Recipe, override
from foveate.lab.train import tuning as module
from foveate.lab.train.records import read_log
from foveate.lab.train.tuning import Space, read_space, run_name, tune
from tests.lab.train.toy import toy_net_points

optuna = pytest.importorskip("optuna", reason='needs the extra "scale"')
pytestmark = pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
SHORT = ("count=40", "epochs=2")


@pytest.mark.parametrize(
    ("text", "space"),
    [
        ("lr=log:1e-4..1e-2", Space("lr", 1e-4, 1e-2, True)),
        ("dropout=0.0..0.5", Space("dropout", 0.0, 0.5)),
        ("hidden=4..16", Space("hidden", 4, 16)),
        ("hidden=log:4..16", Space("hidden", 4, 16, True)),
        ("mechanism=softmax | sparsemax", Space("mechanism", choices=("softmax", "sparsemax"))),
        ("epochs=3", None),
    ],
)
def test_spaces(text: str, space: Space | None) -> None:
    assert read_space(text) == space


@pytest.mark.parametrize("text", ["lr=a..b", "lr=2..1", "lr=log:0..1", "lr"])
def test_wrong_spaces(text: str) -> None:
    with pytest.raises(ValueError, match="tune: expected"):
        read_space(text)


def test_a_study_finds_the_best_of_its_trials_and_goes_on(tmp_path: Path, recipe: Recipe) -> None:
    changes = [*SHORT, "lr=log:1e-4..1e-1", "hidden=4..16", "mechanism=softmax|sparsemax"]
    found = tune(recipe, changes, tmp_path / "t", trials=4, prune=False, progress=False)
    assert [one.state for one in found] == ["complete"] * 4
    values = [one.value for one in found]
    assert values == sorted(values, reverse=True)
    for one in found:
        stored = json.loads((one.directory / "metrics.json").read_text())
        assert stored["best"]["metrics"][stored["objective"]] == one.value
        config = json.loads((one.directory / "config.json").read_text())
        made = override(recipe, one.changes)
        assert config["training"]["optimiser"]["lr"] == made.training.optimiser.lr
        assert config["settings"]["hidden"] == made.settings.hidden
        assert config["settings"]["mechanism"] == made.settings.mechanism
        assert one.directory == tmp_path / "t" / run_name(one.changes)
    assert len({one.changes for one in found}) == 4
    more = tune(recipe, changes, tmp_path / "t", trials=6, prune=False, progress=False)
    assert len(more) == 6
    assert {one.changes for one in found} < {one.changes for one in more}
    again = tune(recipe, changes, tmp_path / "t", trials=6, progress=False)
    assert again == more


def test_trials_below_the_median_end_early(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    class Harsh(optuna.pruners.BasePruner):
        def prune(self, study: object, trial: object) -> bool:
            return trial.number > 0  # type: ignore[attr-defined]

    monkeypatch.setattr(optuna.pruners, "MedianPruner", lambda n_startup_trials: Harsh())
    found = tune(recipe, ["count=40", "epochs=3", "lr=log:1e-4..1e-1"], tmp_path / "t", trials=3, progress=False)
    assert [one.state for one in found] == ["complete", "pruned", "pruned"]
    for one in found:
        rows = [line for line in read_log(one.directory / "log.jsonl") if line["event"] == "evaluate"]
        assert len(rows) == (3 if one.state == "complete" else 1)
        assert one.value is not None
    whole = tune(recipe, ["epochs=3", "lr=log:1e-4..1e-1"], tmp_path / "w", trials=2, prune=False, progress=False)
    assert [one.state for one in whole] == ["complete"] * 2


def test_a_trial_that_diverges_is_counted_and_left(tmp_path: Path, recipe: Recipe) -> None:
    found = tune(recipe, ["poison=3", "lr=log:1e-4..1e-1"], tmp_path / "t", trials=2, progress=False)
    assert [one.state for one in found] == ["pruned"] * 2


def test_errors(tmp_path: Path, recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="tune: expected a space to search, got 'epochs=2'"):
        tune(recipe, ["epochs=2"], tmp_path / "t")
    with pytest.raises(UnknownName, match="did you mean 'hidden'"):
        tune(recipe, ["hiden=1..2"], tmp_path / "t")
    with pytest.raises(ValueError, match=r"epochs: expected a whole number, got '0.5'"):
        tune(recipe, ["epochs=0.5..2.5"], tmp_path / "t")
    with pytest.raises(UnknownName, match="did you mean 'softmax'"):
        tune(recipe, ["mechanism=softmx|tvmax"], tmp_path / "t")
    with pytest.raises(DataError, match="tune: expected the address of a database, got 'nothing'"):
        tune(recipe, ["lr=0.1..0.2"], tmp_path / "t", storage="nothing")
    assert not list(tmp_path.glob("t/trial-*"))


KILLED = """
import os, sys
from pathlib import Path
from tests.lab.train.toy import Toy, toy_net_points
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import tuning as module
TASKS["toy"] = Toy
from foveate.lab.train.loop import _Trainer
inner, calls = _Trainer._save, [0]
def save(self):
    inner(self)
    calls[0] += 1
    if calls[0] == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
_Trainer._save = save
module.tune(toy_net_points(), sys.argv[3:], Path(sys.argv[1]), trials=3, prune=False, progress=False)
"""


def test_a_killed_study_repeats_the_trial_from_its_checkpoint(tmp_path: Path, recipe: Recipe) -> None:
    changes = ["count=40", "epochs=3", "lr=log:1e-4..1e-1"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED, str(tmp_path / "t"), "4", *changes]  # after an epoch of the second trial
    assert subprocess.run(command, env=environment, capture_output=True).returncode == -9
    stopped = [path for path in (tmp_path / "t").glob("trial-*") if not (path / "familiarity.safetensors").exists()]
    before = {path.name: (path / "log.jsonl").stat().st_size for path in stopped}
    found = tune(recipe, changes, tmp_path / "t", trials=3, prune=False, progress=False)
    states = sorted(one.state for one in found)
    assert states == ["complete", "complete", "complete", "fail"]
    failed = next(one for one in found if one.state == "fail")
    [repeated] = [one for one in found if one.changes == failed.changes and one.state == "complete"]
    assert repeated.directory.name in before or repeated.directory.is_dir()
    steps = [line["step"] for line in read_log(repeated.directory / "log.jsonl") if line["event"] == "evaluate"]
    assert steps == sorted(set(steps))
    assert len(steps) == 3  # each epoch is evaluated once, those before the kill included


def test_the_process_of_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module._is_alive(os.getppid())
    assert not module._is_alive(os.getpid())  # whose trials have ended
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not module._is_alive(child.pid)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["tune", "toy-net-points", "count=40", "epochs=1", "--lr", "log:1e-3..1e-1", "--trials", "2", "--quiet"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "2 trials" in shown
    assert "train it again:\n  foveate train toy-net-points count=40 epochs=1 lr=" in shown
    [study] = Path("runs").iterdir()
    assert (study / "study.db").is_file()
    command = shown.rpartition("  foveate ")[2].split()
    assert main([*command, "--out", "best", "--quiet"]) == 0
    assert main(["tune", "toy-net-points", "epochs=1"]) == 1
    assert "tune: expected a space to search" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recipe_of_scenes(tmp_path: Path) -> None:
    arguments = ["tune", "vqa-mcan-scenes", "limit=24", "epochs=2", "steps=4", "lr=log:1e-4..1e-2", "--trials", "2"]
    assert main([*arguments, "--out", str(tmp_path / "t"), "--quiet"]) == 0
    assert len(list((tmp_path / "t").glob("trial-*/model.safetensors"))) == 2
    assert toy_net_points().name not in {path.name for path in tmp_path.iterdir()}
