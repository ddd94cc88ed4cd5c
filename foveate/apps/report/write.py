"""The report of runs as one HTML page: tables, curves, examples, and failures chosen by a rule."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from foveate.apps.report.page import html_commands, html_legend, html_page, html_sheet, html_text
from foveate.apps.report.runs import ReportRun, measure_of
from foveate.apps.report.tables import html_results
from foveate.errors import DataError
from foveate.io import ProgressBar, atomic_write
from foveate.lab import hub
from foveate.lab.data.samples import DataRoot
from foveate.lab.tasks.presentation import DrawnExample, Presentation
from foveate.lab.train.records import CURVE
from foveate.metrics.means import ExampleKey, ExampleValues
from foveate.plot.canvas import INK, PAPER, SMALL, USUAL
from foveate.plot.one_dimension import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "report.html"
SMALL_CURVES = "Lines: evaluations during training on the first {} examples of val. Circles: evaluations on all of val."


def write_report(
    directory: Path,
    title: str,
    runs: Sequence[ReportRun],
    *,
    about: str = "",
    data: DataRoot = None,
    split: str = "val",
    examples: int = 4,
    commands: Sequence[tuple[str, str]] = (),
    progress: bool = False,
) -> Path:
    """Write `report.html`: a table of the runs, their curves, the same examples for all of them, and what to do next.

    The page is one self-contained file: styles and images are inside it.

    Args:
        directory: to write to; created if needed.
        title: of the page.
        runs: of one task, on the same data.
        about: what was done, in a sentence or two.
        data: directory of the data, None for embedded data.
        split: of the examples; the metrics are those of the runs.
        examples: number of examples to draw; 0 for none.
        commands: what to do next, as pairs of purpose and command; shown before the commands of the task.
        progress: show a progress bar while examples are drawn.

    Failures are drawn after the examples, as many, chosen by the evaluations of the runs on val.

    Returns:
        the file. Raises DataError for no runs, for runs of several tasks and for a run that was never evaluated.
    """
    tasks = sorted({run.opened[0].task for run in runs})
    if len(tasks) != 1:
        raise DataError(f"report: expected runs of one task, got {', '.join(tasks) or 'no runs'}; name the runs of one")
    parts = [html_text("h1", title), html_text("p", about) if about else "", html_text("p", _made(runs), "soft")]
    parts += html_results(runs)
    curves = draw_curves(runs)
    if curves is not None:
        parts += [html_text("h2", "Curves"), html_sheet(curves, "loss and validation over the steps of every run")]
        parts += [html_legend(curve_lines(runs))]
        small = small_examples(runs)
        parts += [html_text("p", SMALL_CURVES.format(small), "soft")] if small else []
    parts += _examples(runs, data, split, examples, progress)
    parts += _failures(runs, data, examples, progress)
    parts += [html_text("h2", "What to do next"), html_commands([*commands, *_commands(runs)])]
    path = Path(directory) / REPORT
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        temporary.write_text(html_page(title, filter(None, parts)), encoding="utf-8")
    return path


def _made(runs: Sequence[ReportRun]) -> str:
    """Recipe, seeds and versions in one line."""
    recipe, environment = runs[0].opened[0], runs[0].environment()
    versions = environment.get("versions", {})
    known = [f"{name} {versions[name]}" for name in ("foveate", "torch", "python") if versions.get(name)]
    seeds = max(len(run.directories) for run in runs)
    return ", ".join([f"recipe {recipe.name}", f"{seeds} seed{'s' if seeds > 1 else ''}", "split val", *known])


def _examples(runs: Sequence[ReportRun], data: DataRoot, split: str, count: int, progress: bool) -> Iterator[str]:
    shown, task = runs[0].shown, runs[0].opened[1]
    draw = shown.draw
    if draw is None or count == 0:
        return
    yield html_text("h2", shown.title)
    yield html_text("p", shown.about, "soft")
    yield from _drawn(lambda: draw(_predictors(runs), task.examples(split, data), count), count, progress)


def _failures(runs: Sequence[ReportRun], data: DataRoot, count: int, progress: bool) -> Iterator[str]:
    """The examples of val that the runs do worst on; nothing if their values are not known."""
    shown, task = runs[0].shown, runs[0].opened[1]
    draw = shown.draw_failures
    ids = choose_failures(runs, count)
    if draw is None or not ids:
        return
    yield html_text("h2", "Failures")
    yield html_text("p", failure_rule(shown), "soft")
    yield from _drawn(lambda: draw(_predictors(runs), task.examples("val", data), ids), len(ids), progress)


def _predictors(runs: Sequence[ReportRun]) -> dict[str, Any]:
    return {run.name: hub.load(run.directories[0]) for run in runs}


def _drawn(draw: Callable[[], Iterable[DrawnExample]], count: int, progress: bool) -> Iterator[str]:
    try:
        with ProgressBar("report", count, unit="example", show=progress) as bar:
            for example in draw():
                yield html_text("h3", example.title) + html_text("p", example.below, "soft")
                yield html_sheet(example.figure, example.alt)
                bar.update()
    except DataError as error:
        # Images may be missing, or their features imported; the rest of the report needs neither.
        yield html_text("p", f"Examples could not be drawn: {error}", "soft")


def _commands(runs: Sequence[ReportRun]) -> Iterator[tuple[str, str]]:
    """What can be done with the best run, and how to train another one."""
    recipe, chosen = runs[0].opened[0], _best_run(runs)
    directory = str(chosen.directories[0])
    for purpose, command in runs[0].shown.commands:
        yield purpose, command.replace("RUN", shlex.quote(directory))
    yield f"evaluate {chosen.name} on the test split", f"foveate evaluate {shlex.quote(directory)} --split test"
    yield "train with another mechanism from the beginning", f"foveate train {recipe.name} mechanism=tvmax"
    yield "list the recipes, the mechanisms and their options", "foveate list"
    yield "explore in the browser", "foveate studio"


def _best_run(runs: Sequence[ReportRun]) -> ReportRun:
    objective = runs[0].opened[1].objective
    return max(runs, key=lambda run: mean(run.values(objective) or [float("-inf")]))


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


def draw_curves(runs: Sequence[ReportRun]) -> Figure | None:
    """Training loss and validation objective over the steps, one line per seed, in the style of `curve_lines`.

    The line on the right joins the small evaluations of a run, and circles are its evaluations on all of val; without
    small ones it joins the circles. Runs without a log have no line on the left; returns None if no run has one.
    """
    if not any(log for run in runs for log in run.logs):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.3), layout="constrained", facecolor=PAPER)
    left, right = figure.subplots(1, 2)
    objective = runs[0].opened[1].objective
    measure = measure_of(objective, runs[0].shown)
    for (_, colour, dashes), run in zip(curve_lines(runs), runs, strict=True):
        style: dict[str, Any] = {"color": colour, "linestyle": (0, dashes) if dashes else "solid", "linewidth": 1.5}
        for log, history in zip(run.logs, run.histories, strict=True):
            left.plot(*_points(log, "train", "loss"), **style)
            small = _points(log, CURVE, objective, measure.factor)
            whole = _series((e.step, measure.factor * e.metrics[objective]) for e in history.evaluations)
            if small[0]:
                right.plot(*small, marker=".", markersize=4, **style)
                right.plot(*whole, "o", markersize=5, markerfacecolor=PAPER, color=colour)
            else:
                right.plot(*whole, marker="o", markersize=4, **style)
    _style(left, "training loss", "")
    _style(right, f"{measure.label} on val", measure.unit)
    return figure


def curve_lines(runs: Sequence[ReportRun]) -> list[tuple[str, str, Sequence[float]]]:
    """The name, the colour and the dashes of every run; no dashes for a solid line."""
    found: list[tuple[str, str, Sequence[float]]] = []
    for number, run in enumerate(runs):
        dash = DASHES[(number + number // len(COLOURS)) % len(DASHES)]  # more runs than colours: vary both
        found.append((run.name, COLOURS[number % len(COLOURS)], () if isinstance(dash, str) else dash[1]))
    return found


def small_examples(runs: Sequence[ReportRun]) -> int:
    """The largest number of examples that a small evaluation of the runs used; 0 if there was none."""
    lines = (line for run in runs for log in run.logs for line in log)
    return max((line["examples"] for line in lines if line["event"] == CURVE), default=0)


def _points(
    log: Sequence[Mapping[str, Any]], event: str, name: str, factor: float = 1.0
) -> tuple[list[float], list[float]]:
    """Steps and numbers of the lines of a log in which the number is known."""
    lines = (line for line in log if line["event"] == event and line.get(name) is not None)
    return _series((line["step"], factor * line[name]) for line in lines)


def _series(points: Iterable[tuple[float, float]]) -> tuple[list[float], list[float]]:
    listed = list(points)
    return [step for step, _ in listed], [value for _, value in listed]


def _style(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=USUAL, color=INK, parse_math=False)
    settings: dict[str, Any] = {"fontsize": SMALL, "color": INK}
    axes.set_xlabel("step", **settings)
    axes.set_ylabel(unit, **settings)
    axes.tick_params(labelsize=SMALL)
    axes.grid(color="#d9dce1", linewidth=0.5)
    axes.margins(x=0.03)
    axes.spines[["top", "right"]].set_visible(False)
