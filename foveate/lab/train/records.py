"""The files that a training writes into the directory of its run: its description, evaluations and log."""

from __future__ import annotations

import json
import math
import platform
import subprocess
import time
import zipfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from foveate.errors import DataError, UnknownName, WrongValue
from foveate.io import (
    ProgressBar,
    atomic_write,
    exclusive_lock,
    read_checked_json,
    read_json,
    with_checksum,
    write_json,
)
from foveate.metrics.means import ExampleKey, ExampleValues

SOURCE = "it is part of a run that foveate train writes"
CONFIG, VOCABULARY, ENVIRONMENT, LOG = "config.json", "vocabulary.json", "environment.json", "log.jsonl"
METRICS, FAMILIARITY, EXAMPLES = "metrics.json", "familiarity.safetensors", "examples.npz"
CURVE = "curve"  # the event of small evaluations in the log
# A run may be extended, or read its data or use memory in another way, without becoming another run.
EXTENDED = (
    "epochs",
    "steps",
    "patience",
    "save_every",
    "workers",
    "curve_points",
    "curve_examples",
    "tracker",
    "gradient_checkpointing",
)
CHANGEABLE = frozenset(f"config.json.{name}" for name in ("about", *(f"training.{name}" for name in EXTENDED)))
PACKAGES = ("foveate", "torch", "accelerate", "safetensors", "numpy")


@dataclass(frozen=True)
class Evaluation:
    """The metrics of the model after a step."""

    step: int
    epoch: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class History:
    """Evaluations in order of their steps.

    Attributes:
        objective: the metric to maximise.
        evaluations: of this run.

    >>> history = History("accuracy").after(Evaluation(5, 1.0, {"accuracy": 0.5}))
    >>> history = history.after(Evaluation(10, 2.0, {"accuracy": 0.4}))
    >>> history.best.step, history.waited, history.has(10)
    (5, 1, True)
    """

    objective: str
    evaluations: tuple[Evaluation, ...] = ()

    def after(self, evaluation: Evaluation) -> History:
        """The history with one more evaluation; raises UnknownName if it lacks the objective."""
        if self.objective not in evaluation.metrics:
            raise UnknownName("objective", self.objective, evaluation.metrics)
        return History(self.objective, (*self.evaluations, evaluation))

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the largest objective, the first one of several; NaN counts as smallest."""
        # max returns the first of equal values, so that a resumed training keeps the same weights.
        return max(self.evaluations, key=self._value, default=None)

    @property
    def waited(self) -> int:
        """Evaluations since the best one."""
        return sum(e.step > self.best.step for e in self.evaluations) if self.best else 0

    def has(self, step: int) -> bool:
        """True if the model was evaluated after this step."""
        return any(evaluation.step == step for evaluation in self.evaluations)

    def until(self, step: int) -> History:
        """The history as it was at a step, from which training continues."""
        return History(self.objective, tuple(e for e in self.evaluations if e.step <= step))

    def save(self, directory: Path) -> None:
        """Write `metrics.json`."""
        rows = [{"step": e.step, "epoch": e.epoch, "metrics": dict(e.metrics)} for e in self.evaluations]
        best = next((row for row in rows if self.best and row["step"] == self.best.step), None)
        write_json(directory / METRICS, {"objective": self.objective, "best": best, "evaluations": rows})

    @classmethod
    def load(cls, directory: Path, objective: str) -> History:
        """The history of a run, empty if it has not been evaluated yet."""
        if not (directory / METRICS).exists():
            return cls(objective)
        data = read_json("metrics", directory / METRICS, SOURCE)
        return cls(objective, tuple(Evaluation(**row) for row in data["evaluations"]))

    def _value(self, evaluation: Evaluation) -> float:
        value = evaluation.metrics[self.objective]
        return -math.inf if math.isnan(value) else value


class LogTracker(Protocol):
    """A receiver of the numbers of a log, see `foveate.lab.train.tracking`."""

    def log(self, event: str, numbers: Mapping[str, Any], step: int) -> None: ...

    def close(self) -> None: ...


class RunLog:
    """Writes the log of a run, on the first process only.

    Args:
        path: of `log.jsonl`.
        step: from which training continues; later lines are removed, since they will be written again.
        total: steps of the whole training.
        tracker: where the numbers are passed on as well.
        progress: show a progress bar, or lines where there is no terminal, and the results of evaluations.

    Each line is a JSON object with "step", "event" ("train", "evaluate", "curve") and its numbers; "time" is seconds
    since the epoch.
    """

    def __init__(
        self, path: Path, *, step: int, total: int, tracker: LogTracker | None = None, progress: bool = True
    ) -> None:
        self._tracker = tracker
        _cut(path, step)
        self._file = path.open("a", encoding="utf-8")
        self._bar = ProgressBar("train", total, initial=step, unit="step", show=progress)
        self.verbose = progress
        self._notes: dict[str, str] = {}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.__exit__()
        self._file.close()
        if self._tracker is not None:
            self._tracker.close()

    def write(self, event: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Add a line, and pass its numbers on to the tracker."""
        line = {"step": step, "event": event, **_plain(numbers), "time": round(time.time(), 3)}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"write: expected to write {self._file.name}, got {error}; free some space and continue with --resume"
            ) from error
        if self._tracker is not None:
            self._tracker.log(event, numbers, step)

    def advance(self, loss: float) -> None:
        """Move the bar by one step."""
        self._notes["loss"] = f"{loss:.4g}"
        self._bar.update(1, self._note())

    def show(self, text: str, notes: Mapping[str, str]) -> None:
        """Print a line above the bar, and keep notes beside it."""
        self._notes.update(notes)
        if self.verbose:
            self._bar.write(text)
            self._bar.update(0, self._note())

    def _note(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self._notes.items())


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; an incomplete last line is skipped."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def _cut(path: Path, step: int) -> None:
    kept = [line for line in read_log(path) if line["step"] <= step]
    with atomic_write(path) as temporary:
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _plain(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that every JSON reader accepts: NaN and infinity become None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in numbers.items()}


