"""Labels, units and directions of the metrics in a report, and the baselines among them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from foveate.lab.tasks.presentation import Measure, Presentation

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
