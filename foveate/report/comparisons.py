"""Which differences between runs stand: paired tests over the examples that all of them were evaluated on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foveate.metrics.differences import PairedDifference, p_in_words, paired_differences
from foveate.metrics.statistics import Floats
from foveate.report.measures import measure_of
from foveate.report.runs import ReportRun
from foveate.tasks.presentation import Measure, Presentation


@dataclass(frozen=True)
class RunComparison:
    """Several runs against the first one, example by example.

    Attributes:
        differences: per headline metric and run, corrected for the number of comparisons.
        examples: number of examples by metric.
        seeds: number of seeds of the run that has the fewest.
        shown: how the task shows its metrics.
    """

    differences: Sequence[PairedDifference]
    examples: dict[str, int]
    seeds: int
    shown: Presentation

    def sentence(self) -> str:
        """What stands, in one sentence; "" if nothing could be compared."""
        if not self.differences:
            return ""
        base = self.differences[0].second
        parts, same = [], []
        for name in self.examples:
            measure, own = measure_of(name, self.shown), [one for one in self.differences if one.measure == name]
            standing = [one for one in own if one.stands]
            if standing:
                parts.append(f"{measure.label}: {', '.join(_phrase(one, measure) for one in standing)}")
            else:
                same.append(measure.label)
        if same:
            parts.append(f"no difference that stands in {', '.join(same)}")
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        head = f"Against {base} on the same {max(self.examples.values())} examples, {seeds}"
        return f"{head}: {'; '.join(parts)} (Holm-corrected for {len(self.differences)} comparisons)."

    def to_json(self) -> list[dict[str, Any]]:
        """Every comparison as JSON values."""
        return [
            {
                "metric": one.measure,
                "run": one.first,
                "against": one.second,
                "means": list(one.means),
                "difference": [one.interval.mean, one.interval.low, one.interval.high],
                "p": one.p,
                "corrected p (Holm)": one.corrected,
                "stands": one.stands,
                "examples": self.examples[one.measure],
            }
            for one in self.differences
        ]


def compare_runs(runs: Sequence[ReportRun]) -> RunComparison:
    """Compare every run with the first one on the headline metrics of which higher or lower is better.

    An example counts if every run and seed was evaluated on it; examples of one image are drawn and permuted together.
    Runs without values of single examples are left out.
    """
    shown = runs[0].shown
    kept = [(run, values) for run in runs if (values := run.example_values())]
    tables: dict[str, dict[str, Floats]] = {}
    counts: dict[str, int] = {}
    clusters: dict[str, list[str]] = {}
    for name in shown.headlines if len(kept) > 1 and kept[0][0] is runs[0] else ():
        keys = sorted(set.intersection(*(set(seed.get(name, {})) for _, own in kept for seed in own)))
        if keys and measure_of(name, shown).better is not None:
            tables[name] = {run.name: _table([seed[name] for seed in own], keys) for run, own in kept}
            counts[name], clusters[name] = len(keys), [key[1] for key in keys]
    found = paired_differences(tables, clusters=clusters, against=runs[0].name)
    return RunComparison(found, counts, min((len(own) for _, own in kept), default=0), shown)


def _table(seeds: Sequence[dict[tuple[str, str], float]], keys: Sequence[tuple[str, str]]) -> Floats:
    """(S, n) values of the examples `keys`."""
    return np.array([[seed[key] for key in keys] for seed in seeds])


def _phrase(one: PairedDifference, measure: Measure) -> str:
    first, second = (measure.show(value) for value in one.means)
    way = "higher" if one.means[0] > one.means[1] else "lower"
    unit = f" {measure.unit}" if measure.unit else ""
    return f"{way} with {one.first} ({first} against {second}{unit}, {p_in_words(one.corrected)})"
