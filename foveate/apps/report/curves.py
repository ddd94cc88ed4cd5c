"""Training curves: the loss of every run and its objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foveate.apps.report.runs import ReportRun, measure_of
from foveate.lab.train.records import CURVE
from foveate.plot.canvas import INK, PAPER, SMALL, USUAL
from foveate.plot.lines import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
