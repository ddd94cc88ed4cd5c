"""The colour bar for web pages: the colours of all maps over white paper, and where its ticks are."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.plot.canvas import heat_colours, heat_scale

TICKS = (2, 5, 10, 20, 50, 100, 200, 500)  # in multiples of the even share
STEPS = 24  # colours of the bar
APART = 0.13  # of the bar, which a label needs


def css_gradient() -> str:
    """The colours from 0 to the largest value as a CSS background.

    >>> css_gradient().startswith("linear-gradient(90deg, #")
    True
    """
    return f"linear-gradient(90deg, {', '.join(on_paper(heat_colours()(n / (STEPS - 1))) for n in range(STEPS))})"


def on_paper(colour: Sequence[float]) -> str:
    """A colour over white paper, opaque, so that dark letters can be read on it on any page.

    >>> on_paper((0.0, 0.0, 0.0, 0.5))
    '#808080'
    """
    *parts, alpha = colour
    return "#" + "".join(f"{round(255 * (1 - alpha + alpha * part)):02x}" for part in parts)


def bar_ticks(top: float) -> list[tuple[float, str]]:
    """Places from 0 to 1 along a bar that ends at `top`, each with its label, in multiples of the even share.

    >>> bar_ticks(10.0)[0], bar_ticks(10.0)[-1]
    ((0.0, '0'), (1.0, '10×'))
    """
    scale = heat_scale(max(top, 1e-9))
    inner = [(1.0, "even (1×)")] if top > 1.8 and scale(1) > 0.14 else []
    inner += [(float(n), f"{n}×") for n in TICKS if n < top and scale(n) < 1 - APART - 0.03 and scale(n / 2) > 0.05]
    kept: list[tuple[float, str]] = []
    for value, text in inner:
        if not kept or scale(value) - kept[-1][0] > (APART + 0.05 if len(kept[-1][1]) > 4 else APART):
            kept.append((float(scale(value)), text))
    return [(0.0, "0"), *kept, (1.0, f"{top:.1f}×" if top < 10 else f"{top:.0f}×")]
