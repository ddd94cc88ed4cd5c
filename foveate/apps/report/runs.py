"""The runs of a report, and how their metrics are shown: labels, units, directions, baselines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean
from typing import Any

from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.tasks import AnyTask
from foveate.lab.tasks.presentation import Measure, Presentation
from foveate.lab.train.recipe import Recipe, read_run, run_directory
from foveate.lab.train.records import ENVIRONMENT, EXAMPLES, LOG, METRICS, History, read_examples, read_log
from foveate.metrics.means import ExampleValues

STEP_TIME = "seconds per step"
STEP_MEASURE = Measure("time of a training step", "s", "lower", 3)
# Names in `metrics.json` of baselines, attention that does not depend on the input, and of annotators.
BASELINES = re.compile(r"(?P<name>.+?) of (?P<baseline>uniform|centre|random|people|humans)(?P<subset>/.*)?")


def measure_of(name: str, shown: Presentation) -> Measure:
    """How a metric is shown, by its name or by that of the metric it is a subset of.

    Args:
        name: in `metrics.json`.
        shown: what the task shows.

    >>> from foveate.lab.tasks import TASKS
    >>> measure_of("accuracy/two-distant", TASKS["vqa"].presentation).label
    'right answers: two distant objects'
    """
    if name == STEP_TIME:
        return STEP_MEASURE
    whole, _, subset = name.partition("/")
    if name in shown.measures or whole not in shown.measures:
        return shown.measures.get(name, Measure(name, digits=3))
    found = shown.measures[whole]
    return replace(found, label=f"{found.label}: {shown.subsets.get(subset, subset)}")


def split_baselines(names: Iterable[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The metrics of models, and per baseline the name of its metric by that of the model.

    >>> split_baselines(["js", "js of uniform", "js of uniform/small"])
    (['js'], {'uniform': {'js': 'js of uniform', 'js/small': 'js of uniform/small'}})
    """
    own: list[str] = []
    baselines: dict[str, dict[str, str]] = {}
    for name in names:
        found = BASELINES.fullmatch(name)
        if found is None:
            own.append(name)
        else:
            baselines.setdefault(found["baseline"], {})[found["name"] + (found["subset"] or "")] = name
    return own, baselines


@dataclass(frozen=True)
class ReportRun:
    """One column of a report: a training, or several that differ in their seed alone.

    Attributes:
        name: head of the column, for instance the mechanism.
        directories: of the runs, one per seed; names of embedded runs are allowed.
        metrics: one mapping per run to show instead of its own evaluations, for instance for another split; empty shows
            those.
    """

    name: str
    directories: tuple[Path | str, ...]
    metrics: tuple[Mapping[str, float], ...] = ()

    @cached_property
    def opened(self) -> tuple[Recipe, AnyTask]:
        """The recipe and the task of the first run."""
        return read_run(self.directories[0])

    @property
    def shown(self) -> Presentation:
        """What the task shows of its runs."""
        return self.opened[1].presentation

    @cached_property
    def histories(self) -> list[History]:
        """The evaluations of each run; raises DataError for a run that was never evaluated."""
        found = [History.load(run_directory(directory), self.opened[1].objective) for directory in self.directories]
        for directory, history in zip(self.directories, found, strict=True):
            if history.best is None:
                raise DataError(
                    f"report: expected an evaluated run, got {directory} without {METRICS}; continue training"
                )
        return found

    @cached_property
    def logs(self) -> list[list[dict[str, Any]]]:
        """The lines of each log, none for a run without a log."""
        return [read_log(run_directory(directory) / LOG) for directory in self.directories]

    def values(self, name: str) -> list[float]:
        """A metric of each run that has it."""
        if name == STEP_TIME:
            return [seconds for log in self.logs if (seconds := self._seconds(log)) is not None]
        return [numbers[name] for numbers in self.numbers() if name in numbers]

    def numbers(self) -> list[Mapping[str, float]]:
        """The metrics of each run: those that were passed, or its best evaluation."""
        return list(self.metrics) or [history.best.metrics for history in self.histories if history.best]

    def example_values(self) -> list[ExampleValues]:
        """The values of single examples of each run; empty if a run has none, or if other metrics are shown."""
        return self._example_values

    @cached_property
    def _example_values(self) -> list[ExampleValues]:
        paths = [run_directory(directory) / EXAMPLES for directory in self.directories]
        known = not self.metrics and all(path.exists() for path in paths)
        return [read_examples(path) for path in paths] if known else []

    def environment(self) -> Mapping[str, Any]:
        """Versions, seed and machine of the first run; empty if they were not recorded."""
        path = run_directory(self.directories[0]) / ENVIRONMENT
        found: Mapping[str, Any] = read_json("report", path, "it is written by foveate train") if path.exists() else {}
        return found

    def _seconds(self, log: list[dict[str, Any]]) -> float | None:
        training = self.opened[0].training
        speeds = [line["examples_per_second"] for line in log if line["event"] == "train"]
        return mean(training.batch_size * training.accumulate / speed for speed in speeds) if speeds else None
