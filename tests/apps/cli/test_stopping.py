"""A signal at any moment ends a command with 130 or 143; the same command continues, with the same result.

Within a process the moment is the n-th call of any Python function, so that every phase is reached: reading arguments,
training, evaluation, between two trainings, the report. A few signals arrive by the clock, also while modules are
imported.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.cli import compare as demo_module
from foveate.apps.cli import main
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.recipes import RECIPES
from foveate.lab.search import Index
from foveate.lab.tasks import TASKS
from tests.lab.train.toy import Toy, toy_net_points

ROOT = Path(__file__).resolve().parents[3]
COMPARE = ["compare", "toy", "--mechanisms", "softmax,tvmax", "--seeds", "1", "--finetune", "0", "epochs=1"]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(TASKS, "toy", Toy)
    monkeypatch.setitem(RECIPES, "toy-net-points", toy_net_points)
    monkeypatch.setattr(demo_module, "QUICK_IMAGES", 12)
    monkeypatch.setattr(demo_module, "QUICK_STEPS", 2)
    monkeypatch.chdir(tmp_path)


def calls_of(words: list[str], at: int | None = None, number: int = signal.SIGINT) -> tuple[int, int]:
    """Run a command and return its exit code and how many functions it called; `number` is raised in call `at`."""
    count = 0

    def seen(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"
        if count == at and event == "call":
            sys.setprofile(None)
            signal.raise_signal(number)

    sys.setprofile(seen)
    try:
        code = main(words)
    finally:
        sys.setprofile(None)
    return code, count


def images(directory: Path, count: int = 12) -> Path:
    directory.mkdir()
    for name in range(count):
        pixels = np.random.default_rng(name).integers(0, 255, (40, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(directory / f"{name}.png")
    return directory


def numbers_of_compare() -> Any:
    found = json.loads(Path("out/compare.json").read_text())
    return {name: [run["metrics"] for run in runs] for name, runs in found["results"].items()}


def numbers_of_runs(pattern: str) -> Callable[[], Any]:
    return lambda: {str(path): path.read_text() for path in sorted(Path("out").glob(pattern))}


def numbers_of_table() -> Any:
    found = json.loads(Path("out/000-table-1/results.json").read_text())["metrics"]
    return {row: [{k: v for k, v in run.items() if "seconds" not in k} for run in runs] for row, runs in found.items()}


def vectors_of_index() -> Any:
    index = Index(Path("out"))
    index.verify()
    return {index.name(place): index.vector(place).tolist() for place in range(len(index))}


def features_of_images() -> Any:
    store = FeatureStore(Path("out"))
    return {str(record.id): [record.values.tolist(), record.grid] for record in store}


CASES: dict[str, tuple[list[str], Callable[[], Any], tuple[str, ...]]] = {
    "compare": ([*COMPARE, "--out", "out"], numbers_of_compare, ("compare.json", "report.html")),
    "demo": (
        ["demo", "--quick", "--mechanisms", "softmax,sparsemax", "--examples", "1", "--out", "out"],
        numbers_of_runs("*/metrics.json"),
        ("report.html",),
    ),
    "tune": (
        ["tune", "toy-net-points", "hidden=4|8", "epochs=1", "--trials", "2", "--no-prune", "--out", "out"],
        numbers_of_runs("*/metrics.json"),
        (),
    ),
    "index": (["index", "scenes-search", "images", "out"], vectors_of_index, ()),
    "extract": (["extract", "efficientnet-lite0", "images", "out", "--workers", "0"], features_of_images, ()),
    "reproduce": (
        ["reproduce", "000-table-1", "--tiny", "--out", "out"],
        numbers_of_table,
        ("000-table-1/results.json", "000-table-1/report.html"),
    ),
}
QUICK = [pytest.param("compare", 8), pytest.param("index", 4)]
SLOW = [pytest.param(name, 12, marks=pytest.mark.slow) for name in CASES]


@pytest.mark.parametrize(("name", "times"), QUICK + SLOW)
def test_a_signal_in_any_call_ends_the_command_and_the_same_command_goes_on(
    name: str, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "tune":
        pytest.importorskip("optuna")
    words, result, last = CASES[name]
    images(tmp_path / "images")
    whole, calls = _whole(words, result, tmp_path, monkeypatch)
    chosen = random.Random(f"{name}/{times}")
    for attempt in range(times):
        number = chosen.choice([signal.SIGINT, signal.SIGTERM])
        where = tmp_path / str(attempt)
        where.mkdir()
        (where / "images").symlink_to(tmp_path / "images")
        monkeypatch.chdir(where)
        capsys.readouterr()
        at = chosen.randrange(1, calls)
        code, reached = calls_of(words, at, number)
        said = capsys.readouterr().err
        if reached < at:
            continue
        torch.set_grad_enabled(True)  # a program ends here; this one goes on where a context manager began
        assert code == 128 + number, (at, said)
        assert "Traceback" not in said
        assert f"continue with: foveate {name} " in said
        assert all(not (where / "out" / file).exists() or _is_complete(where / "out" / file) for file in last)
        assert main(words) == 0, (at, capsys.readouterr().err)
        assert result() == whole, at


def _whole(
    words: list[str], result: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int]:
    """The result without a signal, and the number of calls."""
    calls = 0
    for name in ("first", "whole"):  # the first calls more functions: it imports modules and fills caches
        where = tmp_path / name
        where.mkdir()
        (where / "images").symlink_to(tmp_path / "images")
        monkeypatch.chdir(where)
        code, calls = calls_of(words)
        assert code == 0
    return result(), calls


def _is_complete(path: Path) -> bool:
    text = path.read_text()
    return bool(json.loads(text)) if path.suffix == ".json" else text.rstrip().endswith("</html>")


def test_a_signal_in_the_last_step_of_a_training_ends_the_comparison(monkeypatch, capsys) -> None:
    """It was swallowed: the training was over, and the next one began."""
    original, taken = Toy.loss, []

    def last(self, model, batch, step):
        taken.append(step)
        if len(taken) == 13:  # of the first of two trainings
            signal.raise_signal(signal.SIGTERM)
        return original(self, model, batch, step)

    monkeypatch.setattr(Toy, "loss", last)
    assert main([*COMPARE, "--out", "out"]) == 143
    assert len(taken) == 13
    assert "continue with: foveate compare toy" in capsys.readouterr().err
    assert not Path("out/compare.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.05, 0.15, 0.5, 1.0])
def test_a_signal_while_modules_are_imported(number: int, seconds: float) -> None:
    """At any time after Python has begun with our program; how far that gets depends on the machine."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    program = (
        "import sys; from foveate.__main__ import main; sys.argv[1:] = ['list'];"
        "import signal, os; original = signal.signal;"
        "signal.signal = lambda *args: (original(*args), os.write(1, b'ready\\n') if args[0] == 15 else None)[0];"
        "sys.exit(main())"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        threading.Event().wait(seconds)
        process.send_signal(number)
        _, said = process.communicate(timeout=120)
    assert process.returncode in (0, 128 + number), said
    assert b"Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_inside_the_import_of_torch_does_not_abort(number: int) -> None:
    """An exception in the C++ that torch runs at its import ends the program by SIGABRT."""
    program = (
        "import os, signal, sys; from foveate.apps.cli import main\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        f"            try: signal.raise_signal({int(number)})\n"
        "            except BaseException: os.abort()\n"
        "sys.meta_path.insert(0, Finder()); sys.exit(main(['list']))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=120, check=False)
    assert done.returncode == 128 + number, done.stderr


@pytest.mark.slow
def test_a_signal_by_the_clock_at_random_moments(tmp_path: Path) -> None:
    """The command as a user starts it, from the beginning of the process to its end."""
    with_toy = (
        "import sys; from foveate.__main__ import main; from foveate.apps.cli import Command; load = Command.load;"
        "Command.load = lambda command: __import__('tests.lab.train.toy', fromlist='x').register() or load(command);"
        "sys.exit(main())"
    )
    program = [sys.executable, "-c", with_toy, *COMPARE]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.monotonic()
    subprocess.run([*program, "--out", "whole"], env=environment, check=True, capture_output=True)
    seconds, chosen = time.monotonic() - start, random.Random(7)
    codes = []
    for attempt in range(10):
        with subprocess.Popen(
            [*program, "--out", str(attempt)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            threading.Event().wait(chosen.uniform(0.3, 1.1) * seconds)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=300)
        codes.append(process.returncode)
        assert process.returncode in (0, 143, -signal.SIGTERM), said  # the last before `main` has begun
        assert b"Traceback" not in said
        assert (process.returncode == 0) == Path(str(attempt), "report.html").exists()
    assert 143 in codes
