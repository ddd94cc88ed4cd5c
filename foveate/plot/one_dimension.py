"""Attention in one dimension: words shaded by it, densities and weights as curves and steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from foveate.errors import ShapeError
from foveate.ops.density import Density
from foveate.plot.canvas import INK, PAPER, SMALL, USUAL, heat_colours, heat_scale
from foveate.plot.heat import AttentionLike, ExampleIndex, select_example

if TYPE_CHECKING:
    from matplotlib.figure import Figure


from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from foveate.attention import Attended
from foveate.ops.grid import cell_centres_1d
from foveate.plot.canvas import UNIT
from foveate.plot.heat import has_bounded_support, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LINE, GAP, MARGIN = 0.44, 0.07, 0.1  # inches: from line to line, between words, around all
FONT = 12  # points


def words(
    tokens: Sequence[str],
    attended: AttentionLike,
    *,
    index: ExampleIndex = 0,
    title: str | None = None,
    top: float | None = None,
    width: float = 6.0,
) -> Figure:
    """Draw words on the colour of their attention, with their weights in percent.

    Args:
        tokens: T words of a question or a caption.
        attended: attention over at least T words, without a grid or over a grid (T',); what follows is padding. Or a
            density, whose mass is collected in T equal cells.
        index: the example, or (example, query, ...) if there are query axes.
        title: above the words.
        top: upper end of the colours, in units of the uniform weight 1/T; the largest value in the figure if absent.
            Pass the same to figures that are to be compared.
        width: of the figure, in inches; longer lines are wrapped.

    Returns:
        The figure; `figure.savefig(path)` writes it.

    >>> import foveate as fv
    >>> seen = fv.Attended(torch.zeros(1, 8), torch.tensor([[0.1, 0.2, 0.7]]))
    >>> figure = words(["which", "red", "star"], seen)
    >>> [text.get_text() for text in figure.texts]
    ['which', '10', 'red', '20', 'star', '70']
    """
    from matplotlib.figure import Figure

    weights = _weights(tokens, attended, index)
    scale = heat_scale(top or float(weights.max()) * len(tokens), power=1)
    figure = Figure(figsize=(width, 1), facecolor=PAPER)
    places, lines = _wrap(figure, tokens, width)
    head = 0.2 if title else 0.0
    height = 2 * MARGIN + head + LINE * lines
    figure.set_size_inches(width, height)
    if title:
        figure.text(MARGIN / width, 1 - MARGIN / height, title, fontsize=USUAL, color=INK, va="top", parse_math=False)
    for token, weight, (left, line, wide) in zip(tokens, weights.tolist(), places, strict=True):
        middle, base = (left + wide / 2) / width, 1 - (MARGIN + head + LINE * (line + 0.4)) / height
        colour = heat_colours()(scale(weight * len(tokens)))
        text = figure.text(middle, base, token, fontsize=FONT, color=_text_colour(colour), ha="center", va="center")
        text.set_parse_math(False)
        text.set_bbox({"facecolor": colour, "edgecolor": "#c8ccd2", "linewidth": 0.5, "pad": 2.6})
        below = 1 - (MARGIN + head + LINE * (line + 0.92)) / height
        figure.text(middle, below, f"{100 * weight:.0f}", fontsize=SMALL - 1, color=INK, ha="center", va="baseline")
    return figure


def _weights(tokens: Sequence[str], attended: AttentionLike, index: ExampleIndex) -> torch.Tensor:
    """(T,), the weight of each word."""
    one = select_example("words", attended, index)
    if one.grid is not None and len(one.grid) != 1:
        raise ShapeError(f"words: expected attention over words, got grid {one.grid}; use plot.show for images")
    if tokens and isinstance(attended, Density):
        return one.map(len(tokens))[0]
    if not tokens or one.weights.shape[-1] < len(tokens):
        raise ShapeError(
            f"words: expected words and a weight for each, got {len(tokens)} and {one.weights.shape[-1]}; "
            "pass the tokens that the model saw"
        )
    return (one.weights if one.density is None else one.map())[0, : len(tokens)]


def _wrap(figure: Figure, tokens: Sequence[str], width: float) -> tuple[list[tuple[float, int, float]], int]:
    """Left end, line and width of every word in inches, and the number of lines."""
    places, left, line = [], MARGIN, 0
    for token in tokens:
        probe = figure.text(0, 0, token, fontsize=FONT, parse_math=False)
        wide = probe.get_window_extent().width / figure.dpi + 0.08
        probe.remove()
        if left + wide > width - MARGIN and left > MARGIN:
            left, line = MARGIN, line + 1
        places.append((left, line, wide))
        left += wide + GAP
    return places, line + 1


def _text_colour(colour: tuple[float, float, float, float]) -> str:
    """Dark or light, whichever is easier to read on the colour over white paper."""
    red, green, blue, alpha = colour
    light = 1 - alpha * (1 - (0.299 * red + 0.587 * green + 0.114 * blue))
    return INK if light > 0.55 else PAPER


# Densities and weights

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
