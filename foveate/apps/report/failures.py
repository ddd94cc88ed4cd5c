"""The examples that runs do worst on, chosen by a rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from foveate.apps.report.runs import ReportRun, measure_of
from foveate.lab.tasks.presentation import Presentation
from foveate.metrics.means import ExampleKey, ExampleValues


def choose_failures(runs: Sequence[ReportRun], count: int) -> list[str]:
    """The ids of the worst examples, one per image, the worst first; see `failure_rule`.

    Empty if a run has no values of single examples. Only examples that are worse than the mean over all are failures.
    """
    shown, values = runs[0].shown, [seed for run in runs for seed in run.example_values()]
    if not shown.failures or not all(run.example_values() for run in runs):
        return []
    signs = [1.0 if measure_of(name, shown).better == "higher" else -1.0 for name in shown.failures]
    tables = [_means(values, name, sign) for name, sign in zip(shown.failures, signs, strict=True)]
    if not tables[0]:
        return []
    usual, others = mean(tables[0].values()), [(table, _by_image(table)) for table in tables[1:]]

    def rank(key: ExampleKey) -> tuple[float, ...]:
        return tables[0][key], *(own.get(key, images.get(key[1], 0.0)) for own, images in others)

    chosen: dict[str, str] = {}
    for key in sorted((key for key, value in tables[0].items() if value < usual), key=rank):
        chosen.setdefault(key[1], key[0])
    return list(chosen.values())[:count]


def failure_rule(shown: Presentation) -> str:
    """How failures are chosen, for the reader."""
    first, *others = [_worst(name, shown) for name in shown.failures]
    ties = "".join(f"; of equal ones, {text}" if place == 0 else f", then {text}" for place, text in enumerate(others))
    return (
        f"Chosen by a rule, not by hand: the examples of val with {first}, as a mean over all runs{ties}. One example "
        "per image, and only examples that are worse than the average."
    )


def _worst(name: str, shown: Presentation) -> str:
    measure = measure_of(name, shown)
    return f"the {'lowest' if measure.better == 'higher' else 'highest'} value of “{measure.label}”"


def _means(values: Sequence[ExampleValues], name: str, sign: float) -> dict[ExampleKey, float]:
    """The mean over runs of every example that all of them have, times a sign."""
    tables = [own.get(name, {}) for own in values]
    keys = sorted(set.intersection(*(set(table) for table in tables)))
    return {key: sign * mean(table[key] for table in tables) for key in keys}


def _by_image(table: Mapping[ExampleKey, float]) -> dict[str, float]:
    """The mean over the examples of each image."""
    groups: dict[str, list[float]] = {}
    for key, value in table.items():
        groups.setdefault(key[1], []).append(value)
    return {image: mean(group) for image, group in groups.items()}
