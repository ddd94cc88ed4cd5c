"""Curves of trainings: the loss of every run and the number that should become large."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foveate.plot.canvas import INK, PAPER, SMALL, USUAL
from foveate.plot.lines import COLOURS, DASHES
from foveate.report.measures import measure_of
from foveate.report.runs import ReportRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_curves(runs: Sequence[ReportRun]) -> Figure | None:
    """The loss in training and the objective on the validation split over the steps, every seed a line.

    Runs without a log have no line on the left; None when no run has one.
    """
    if not any(log for run in runs for log in run.logs):
        return None
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 3.3), layout="constrained", facecolor=PAPER)
    left, right = figure.subplots(1, 2)
    objective = runs[0].opened[1].objective
    told = measure_of(objective)
    for number, run in enumerate(runs):
        dash = (number + number // len(COLOURS)) % len(DASHES)  # more runs than colours: another pair of both
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[dash], "linewidth": 1.5}
        for seed, (log, history) in enumerate(zip(run.logs, run.histories, strict=True)):
            label = {"label": run.name} if seed == 0 else {}
            lines = [line for line in log if line["event"] == "train" and line["loss"] is not None]
            left.plot([line["step"] for line in lines], [line["loss"] for line in lines], **style)
            points = [(e.step, told.factor * e.metrics[objective]) for e in history.evaluations]
            right.plot(*zip(*points, strict=True), marker="o", markersize=4, **style, **label)
    _dress(left, "loss in training", "")
    _dress(right, f"{told.label} on val", told.unit)
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=SMALL, frameon=False
    )
    return figure


def _dress(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, fontsize=USUAL, color=INK, parse_math=False)
    settings: dict[str, Any] = {"fontsize": SMALL, "color": INK}
    axes.set_xlabel("step", **settings)
    axes.set_ylabel(unit, **settings)
    axes.tick_params(labelsize=SMALL)
    axes.grid(color="#d9dce1", linewidth=0.5)
    axes.margins(x=0.03)
    axes.spines[["top", "right"]].set_visible(False)
