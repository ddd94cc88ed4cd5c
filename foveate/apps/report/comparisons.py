"""Which differences between runs are significant: paired tests over the examples that all of them were evaluated on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foveate.apps.report.runs import ReportRun, measure_of
from foveate.lab.tasks.presentation import Measure, Presentation
from foveate.metrics.means import ExampleValues
from foveate.metrics.statistics import Floats, PairedDifference, p_in_words, paired_differences

FEW = 30  # examples; below that runs are not compared, and no value is called the best


@dataclass(frozen=True)
class RunComparison:
    """Several runs against the first one, example by example.

    Attributes:
        differences: per metric and run, corrected for the number of comparisons.
        examples: number of examples by metric.
        seeds: number of seeds of the run that has the fewest.
        shown: how the task shows its metrics.
    """

    differences: Sequence[PairedDifference]
    examples: dict[str, int]
    seeds: int
    shown: Presentation

    def sentence(self) -> str:
        """The significant differences in one sentence; "" if nothing could be compared."""
        if not self.differences:
            return ""
        if (count := max(self.examples.values())) < FEW:
            return (
                f"Only {count} example{'s' if count > 1 else ''} of val: too few to compare these runs, which takes "
                f"{FEW} at least. Annotate more images, or move some of them from train to val."
            )
        base = self.differences[0].second
        parts, same = [], []
        for name in self.examples:
            own = [one for one in self.differences if one.measure == name]
            groups = self._groups(name, own)
            if groups:
                parts.append(f"{measure_of(name, self.shown).label}: {', '.join(groups)}")
            else:
                same.append(measure_of(name, self.shown).label)
        if same:
            parts.append(f"no significant difference in {', '.join(same)}")
        seeds = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        head = f"Against {base} on the same {max(self.examples.values())} examples, {seeds}"
        return f"{head}: {'; '.join(parts)} (Holm-corrected for {len(self.differences)} comparisons)."

    def _groups(self, name: str, own: Sequence[PairedDifference]) -> list[str]:
        """The runs with higher and with lower values, in words, the better ones first."""
        measure = measure_of(name, self.shown)
        ways = ("higher", "lower") if measure.better == "higher" else ("lower", "higher")
        found = []
        for way in ways:
            standing = [one for one in own if one.stands and (one.means[0] > one.means[1]) == (way == "higher")]
            if standing:
                every = len(standing) == len(own) > 2
                found.append(f"{way} with {_phrase(standing, measure, 'all others' if every else '')}")
        return found

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
                "stands": one.stands and self.examples[one.measure] >= FEW,
                "examples": self.examples[one.measure],
            }
            for one in self.differences
        ]


def compare_runs(runs: Sequence[ReportRun], names: Iterable[str] | None = None) -> RunComparison:
    """Compare every run with the first one on metrics of which higher or lower is better.

    Args:
        runs: of one task, on the same data.
        names: of the metrics; the headlines if absent.

    An example counts if every run and seed was evaluated on it; examples of one image are drawn and permuted together.
    Runs without values of single examples are left out.
    """
    shown = runs[0].shown
    kept = [(run, values) for run in runs if (values := run.example_values())]
    tables: dict[str, dict[str, Floats]] = {}
    counts: dict[str, int] = {}
    clusters: dict[str, list[str]] = {}
    for name in (shown.headlines if names is None else names) if len(kept) > 1 and kept[0][0] is runs[0] else ():
        keys = sorted(set.intersection(*(set(seed.get(name, {})) for _, own in kept for seed in own)))
        if keys and measure_of(name, shown).better is not None:
            tables[name] = {run.name: _table([seed[name] for seed in own], keys) for run, own in kept}
            counts[name], clusters[name] = len(keys), [key[1] for key in keys]
    found = paired_differences(tables, clusters=clusters, against=runs[0].name)
    return RunComparison(found, counts, min((len(own) for _, own in kept), default=0), shown)


def count_examples(values: ExampleValues) -> int:
    """The number of examples that were evaluated.

    >>> count_examples({"accuracy": {("q1", "a.jpg"): 1.0, ("q2", "a.jpg"): 0.0}})
    2
    """
    return max(map(len, values.values()), default=0)


def _table(seeds: Sequence[dict[tuple[str, str], float]], keys: Sequence[tuple[str, str]]) -> Floats:
    """(S, n) values of the examples `keys`."""
    return np.array([[seed[key] for key in keys] for seed in seeds])


def _phrase(standing: Sequence[PairedDifference], measure: Measure, together: str) -> str:
    """The names of runs, their range of values against that of the base, and the largest p-value."""
    values = [measure.show(value) for value in sorted(one.means[0] for one in standing)]
    spread = values[0] if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
    against = f"{spread} against {measure.show(standing[0].means[1])}"
    p = p_in_words(max(one.corrected for one in standing))
    p = p.replace("=", "≤") if len(standing) > 1 else p
    names = together or _listed([one.first for one in standing])
    return f"{names} ({against}{f' {measure.unit}' if measure.unit else ''}, {p})"


def _listed(names: Sequence[str]) -> str:
    """Names as in a sentence.

    >>> _listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
