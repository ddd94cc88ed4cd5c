"""Small charts as SVG, in the colours of the page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 30


class Axes:
    """Places on a chart, from the ranges of what is drawn.

    Args:
        x, y: least and greatest value; an empty range is widened.

    >>> Axes((0, 1), (0, 2)).at(0, 0)
    '64.0 190.0'
    """

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x0, self.x1 = x[0], x[1] if x[1] > x[0] else x[0] + 1
        self.y0, self.y1 = y[0], y[1] if y[1] > y[0] else y[0] + 1

    def across(self, x: float) -> float:
        """From the left, in units of the drawing."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / (self.x1 - self.x0)

    def down(self, y: float) -> float:
        """From the top."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - self.y0) / (self.y1 - self.y0)

    def at(self, x: float, y: float) -> str:
        """Both, as in a path."""
        return f"{self.across(x):.1f} {self.down(y):.1f}"

    def bars(self, heights: Sequence[float], kinds: Sequence[str]) -> str:
        """One bar per height at 0, 1, ..., from the lowest value up, each of its own kind."""
        wide = (WIDTH - LEFT - RIGHT) / max(1, len(heights))
        return "".join(
            f'<rect class="{kind}" x="{LEFT + n * wide:.1f}" width="{max(0.6, wide - min(2, 0.2 * wide)):.1f}" '
            f'y="{self.down(height):.1f}" height="{max(0.0, HEIGHT - BOTTOM - self.down(height)):.1f}"/>'
            for n, (height, kind) in enumerate(zip(heights, kinds, strict=True))
        )

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> str:
        """A curve."""
        path = "L".join(self.at(x, y) for x, y in zip(xs, ys, strict=True))
        return f'<path class="{kind}" d="M{path}"/>'

    def dots(self, xs: Sequence[float], ys: Sequence[float], kind: str, radius: float = 4) -> str:
        """Points."""
        return "".join(
            f'<circle class="{kind}" cx="{self.across(x):.1f}" cy="{self.down(y):.1f}" r="{radius}"/>'
            for x, y in zip(xs, ys, strict=True)
        )

    def level(self, y: float, text: str) -> str:
        """A horizontal line with a label."""
        place = self.down(y)
        return (
            f'<line class="fv-level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
            f'<text class="fv-level-text" x="{WIDTH - RIGHT}" y="{place - 6:.1f}" text-anchor="end">'
            f"{escape(text)}</text>"
        )


def chart(title: str, inside: str, axes: Axes, *, below: str = "", is_counted: bool = False) -> str:
    """A chart with its title, the ends of its vertical axis, and what the horizontal one means.

    Args:
        title: above; also what a screen reader says.
        inside: drawn by the axes.
        axes: of the chart.
        below: the meaning of the horizontal axis.
        is_counted: the horizontal axis has whole numbers, which are bars with their own labels.
    """
    ends = "".join(
        f'<text x="{LEFT - 8}" y="{axes.down(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>' for y in (axes.y0, axes.y1)
    )
    floor = HEIGHT - BOTTOM
    base = f'<line class="fv-axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
    place = HEIGHT - (4 if is_counted else 8)
    note = (
        f'<text x="{LEFT if not is_counted else WIDTH - RIGHT}" y="{place}" {"text-anchor=end" if is_counted else ""}>'
    )
    return (
        f'<figure class="fv-chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{base}{inside}{ends}'
        f"{note}{escape(below)}</text></svg></figure>"
    )
