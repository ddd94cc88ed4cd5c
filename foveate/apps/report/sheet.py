"""Figures of several panels as HTML that fits any width: one image per panel; titles, legends and scales are text."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.apps.report.page import data_uri, html_text
from foveate.plot.canvas import bar_ticks, css_gradient

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

COLOUR_BAR = "<colorbar>"  # matplotlib's label of the axes of a colour bar
UNIT = "attention per area, compared with looking evenly at the whole image (1×)"
MANY = 9  # panels from which they are smaller
PAD = 3  # pixels around axes with labels


def html_sheet(figure: Figure, alt: str, dpi: int = 120) -> str:
    """A matplotlib figure as a grid of its panels, which wraps on narrow screens.

    The titles and labels of maps and the colour bar become text, so that they have the size of text at any
    width. Panels with other axes, for instance curves, keep what is drawn around them.

    Args:
        figure: of one or several axes.
        alt: the whole in words.
        dpi: pixels per inch.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)  # matplotlib has no types for it
    figure.set_dpi(dpi)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    panels = [axes for axes in figure.axes if axes.get_label() != COLOUR_BAR]
    bars = [axes for axes in figure.axes if axes.get_label() == COLOUR_BAR]
    charts = _chart_boxes([axes for axes in panels if not axes.images])
    inside = "".join(_map(axes, pixels) if axes.images else _chart(axes, charts[axes], pixels) for axes in panels)
    kind = "charts" if not any(axes.images for axes in panels) else "many" if len(panels) >= MANY else "maps"
    parts = [f'<div class="sheet {kind}" role="group" aria-label="{escape(alt)}">{inside}</div>']
    parts += [_colour_bar(axes.get_ylim()[1]) for axes in bars[:1]]
    lines = [line for line in re.split(r"\n| {3,}", figure.get_supxlabel()) if line]
    return "".join([*parts, html_text("p", "; ".join(lines), "soft") if lines else ""])


def _map(axes: Axes, pixels: np.ndarray) -> str:
    """What is inside of the axes, below its title."""
    title, below = " ".join(axes.get_title().split()), axes.get_xlabel()
    image = _image(_crop(pixels, axes.get_window_extent()), ", ".join(filter(None, (title, below))))
    return f"<figure>{html_text('figcaption', title)}{image}{html_text('small', below) if below else ''}</figure>"


def _chart_boxes(charts: Sequence[Axes]) -> dict[Axes, Bbox]:
    """The places of axes with everything around them, all of the same height."""
    from matplotlib.transforms import Bbox

    boxes = {axes: axes.get_tightbbox() or axes.get_window_extent() for axes in charts}
    low, high = min((box.y0 for box in boxes.values()), default=0), max((box.y1 for box in boxes.values()), default=0)
    return {axes: Bbox([[box.x0, low], [box.x1, high]]) for axes, box in boxes.items()}


def _chart(axes: Axes, box: Bbox, pixels: np.ndarray) -> str:
    return f"<figure>{_image(_crop(pixels, box, PAD), axes.get_title())}</figure>"


def _crop(pixels: np.ndarray, box: Bbox, pad: int = 0) -> np.ndarray:
    """The pixels in a box of matplotlib, whose origin is at the bottom."""
    height, width = pixels.shape[:2]
    left, right = max(0, round(box.x0) - pad), min(width, round(box.x1) + pad)
    top, bottom = max(0, height - round(box.y1) - pad), min(height, height - round(box.y0) + pad)
    return pixels[top:bottom, left:right, :3]


def _image(pixels: np.ndarray, alt: str) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
    return f'<img alt="{escape(alt)}" src="{data_uri(file.getvalue())}">'


def _colour_bar(top: float) -> str:
    ticks = "".join(f'<span style="left:{100 * place:.1f}%">{text}</span>' for place, text in bar_ticks(top))
    return (
        f'<div class="scale" role="img" aria-label="colours from 0 to {top:.3g} times the even share"><p>{UNIT}</p>'
        f'<div class="ramp" style="background:{css_gradient()}"></div><div class="ticks">{ticks}</div></div>'
    )


def html_legend(lines: Iterable[tuple[str, str, Sequence[float]]]) -> str:
    """A legend of lines, from their names, colours and dashes, which are empty for a solid line.

    >>> "stroke-dasharray" in html_legend([("softmax", "#0072b2", ())])
    False
    """
    items = []
    for name, colour, dashes in lines:
        pattern = f' stroke-dasharray="{" ".join(f"{2 * step:g}" for step in dashes)}"' if dashes else ""
        line = f'<line x1="0" x2="30" y1="5" y2="5" stroke="{colour}" stroke-width="2.5"{pattern}/>'
        items.append(f'<li><svg width="30" height="10" aria-hidden="true">{line}</svg>{escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'
