"""What a report reads of runs: their recipe, their best evaluation, their log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from foveate.data.files import read_json
from foveate.errors import DataError
from foveate.recipes import Recipe, read_run
from foveate.report.measures import STEP_TIME
from foveate.tasks import Task
from foveate.train.folder import ENVIRONMENT, LOG, run_folder
from foveate.train.history import METRICS, History
from foveate.train.log import read_log


@dataclass(frozen=True)
class ReportRun:
    """One column of a report: a training, or several that differ in their seed alone.

    Attributes:
        name: for people, for instance the mechanism.
        folders: of the runs, one a seed; names of embedded runs will do.
        metrics: one mapping a run where its numbers are not to be read from its own evaluations, for instance those of
            another split; empty reads them.
    """

    name: str
    folders: tuple[Path | str, ...]
    metrics: tuple[Mapping[str, float], ...] = ()

    @cached_property
    def opened(self) -> tuple[Recipe, Task]:
        """The recipe and the task of the first run."""
        return read_run(self.folders[0])

    @cached_property
    def histories(self) -> list[History]:
        """The evaluations of each run; DataError for a run that was never evaluated."""
        found = [History.load(run_folder(folder), self.opened[1].objective) for folder in self.folders]
        for folder, history in zip(self.folders, found, strict=True):
            if history.best is None:
                raise DataError(f"report: expected an evaluated run, got {folder} without {METRICS}; train on")
        return found

    @cached_property
    def logs(self) -> list[list[dict[str, Any]]]:
        """The lines of each log, none for a run that was handed on without it."""
        return [read_log(run_folder(folder) / LOG) for folder in self.folders]

    def values(self, name: str) -> list[float]:
        """A number of each run, as far as it is known."""
        if name == STEP_TIME:
            return [seconds for log in self.logs if (seconds := self._seconds(log)) is not None]
        return [numbers[name] for numbers in self.numbers() if name in numbers]

    def numbers(self) -> list[Mapping[str, float]]:
        """What was measured of each run: what was handed in, or its best evaluation."""
        return list(self.metrics) or [history.best.metrics for history in self.histories if history.best]

    def environment(self) -> Mapping[str, Any]:
        """Versions, seed and machine of the first run; empty when it has none written down."""
        path = run_folder(self.folders[0]) / ENVIRONMENT
        return read_json("report", path, "it is written by foveate train") if path.exists() else {}

    def _seconds(self, log: list[dict[str, Any]]) -> float | None:
        training = self.opened[0].training
        speeds = [line["examples_per_second"] for line in log if line["event"] == "train"]
        return mean(training.batch_size * training.accumulate / speed for speed in speeds) if speeds else None
