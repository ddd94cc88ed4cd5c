"""The most important metrics of several runs in one short table."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from foveate.apps.report.measures import STEP_TIME, measure_of
from foveate.apps.report.runs import ReportRun


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
