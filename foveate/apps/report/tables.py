"""The tables of a report, and which differences are significant: paired tests over the examples of all runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np

from foveate.apps.report.page import html_cell, html_table, html_text
from foveate.apps.report.runs import STEP_TIME, ReportRun, measure_of, split_baselines
from foveate.lab.tasks.presentation import Measure, Presentation
from foveate.metrics.means import ExampleValues
from foveate.metrics.statistics import Floats, PairedDifference, p_in_words, paired_differences


def headlines(runs: Sequence[ReportRun]) -> dict[str, str]:
    """The headlines of the task that any run has, each with its short name; then the time per step, if known."""
    wanted = {**runs[0].shown.headlines, STEP_TIME: "time per step"}
    return {name: head for name, head in wanted.items() if any(run.values(name) for run in runs)}


def short_table(runs: Sequence[ReportRun]) -> tuple[list[str], list[list[str]]]:
    """Heads, and one row per run: mean and standard deviation over seeds; times are multiples of the first run's."""
    shown = headlines(runs)
    known = [run.values(STEP_TIME) for run in runs]
    unit = next((mean(times) for times in known if times), 1.0)
    rows = []
    for run, times in zip(runs, known, strict=True):
        cells = [measure_of(name, run.shown).spread(run.values(name)) for name in shown if name != STEP_TIME]
        speed = [f"{mean(times) / unit:.2f}x" if times else "–"] if STEP_TIME in shown else []
        rows.append([run.name, *cells, *speed])
    return ["attention", *shown.values()], rows


NOTE_SORT = "Click the head of a column to sort by it."
NOTE_BASELINES = (
    "The best value of a column is bold. Grey rows are baselines: attention that does not depend on the input."
)


def html_results(runs: Sequence[ReportRun]) -> Iterator[str]:
    """The headlines, and all other metrics folded away, each with what the statistics say."""
    names = list(dict.fromkeys([STEP_TIME, *(name for run in runs for each in run.numbers() for name in each)]))
    own, baselines = split_baselines(names)
    objective, known = runs[0].opened[1].objective, {name for own in baselines.values() for name in own}
    # The objective and what can be compared with a baseline come first, where a narrow screen shows them.
    first = sorted(headlines(runs), key=lambda name: (name != objective, name not in known))
    compared = compare_runs(runs)
    yield html_text("h2", "Results")
    yield html_text("p", compared.sentence(), "takeaway") if compared.differences else ""
    yield _table_of_runs(runs, first, baselines)
    yield html_text("p", few_examples(runs), "takeaway") if few_examples(runs) and not compared.differences else ""
    yield html_text("p", NOTE_SORT, "soft sorts")
    yield html_text("p", NOTE_BASELINES, "soft") if baselines else ""
    if compared.differences:
        yield _folded(f"All comparisons ({len(compared.differences)})", html_comparisons(compared))
    rest = sorted(set(own) - set(first))
    if rest:
        said = compare_runs(runs, rest).sentence()
        table = (html_text("p", said, "takeaway") if said else "") + _table_of_metrics(runs, rest, baselines)
        yield _folded(f"All other numbers ({len(rest)})", table)


def few_examples(runs: Sequence[ReportRun]) -> str:
    """What to say about numbers of few examples; "" if there are enough, or if their number is not known."""
    counts = [count_examples(values) for run in runs for values in run.example_values()]
    if not counts or min(counts) >= FEW:
        return ""
    return f"These numbers are means over {min(counts)} example{'s' * (min(counts) > 1)} of val: too few to rank by."


def _folded(title: str, inside: str) -> str:
    return f"<details>{html_text('summary', title)}{inside}</details>"


def _table_of_runs(runs: Sequence[ReportRun], names: Sequence[str], baselines: Mapping[str, Mapping[str, str]]) -> str:
    """One row per run, then one per baseline that has any of these metrics; one column per metric."""
    head = [html_cell("th", "attention"), *(_metric_cell("th", runs, name) for name in names)]
    best = {name: _best(runs, name) for name in names}
    rows = [[html_cell("td", run.name), *(_value_cell(run, name, best[name]) for name in names)] for run in runs]
    for baseline, own in baselines.items():
        if any(name in own for name in names):
            cells = [html_cell("td", _baseline(runs, name, own.get(name)), "baseline") for name in names]
            rows.append([html_cell("td", baseline, "baseline"), *cells])
    return html_table(head, rows)


def _table_of_metrics(
    runs: Sequence[ReportRun], names: Sequence[str], baselines: Mapping[str, Mapping[str, str]]
) -> str:
    """One row per metric, one column per baseline that has any of these metrics, then one per run."""
    shown = {baseline: own for baseline, own in baselines.items() if any(name in own for name in names)}
    head = [html_cell("th", "metric")]
    # Baselines come first, beside the names of the metrics, which stay in place when the table scrolls.
    head += [html_cell("th", baseline, "baseline") for baseline in shown] + [html_cell("th", run.name) for run in runs]
    rows = []
    for name in names:
        best = _best(runs, name)
        cells = [html_cell("td", _baseline(runs, name, own.get(name)), "baseline") for own in shown.values()]
        rows.append([_metric_cell("td", runs, name), *cells, *(_value_cell(run, name, best) for run in runs)])
    return html_table(head, rows)


def _metric_cell(tag: str, runs: Sequence[ReportRun], name: str) -> str:
    measure = measure_of(name, runs[0].shown)
    arrow = {"higher": "↑", "lower": "↓", None: ""}[measure.better]
    return html_cell(tag, measure.label, note=" ".join(filter(None, (measure.unit, arrow))))


def _value_cell(run: ReportRun, name: str, best: float | None) -> str:
    own = run.values(name)
    return html_cell("td", measure_of(name, run.shown).spread(own), "best" if own and mean(own) == best else "")


def _baseline(runs: Sequence[ReportRun], name: str, baseline: str | None) -> str:
    """The value of a baseline, which is the same in every run and for every seed; "" if it has none."""
    return measure_of(name, runs[0].shown).spread(runs[0].values(baseline)[:1]) if baseline else ""


def _best(runs: Sequence[ReportRun], name: str) -> float | None:
    """The best mean of a metric, if there are several, one direction is better, and there are examples enough."""
    better = measure_of(name, runs[0].shown).better
    means = [mean(own) for run in runs if (own := run.values(name))]
    if better is None or len(means) < 2 or few_examples(runs):
        return None
    return max(means) if better == "higher" else min(means)


def html_comparisons(compared: RunComparison) -> str:
    """One row per comparison: the means, their difference with its 95 % interval, the p-value, if it is significant."""
    heads = ("metric", "attention", "mean", "against", "mean", "difference", "95 % interval", "p (Holm)", "significant")
    rows = []
    for one in compared.differences:
        measure = measure_of(one.measure, compared.shown)
        low, middle, high = (measure.show(value) for value in (one.interval.low, one.interval.mean, one.interval.high))
        first, second = (measure.show(value) for value in one.means)
        stands = "yes" if one.stands else "no"
        p = p_in_words(one.corrected).removeprefix("p ").removeprefix("= ")
        texts = (one.first, first, one.second, second, middle, f"{low} to {high}", p, stands)
        label = html_cell("td", measure.label, note=measure.unit)
        rows.append([label, *(html_cell("td", text, "best" if one.stands else "") for text in texts)])
    return html_table([html_cell("th", head) for head in heads], rows)


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
