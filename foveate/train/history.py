"""The evaluations of a run, kept in `metrics.json`: which was best, and whether it is time to stop."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foveate.data.files import read_json
from foveate.data.writing import write_json
from foveate.errors import UnknownName

METRICS = "metrics.json"


@dataclass(frozen=True)
class Evaluation:
    """What was measured after a step."""

    step: int
    epoch: float
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class History:
    """Evaluations in order of their steps.

    Attributes:
        objective: the metric that should become large.
        evaluations: of this run.

    >>> history = History("accuracy").after(Evaluation(5, 1.0, {"accuracy": 0.5}))
    >>> history = history.after(Evaluation(10, 2.0, {"accuracy": 0.4}))
    >>> history.best.step, history.waited, history.has(10)
    (5, 1, True)
    """

    objective: str
    evaluations: tuple[Evaluation, ...] = ()

    def after(self, evaluation: Evaluation) -> History:
        """The history with one more evaluation; UnknownName when it lacks the objective."""
        if self.objective not in evaluation.metrics:
            raise UnknownName("objective", self.objective, evaluation.metrics)
        return History(self.objective, (*self.evaluations, evaluation))

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the largest objective, the first of equals; not a number counts as smallest."""
        return max(self.evaluations, key=self._value, default=None)

    @property
    def waited(self) -> int:
        """Evaluations since the best one."""
        return sum(e.step > self.best.step for e in self.evaluations) if self.best else 0

    def has(self, step: int) -> bool:
        """True when the model was measured after this step."""
        return any(evaluation.step == step for evaluation in self.evaluations)

    def until(self, step: int) -> History:
        """The history as it was at a step, from which training goes on."""
        return History(self.objective, tuple(e for e in self.evaluations if e.step <= step))

    def save(self, folder: Path) -> None:
        """Write `metrics.json`."""
        rows = [{"step": e.step, "epoch": e.epoch, "metrics": dict(e.metrics)} for e in self.evaluations]
        best = next((row for row in rows if self.best and row["step"] == self.best.step), None)
        write_json(folder / METRICS, {"objective": self.objective, "best": best, "evaluations": rows})

    @classmethod
    def load(cls, folder: Path, objective: str) -> History:
        """The history of a run, empty when it has none yet."""
        if not (folder / METRICS).exists():
            return cls(objective)
        data = read_json("metrics", folder / METRICS, "it is written by foveate train")
        return cls(objective, tuple(Evaluation(**row) for row in data["evaluations"]))

    def _value(self, evaluation: Evaluation) -> float:
        value = evaluation.metrics[self.objective]
        return -math.inf if math.isnan(value) else value
