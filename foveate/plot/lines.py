"""Densities and weights in one dimension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from foveate.attention import Attended
from foveate.errors import ShapeError
from foveate.ops.grid import cell_centres_1d
from foveate.plot.canvas import INK, PAPER, SMALL, UNIT, USUAL
from foveate.plot.heat import AttentionLike, ExampleIndex, has_bounded_support, select_example, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, which can be told apart with any kind of colour vision, each with its own dash pattern
# for grey printing.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("solid", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1)), (0, (2, 2)))
POINTS = 1000


def profiles(attended: Mapping[str, AttentionLike], *, index: ExampleIndex = 0, title: str | None = None) -> Figure:
    """Plot several attentions over the unit interval in one figure, densities as curves and weights as steps.

    The height is relative to uniform attention. A tick on the axis marks where a density of bounded support ends.

    Args:
        attended: what each mechanism returned over a grid (N,), or one-dimensional densities, by label.
        index: the example, or (example, query, ...) if there are query axes.
        title: above the figure.

    Returns:
        The figure; `figure.savefig(path)` writes it.

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
    for n, (label, each) in enumerate(attended.items()):
        one = select_example("profiles", each, index)
        if one.grid is not None and len(one.grid) != 1:
            raise ShapeError(
                f"profiles: expected attention in one dimension, got grid {one.grid}; use plot.show for images"
            )
        _draw_profile(axes, one, f"{label} ({summarise(one)})", n)
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.set_ylabel(UNIT, fontsize=SMALL)
    axes.tick_params(labelsize=SMALL)
    axes.spines[["top", "right"]].set_visible(False)
    for text in figure.legend(fontsize=SMALL, frameon=False, loc="outside right upper").get_texts():
        text.set_parse_math(False)
    if title:
        axes.set_title(title, fontsize=USUAL, color=INK, parse_math=False)
    return figure


def _draw_profile(axes: Axes, one: Attended, label: str, number: int) -> None:
    """A density as a curve, with ticks where a bounded support ends, or weights as steps."""
    style: dict[str, Any] = {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number % len(DASHES)],
        "linewidth": 1.6,
    }
    if one.density is None:
        height = one.weights[0] * one.weights.shape[-1]
        edges = torch.linspace(0, 1, len(height) + 1)
        axes.stairs(height.numpy(), edges.numpy(), label=label, **style)
        return
    points = cell_centres_1d(POINTS, dtype=torch.float64)
    height = one.density.pdf(points).double()
    axes.plot(points[:, 0].numpy(), height.numpy(), label=label, **style)
    if has_bounded_support(one.density):
        ends = points[1:, 0][(height > 0).diff()].numpy()
        axes.plot(ends, 0 * ends, "|", color=style["color"], markersize=11, markeredgewidth=2, clip_on=False)
