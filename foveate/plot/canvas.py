"""What all plots share: panels, the image below, the colours above. The image is the unit square, y pointing down."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from foveate.errors import ShapeError, WrongValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap, PowerNorm
    from matplotlib.figure import Figure

PANEL = 2.3  # inches
INK, PAPER = "#10131a", "white"
SMALL, USUAL, LARGE = 7, 9, 13  # points
UNIT = "attention relative to uniform"  # 1 is the value of attention without any preference
TICKS = (2, 5, 10, 20, 50, 100, 200, 500)  # of the colour bar of web pages, relative to uniform
STEPS = 24  # colours of that bar
APART = 0.13  # of it, which a label needs
WIDTH = 34  # characters per line of a title


def read_image(where: str, image: Any) -> np.ndarray | None:
    """An image as floats (h, w, 3) from 0 to 1; None stays None.

    Args:
        where: name of the caller, for messages.
        image: (h, w), (h, w, 3) or (h, w, 4), as uint8 or as floats from 0 to 1; an array, tensor or PIL image.

    >>> read_image("example", np.zeros((4, 5), dtype=np.uint8)).shape
    (4, 5, 3)
    """
    if image is None:
        return None
    pixels = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if pixels.ndim == 2:
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    if pixels.ndim != 3 or pixels.shape[-1] not in (3, 4) or 0 in pixels.shape:
        raise ShapeError(
            f"{where}: expected an image (h, w), (h, w, 3) or (h, w, 4), got {pixels.shape}; "
            "put the channels last, for instance with permute(1, 2, 0)"
        )
    whole = pixels.dtype == np.uint8
    pixels = pixels[..., :3].astype(np.float64) / (255 if whole else 1)
    if not (pixels.min() >= 0 and pixels.max() <= 1):
        raise WrongValue(
            f"{where}: expected uint8 or floats from 0 to 1, got floats from {pixels.min():.3g} to {pixels.max():.3g}; "
            "undo the normalisation for the encoder first"
        )
    return pixels


def make_panels(count: int, columns: int, image: np.ndarray | None, width: float = PANEL) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes of some inches, at most `columns` per row, with the aspect ratio of the image."""
    from matplotlib.figure import Figure

    columns = min(count, columns)
    rows = math.ceil(count / columns)
    ratio = 1.0 if image is None else min(3.0, max(1 / 3, image.shape[0] / image.shape[1]))
    size = (width * columns + 0.7, (width * ratio + 0.42) * rows + 0.25)
    figure = Figure(figsize=size, layout="constrained", facecolor=PAPER)
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def draw_image(axes: Axes, image: np.ndarray | None, pale: bool) -> None:
    """Draw the image over the unit square; if `pale`, in light greys, so that the colours above it can be read."""
    ratio = 1.0 if image is None else image.shape[0] / image.shape[1]
    if image is not None:
        shown = image
        if pale:
            shown = np.repeat(0.52 + 0.46 * (image @ [0.299, 0.587, 0.114])[..., None], 3, axis=-1)
        axes.imshow(shown, extent=(0, 1, 1, 0), interpolation="nearest", zorder=0)
    axes.set(xlim=(0, 1), ylim=(1, 0), aspect=ratio, xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set(color="#8a8f98", linewidth=0.6)


def draw_photograph(axes: Axes, image: np.ndarray | None, seen: np.ndarray | None = None) -> None:
    """Draw the image over the unit square with faint colours, for an overlay; what is not `seen` (h, w) is faded."""
    draw_image(axes, image, pale=False)
    if image is None:
        return
    grey = (image @ [0.299, 0.587, 0.114])[..., None]
    shown = grey + 0.25 * (image - grey)
    if seen is not None:
        shown = np.where(seen[..., None], shown, 0.75 + 0.25 * grey)
    axes.images[0].set_data(np.clip(shown, 0, 1))


@lru_cache(maxsize=1)
def glow_colours() -> ListedColormap:
    """From transparent over yellow and orange to red, at most two thirds opaque: a photograph shows through."""
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    stops = {0.0: "#ffe14d00", 0.25: "#ffd21f4d", 0.6: "#ff7a1a94", 1.0: "#d6003cad"}
    colours = LinearSegmentedColormap.from_list("glow", list(stops.items()))(np.linspace(0, 1, 256))
    return ListedColormap(colours, name="foveate glow")


@lru_cache(maxsize=1)
def heat_colours() -> ListedColormap:
    """From transparent over yellow and orange to dark purple, ever darker, so that it survives printing in grey."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    steps = np.linspace(0, 1, 256)
    colours = matplotlib.colormaps["inferno_r"](0.03 + 0.75 * steps)
    colours[:, 3] = 0.88 * np.minimum(1, steps / 0.3)
    return ListedColormap(colours, name="foveate heat")


def heat_scale(top: float, power: float = 0.5) -> PowerNorm:
    """A scale from 0 to `top`; the default square root keeps faint attention visible next to a sharp peak."""
    from matplotlib.colors import PowerNorm

    return PowerNorm(power, vmin=0, vmax=max(top, 1e-9))


def add_scale(figure: Figure, panels: list[Axes], scale: PowerNorm) -> None:
    """Add the colour bar that all panels share."""
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(ScalarMappable(scale, heat_colours()), ax=panels, fraction=0.046, pad=0.02, aspect=28)
    top = float(scale.vmax or 1)
    ticks = [0.0, 1.0] if top >= 1.5 else [0.0]
    bar.set_ticks([*ticks, *(t for t in (top / 4, top) if t > 2 or top < 1.5)])
    bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}" if value < 10 else f"{value:.0f}")
    bar.ax.tick_params(labelsize=SMALL)
    bar.set_label(UNIT, fontsize=SMALL)
    bar.outline.set_linewidth(0.5)


def add_glow_scale(figure: Figure, panels: list[Axes], scale: PowerNorm, peak: float, framed: bool) -> None:
    """Add the bar of an overlay below its panels, in words: even attention is 1. If `framed`, explain the frame."""
    from matplotlib.cm import ScalarMappable

    top = float(scale.vmax or 1)
    figure.set_figheight(figure.get_figheight() + (1.0 if framed else 0.75))
    bar = figure.colorbar(
        ScalarMappable(scale, glow_colours()), ax=panels, location="bottom", aspect=40, pad=0.03, fraction=0.05,
        shrink=0.85,
    )  # fmt: skip
    inner = [1.0] if 2.5 <= top <= 9 else []  # else its label would touch another
    bar.set_ticks(
        [0.0, *inner, top], labels=["none", *("even" for _ in inner), f"{'≥ ' if peak > 1.05 * top else ''}{top:.1f}×"]
    )
    bar.ax.tick_params(labelsize=LARGE - 2)
    explained = "attention, compared with an even spread (1×)" + (
        "\ndashed frame: what the model sees" if framed else ""
    )
    bar.set_label(explained, fontsize=LARGE - 2, color=INK)
    bar.outline.set_linewidth(0.5)


def outlined(width: float = 1.2) -> list[Any]:
    """Path effects that draw a light outline around a dark line, so that it is visible on any image."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=width + 1.6, foreground=PAPER, alpha=0.85), Normal()]


def set_title(axes: Axes, title: str | None, below: str = "", size: int = USUAL, width: int = WIDTH) -> None:
    """Set the title above a panel and, in a smaller font, the text below it."""
    if title:
        axes.set_title(fill(title, width), fontsize=size, color=INK, pad=4, parse_math=False)
    if below:
        axes.set_xlabel(below, fontsize=SMALL, color=INK, labelpad=3)


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
    """Places from 0 to 1 along a bar that ends at `top`, each with its label, relative to uniform.

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
