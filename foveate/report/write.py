"""Write the report of runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from foveate.data.writing import appearing
from foveate.errors import DataError
from foveate.report.curves import draw_curves
from foveate.report.measures import STEP_TIME, measure_of, split_rivals
from foveate.report.page import html_cell, html_commands, html_figure, html_page, html_table, html_text
from foveate.report.runs import ReportRun
from foveate.report.table import headlines
from foveate.report.tasks import SECTIONS

REPORT = "report.html"


def write_report(
    folder: Path,
    title: str,
    runs: Sequence[ReportRun],
    *,
    about: str = "",
    data: Path | None = None,
    split: str = "val",
    examples: int = 4,
    commands: Sequence[tuple[str, str]] = (),
    progress: bool = False,
) -> Path:
    """Write `report.html`: a table of the runs, their curves, the same examples for all of them, how to go on.

    The page is one file that fetches nothing: styles and pictures are inside it.

    Args:
        folder: to write it into, made when absent.
        title: of the page.
        runs: of one task, on the same data.
        about: what was done, in a sentence or two.
        data: folder of the data, None for embedded data.
        split: the examples are of; the numbers are those of the runs.
        examples: how many, for tasks that have a row in `SECTIONS`; 0 for none.
        commands: what to do next, before what is offered for each run anyway, as (what it does, command).
        progress: draw a bar while examples are drawn.

    Returns:
        the file. No runs, runs of several tasks and a run that was never evaluated raise DataError.
    """
    tasks = sorted({run.opened[0].task for run in runs})
    if len(tasks) != 1:
        raise DataError(f"report: expected runs of one task, got {', '.join(tasks) or 'no runs'}; name the runs of one")
    parts = [html_text("h1", title), html_text("p", about) if about else "", html_text("p", _made(runs), "soft")]
    parts += _tables(runs)
    curves = draw_curves(runs)
    if curves is not None:
        parts += [html_text("h2", "Curves"), html_figure(curves, "loss and validation over the steps of every run")]
    parts += _examples(runs, tasks[0], data, split, examples, progress)
    parts += [html_text("h2", "How to go on"), html_commands([*commands, *_commands(runs, tasks[0])])]
    path = Path(folder) / REPORT
    path.parent.mkdir(parents=True, exist_ok=True)
    with appearing(path) as aside:
        aside.write_text(html_page(title, filter(None, parts)), encoding="utf-8")
    return path


def _made(runs: Sequence[ReportRun]) -> str:
    """Recipe, seeds and versions in one line."""
    recipe, environment = runs[0].opened[0], runs[0].environment()
    versions = environment.get("versions", {})
    known = [f"{name} {versions[name]}" for name in ("foveate", "torch", "python") if versions.get(name)]
    seeds = max(len(run.folders) for run in runs)
    return ", ".join([f"recipe {recipe.name}", f"{seeds} seed{'s' if seeds > 1 else ''}", "split val", *known])


def _tables(runs: Sequence[ReportRun]) -> Iterator[str]:
    """The numbers that matter most, and all of them folded away."""
    names = list(dict.fromkeys([STEP_TIME, *(name for run in runs for each in run.numbers() for name in each)]))
    own, rivals = split_rivals(names)
    first = list(headlines(runs))
    yield html_text("h2", "Results")
    yield _table(runs, first, rivals)
    yield (
        html_text(
            "p",
            "The best of a row is bold. Columns in grey are maps that know nothing: what looking anywhere gives.",
            "soft",
        )
        if rivals
        else ""
    )
    rest = sorted(set(own) - set(first))
    if rest:
        yield f"<details><summary>All other numbers ({len(rest)})</summary>{_table(runs, rest, rivals)}</details>"


def _table(runs: Sequence[ReportRun], names: Sequence[str], rivals: dict[str, dict[str, str]]) -> str:
    """A row a number, a column a run, then a column a rival that has any of these numbers."""
    shown = {rival: told for rival, told in rivals.items() if any(name in told for name in names)}
    head = [html_cell("th", "")]
    head += [html_cell("th", run.name) for run in runs] + [html_cell("th", rival, "rival") for rival in shown]
    return html_table(head, [_row(runs, name, [told.get(name) for told in shown.values()]) for name in names])


def _row(runs: Sequence[ReportRun], name: str, rivals: Sequence[str | None]) -> list[str]:
    told = measure_of(name)
    values = [run.values(name) for run in runs]
    best = _best(values, told.better)
    arrow = {"higher": "↑", "lower": "↓", None: ""}[told.better]
    cells = [html_cell("td", told.label, note=" ".join(filter(None, (told.unit, arrow))))]
    cells += [html_cell("td", told.spread(own), "best" if own and mean(own) == best else "") for own in values]
    # a rival has the same number in every run and every seed
    return cells + [
        html_cell("td", told.spread(runs[0].values(rival)[:1]) if rival else "", "rival") for rival in rivals
    ]


def _best(values: Sequence[Sequence[float]], better: str | None) -> float | None:
    """The best mean, where there are several to choose from and one direction is better."""
    means = [mean(own) for own in values if own]
    if better is None or len(means) < 2:
        return None
    return max(means) if better == "higher" else min(means)


def _examples(
    runs: Sequence[ReportRun], task: str, data: Path | None, split: str, count: int, progress: bool
) -> Iterator[str]:
    section = SECTIONS.get(task)
    if section is None or count == 0:
        return
    yield html_text("h2", section.title)
    yield html_text("p", section.about, "soft")
    drawn = section.draw(runs, data, split, count)
    for example in tqdm(drawn, desc="report", unit=" examples", disable=None if progress else True):
        yield html_text("h3", example.title) + html_text("p", example.below, "soft")
        yield html_figure(example.figure, example.alt)


def _commands(runs: Sequence[ReportRun], task: str) -> Iterator[tuple[str, str]]:
    """What can be done with the best run, and how to train one like it."""
    recipe, chosen = runs[0].opened[0], _best_run(runs)
    folder = str(chosen.folders[0])
    section = SECTIONS.get(task)
    yield from section.commands(folder) if section else ()
    yield f"measure {chosen.name} on the test split", f"foveate evaluate {shlex.quote(folder)} --split test"
    yield "train with another attention, from the beginning", f"foveate train {recipe.name} mechanism=tvmax"
    yield "see the recipes, the mechanisms and their options", "foveate list"
    yield "look in the browser", "foveate studio"


def _best_run(runs: Sequence[ReportRun]) -> ReportRun:
    objective = runs[0].opened[1].objective
    return max(runs, key=lambda run: mean(run.values(objective) or [float("-inf")]))
