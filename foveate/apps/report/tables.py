"""The tables of a report, each with what the statistics say about it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean

from foveate.apps.report.comparisons import FEW, RunComparison, compare_runs, count_examples
from foveate.apps.report.page import html_cell, html_table, html_text
from foveate.apps.report.runs import STEP_TIME, ReportRun, measure_of, split_baselines
from foveate.metrics.statistics import p_in_words


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