def open_run(directory: Path, documents: Mapping[str, Any], *, resume: bool) -> None:
    """Write the documents of a new run, or check that the directory holds this very run.

    Args:
        directory: of the run; it exists.
        documents: contents of the JSON files that identify the run, by file name.
        resume: continue an existing run.

    Raises DataError for a directory with a run unless `resume`, and always for one with another run.
    """
    if not resume and (directory / CONFIG).exists():
        raise DataError(
            f"train: expected a new directory, got the run in {directory}; pass --resume or choose another --out"
        )
    for name, document in documents.items():
        if (directory / name).exists():
            found = (
                read_checked_json("resume", directory / VOCABULARY, SOURCE)
                if name == VOCABULARY
                else read_json("resume", directory / name, SOURCE)
            )
            check_same(name, found, document)
    for name, document in documents.items():
        write_json(directory / name, with_checksum(document) if name == VOCABULARY else document)


def note_environment(directory: Path, seed: int, processes: int, device: str, data: Mapping[str, str]) -> None:
    """Write versions, seed, device and data of a run, or check that a resumed run has the same data."""
    path = directory / ENVIRONMENT
    if path.exists():
        old = read_json("resume", path, SOURCE)
        check_same(f"{ENVIRONMENT}.data", old.get("data"), dict(data))
        return
    versions = {name: _version(name) for name in PACKAGES}
    description = {
        "seed": seed,
        "versions": {"python": platform.python_version(), **versions},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "processes": processes,
        "commit": _commit(),
        "data": dict(data),
    }
    write_json(path, description)


def lock(directory: Path) -> AbstractContextManager[None]:
    """Lock a directory against other trainings."""
    return exclusive_lock("train", directory, "another training", "wait for it or choose another --out")


def check_same(path: str, old: Any, new: Any) -> None:
    """Raises DataError with the first difference between two JSON documents that a resumed run may not have.

    Args:
        path: of the documents, for the message.
        old, new: as stored in the run, and as it would be written now.
    """
    if path in CHANGEABLE or old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        # A run of an older version lacks younger fields, which matter only if they change the result.
        names = ", ".join(sorted(key for key in old.keys() ^ new.keys() if f"{path}.{key}" not in CHANGEABLE))
        if not names:
            for key in (key for key in old if key in new):
                check_same(f"{path}.{key}", old[key], new[key])
            return
        raise DataError(
            f"resume: expected the same fields in {path}, got a difference in {names}; choose another --out"
        )
    raise DataError(
        f"resume: expected {path} = {old!r:.80} as in the run, got {new!r:.80}; use the same or choose another --out"
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of foveate's own source if it runs from a clone."""
    source = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def write_examples(path: Path, values: ExampleValues) -> None:
    """Write the values of single examples atomically, so that runs can be compared example by example.

    A compressed `.npz` file with the arrays `names` (M,), `ids` (n,), `clusters` (n,) and `values` (n, M) in float32,
    NaN where a metric does not apply to an example; it holds no Python objects. Nothing is written if there are none.
    """
    if not values:
        return
    keys: dict[ExampleKey, int] = {}
    for own in values.values():
        for key in own:
            keys.setdefault(key, len(keys))
    table = np.full((len(keys), len(values)), np.nan, np.float32)
    for column, own in enumerate(values.values()):
        table[[keys[key] for key in own], column] = list(own.values())
    ids, clusters = (np.array([key[side] for key in keys], dtype=np.str_) for side in (0, 1))
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, names=np.array(list(values), dtype=np.str_), ids=ids, clusters=clusters, values=table)


def read_examples(path: Path) -> ExampleValues:
    """The values that `write_examples` wrote; raises DataError for a file that is missing or damaged."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            names, ids, clusters, table = (file[name] for name in ("names", "ids", "clusters", "values"))
        if table.shape != (len(ids), len(names)) or len(clusters) != len(ids):
            raise WrongValue(f"a table {table.shape} of {len(ids)} examples and {len(names)} metrics")
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"examples: expected the values of single examples in {path}, got {error}; evaluate again"
        ) from None
    keys = [(str(one), str(cluster)) for one, cluster in zip(ids, clusters, strict=True)]
    return {
        str(name): {key: float(value) for key, value in zip(keys, table[:, column], strict=True) if value == value}
        for column, name in enumerate(names)
    }
