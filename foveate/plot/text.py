"""Words shaded by their attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from foveate.errors import ShapeError
from foveate.ops.density import Density
from foveate.plot.canvas import INK, PAPER, SMALL, USUAL, heat_colours, heat_scale
from foveate.plot.looks import Index, Seen, pick

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, GAP, MARGIN = 0.44, 0.07, 0.1  # inches: from line to line, between words, around all
LETTERS = 12  # points


def words(
    tokens: Sequence[str],
    attended: Seen,
    *,
    index: Index = 0,
    title: str | None = None,
    top: float | None = None,
    width: float = 6.0,
) -> Figure:
    """Write words, each on the colour of its attention and with its share of it in percent.

    Args:
        tokens: T words of a question or a caption.
        attended: attention over at least T words, without a grid or over a grid (T',); what comes after is padding. Or
            a density, whose mass is collected in T equal cells.
        index: the example, or (example, query, ...) where there are query axes.
        title: above the words.
        top: upper end of the colours, in even shares (1/T); the largest value shown when absent. Give the same to
            figures that are to be compared.
        width: of the figure, in inches; lines break there.

    >>> import foveate as fv
    >>> seen = fv.Attended(torch.zeros(1, 8), torch.tensor([[0.1, 0.2, 0.7]]))
    >>> figure = words(["which", "red", "star"], seen)
    >>> [text.get_text() for text in figure.texts]
    ['which', '10', 'red', '20', 'star', '70']
    """
    from matplotlib.figure import Figure

    shares = _shares(tokens, attended, index)
    scale = heat_scale(top or float(shares.max()) * len(tokens), power=1)
    figure = Figure(figsize=(width, 1), facecolor=PAPER)
    places, lines = _set(figure, tokens, width)
    head = 0.2 if title else 0.0
    height = 2 * MARGIN + head + LINE * lines
    figure.set_size_inches(width, height)
    if title:
        figure.text(MARGIN / width, 1 - MARGIN / height, title, fontsize=USUAL, color=INK, va="top", parse_math=False)
    for token, share, (left, line, wide) in zip(tokens, shares.tolist(), places, strict=True):
        middle, base = (left + wide / 2) / width, 1 - (MARGIN + head + LINE * (line + 0.4)) / height
        colour = heat_colours()(scale(share * len(tokens)))
        text = figure.text(middle, base, token, fontsize=LETTERS, color=_letters(colour), ha="center", va="center")
        text.set_parse_math(False)
        text.set_bbox({"facecolor": colour, "edgecolor": "#c8ccd2", "linewidth": 0.5, "pad": 2.6})
        below = 1 - (MARGIN + head + LINE * (line + 0.92)) / height
        figure.text(middle, below, f"{100 * share:.0f}", fontsize=SMALL - 1, color=INK, ha="center", va="baseline")
    return figure


def _shares(tokens: Sequence[str], attended: Seen, index: Index) -> torch.Tensor:
    """(T,) share of each word."""
    one = pick("words", attended, index)
    if one.grid is not None and len(one.grid) != 1:
        raise ShapeError(f"words: expected attention over words, got grid {one.grid}; use plot.show for pictures")
    if tokens and isinstance(attended, Density):
        return one.map(len(tokens))[0]
    if not tokens or one.weights.shape[-1] < len(tokens):
        raise ShapeError(
            f"words: expected words and a weight for each, got {len(tokens)} and {one.weights.shape[-1]}; "
            "pass the tokens that the model saw"
        )
    return (one.weights if one.density is None else one.map())[0, : len(tokens)]


def _set(figure: Figure, tokens: Sequence[str], width: float) -> tuple[list[tuple[float, int, float]], int]:
    """Left end, line and width of every word in inches, and the number of lines."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    places, left, line = [], MARGIN, 0
    for token in tokens:
        probe = figure.text(0, 0, token, fontsize=LETTERS, parse_math=False)
        wide = probe.get_window_extent(renderer).width / figure.dpi + 0.08
        probe.remove()
        if left + wide > width - MARGIN and left > MARGIN:
            left, line = MARGIN, line + 1
        places.append((left, line, wide))
        left += wide + GAP
    return places, line + 1


def _letters(colour: tuple[float, float, float, float]) -> str:
    """Dark or light letters, whichever are easier to read on the colour over white paper."""
    red, green, blue, alpha = colour
    light = 1 - alpha * (1 - (0.299 * red + 0.587 * green + 0.114 * blue))
    return INK if light > 0.55 else PAPER
