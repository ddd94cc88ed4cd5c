"""What the numbers of runs are called, in which unit they are told, and which direction is good."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import mean, stdev


@dataclass(frozen=True)
class Measure:
    """How a number is told.

    Attributes:
        label: for people.
        unit: "%" shows a share of one in percent; any other is written as it is.
        better: "higher" or "lower"; None where neither is better.
        digits: after the point.
    """

    label: str
    unit: str = ""
    better: str | None = None
    digits: int = 2

    def show(self, value: float) -> str:
        """One number.

        >>> Measure("accuracy", "%", digits=1).show(0.8831)
        '88.3'
        """
        return f"{100 * value if self.unit == '%' else value:.{self.digits}f}"

    def spread(self, values: Iterable[float]) -> str:
        """Mean and, of several, standard deviation; a dash for none.

        >>> Measure("accuracy", "%", digits=1).spread([0.4, 0.6]), Measure("x").spread([])
        ('50.0 ± 14.1', '–')
        """
        known = [value for value in values if value is not None and math.isfinite(value)]
        if not known:
            return "–"
        return self.show(mean(known)) + (f" ± {self.show(stdev(known))}" if len(known) > 1 else "")


STEP_TIME = "seconds a step"
MEASURES: Mapping[str, Measure] = {
    "accuracy": Measure("right answers", "%", "higher", 1),
    "js": Measure("distance from the true region (JS)", "bits", "lower"),
    "spearman": Measure("rank correlation with the true region", "", "higher"),
    "mass": Measure("attention inside the true region", "%", "higher", 1),
    "pointing": Measure("strongest place inside the true region", "%", "higher", 1),
    "area": Measure("picture that gets any attention", "%", digits=0),
    "entropy": Measure("entropy of the attention", "bits"),
    "regions": Measure("patches above the even share"),
    "components": Measure("components of the density"),
    STEP_TIME: Measure("time of a training step", "s", "lower", 3),
}
# Shown in the first table beside the whole; the others follow further down.
SUBSETS = {
    "yes/no": "yes or no",
    "number": "numbers",
    "other": "other",
    "two-distant": "two distant things",
    "small": "one small thing",
}
FIRST = ("accuracy", "js", "spearman", "mass", "pointing", "area", "components", STEP_TIME)
WIDE = ("accuracy", "js")  # of these the subsets are in the first table too
RIVALS = re.compile(r"(?P<name>.+?) of (?P<rival>uniform|centre|random|people)(?P<subset>/.*)?")


def measure_of(name: str) -> Measure:
    """How a number is told, by its name or that of the whole whose subset it is; unknown ones as they are.

    >>> measure_of("accuracy/two-distant").label, measure_of("bleu").label
    ('right answers: two distant things', 'bleu')
    """
    whole, _, subset = name.partition("/")
    if name in MEASURES or whole not in MEASURES:
        return MEASURES.get(name, Measure(name, digits=3))
    found = MEASURES[whole]
    return Measure(f"{found.label}: {SUBSETS.get(subset, subset)}", found.unit, found.better, found.digits)


def split_rivals(names: Iterable[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """The numbers of models, and for each kind of rival that knows nothing the name of its number by that of the model.

    >>> split_rivals(["js", "js of uniform", "js of uniform/small"])
    (['js'], {'uniform': {'js': 'js of uniform', 'js/small': 'js of uniform/small'}})
    """
    own: list[str] = []
    rivals: dict[str, dict[str, str]] = {}
    for name in names:
        found = RIVALS.fullmatch(name)
        if found is None:
            own.append(name)
        else:
            rivals.setdefault(found["rival"], {})[found["name"] + (found["subset"] or "")] = name
    return own, rivals


def first_rows(names: Iterable[str], objective: str) -> list[str]:
    """The names for the first table, the objective before the others.

    >>> first_rows(["area", "accuracy", "accuracy/number", "accuracy/colour", "entropy"], "accuracy")
    ['accuracy', 'accuracy/number', 'area']
    """
    there = set(names)
    order = [objective, *(name for name in FIRST if name != objective)]
    wanted = [row for name in order for row in (name, *(f"{name}/{s}" for s in SUBSETS if name in WIDE))]
    known = [row for row in wanted if row in there]
    return known if any(name in MEASURES for name in known) else sorted(there, key=lambda name: name != objective)
