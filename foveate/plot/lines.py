"""Densities and weights on a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from foveate.errors import ShapeError
from foveate.ops.grid import cell_centres_1d
from foveate.plot.canvas import INK, PAPER, SMALL, USUAL
from foveate.plot.looks import Index, Seen, is_sparse, numbers, pick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which all kinds of colour vision tell apart, each with a dash of its own for grey printing
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1)), (0, (2, 2)))
POINTS = 1000


def profiles(attended: Mapping[str, Seen], *, index: Index = 0, title: str | None = None) -> Figure:
    """Draw attention on the unit interval, densities as curves and weights as steps, over each other.

    The height is in multiples of the even share. A tick on the axis marks where a density with an edge ends.

    Args:
        attended: what each mechanism returned over a grid (N,), or densities of the line, by label.
        index: the example, or (example, query, ...) where there are query axes.
        title: above the figure.

    >>> import foveate as fv
    >>> scores, values = torch.randn(1, 12), torch.randn(1, 12, 8)
    >>> names = ("softmax", "continuous-sparsemax")
    >>> figure = profiles({name: fv.mechanism(name)(scores, values, grid=(12,)) for name in names})
    >>> len(figure.axes[0].get_lines()) >= 2
    True
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.6), layout="constrained", facecolor=PAPER)
    axes = figure.subplots()
    points = cell_centres_1d(POINTS, dtype=torch.float64)
    for n, (label, seen) in enumerate(attended.items()):
        one = pick("profiles", seen, index)
        if one.grid is not None and len(one.grid) != 1:
            raise ShapeError(
                f"profiles: expected attention over a line, got grid {one.grid}; use plot.show for pictures"
            )
        style: dict[str, Any] = {
            "color": COLOURS[n % len(COLOURS)],
            "linestyle": DASHES[n % len(DASHES)],
            "linewidth": 1.6,
        }
        label = f"{label} ({numbers(one)})"
        if one.density is None:
            height = one.weights[0] * one.weights.shape[-1]
            edges = torch.linspace(0, 1, len(height) + 1)
            axes.stairs(height.numpy(), edges.numpy(), label=label, **style)
            continue
        height = one.density.pdf(points).double()
        axes.plot(points[:, 0].numpy(), height.numpy(), label=label, **style)
        if is_sparse(one.density):
            ends = points[1:, 0][(height > 0).diff()].numpy()
            axes.plot(ends, 0 * ends, "|", color=style["color"], markersize=11, markeredgewidth=2, clip_on=False)
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.set_ylabel("times the even share", fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legend(fontsize=SMALL, frameon=False, loc="outside right upper").get_texts():
        text.set_parse_math(False)
    if title:
        axes.set_title(title, fontsize=USUAL, color=INK, parse_math=False)
    return figure
