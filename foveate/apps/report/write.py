"""The report of runs as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from foveate.apps.report.curves import curve_lines, draw_curves, small_examples
from foveate.apps.report.failures import choose_failures, failure_rule
from foveate.apps.report.page import html_commands, html_page, html_text
from foveate.apps.report.runs import ReportRun
from foveate.apps.report.sheet import html_legend, html_sheet
from foveate.apps.report.tables import html_results
from foveate.errors import DataError
from foveate.io import ProgressBar, atomic_write
from foveate.lab import hub
from foveate.lab.data.samples import DataRoot
from foveate.lab.tasks.presentation import DrawnExample

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
