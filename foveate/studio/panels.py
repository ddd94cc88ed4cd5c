"""Maps as HTML: the image, the colours of `foveate.plot` over it, and lines as SVG; a few milliseconds per map."""

from __future__ import annotations

import io
from collections.abc import Mapping
from html import escape

import numpy as np
import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.ops.density import Density
from foveate.plot.canvas import heat_colours, heat_scale
from foveate.plot.heat import has_bounded_support, has_several_components, heat, select_example, summarise
from foveate.plot.layers import edge_lines, smooth
from foveate.report.page import data_uri

LEVELS = (0.5, 0.95)  # of a component's mass inside its ellipses
SIDE = 100  # units of the drawing
ELLIPSES_NOTE = "Ellipses contain 50 and 95 % of a component's mass; outside of a thick line the attention is zero."


def data_address(pixels: np.ndarray) -> str:
    """Pixels as a data URL."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return data_uri(file.getvalue())


def draw_panels(
    pixels: np.ndarray | None, attended: Mapping[str, Attended], truth: np.ndarray | None = None, note: str = ""
) -> str:
    """Several attentions to one image side by side, with one colour scale, as HTML.

    Args:
        pixels: (h, w, 3) uint8, or None to draw without an image.
        attended: attention of batch size one, by title.
        truth: (h, w) booleans, drawn in its own panel and compared with each map.
        note: a sentence below the panels.

    >>> uniform = Attended(torch.zeros(1, 1), torch.full((1, 4), 0.25), grid=(2, 2))
    >>> draw_panels(None, {"<uniform>": uniform}).count("&lt;uniform&gt;")
    2
    """
    examples = {title: select_example("panels", one) for title, one in attended.items()}
    shown = {title: heat(one, cells=False) for title, one in examples.items()}
    top = max((float(values.max()) for values in shown.values()), default=1.0)
    behind = "" if pixels is None else _image(_pale(pixels))
    ratio = 1.0 if pixels is None else pixels.shape[1] / pixels.shape[0]
    region = None if truth is None else torch.from_numpy(np.ascontiguousarray(truth))
    parts = [] if pixels is None else [_panel("image", _image(pixels), "", ratio)]
    for title, one in examples.items():
        layers = behind + _heat(shown[title], top, is_grid=one.density is None) + _lines(one)
        parts.append(_panel(title, layers, summarise(one, region), ratio))
    if region is not None:
        area = region.float().mean()
        inside = region.float() / area.clamp_min(1e-9)
        parts.append(
            _panel("true region", behind + _heat(inside, top, is_grid=False), f"area {100 * area:.0f} %", ratio)
        )
    scale = f'<p class="fv-note">Darkest colour: {top:.3g} times uniform attention. {escape(note)}</p>'
    return f'<div class="fv-panels">{"".join(parts)}</div>{scale}'


def _panel(title: str, layers: str, below: str, ratio: float) -> str:
    label = escape(f"{title}, {below}" if below else title)
    return (
        f'<figure class="fv-panel"><figcaption>{escape(title)}</figcaption>'
        f'<div class="fv-stack" style="aspect-ratio:{ratio:.4f}" role="img" aria-label="{label}">{layers}</div>'
        f"<small>{escape(below)}&nbsp;</small></figure>"
    )


def _image(pixels: np.ndarray) -> str:
    return f'<img alt="" src="{data_address(pixels)}">'


def _pale(pixels: np.ndarray) -> np.ndarray:
    """The image in light greys, so that the colours above it can be read."""
    grey = 0.52 * 255 + 0.46 * (pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32))
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)


def _heat(values: Tensor, top: float, *, is_grid: bool) -> str:
    fine = (smooth(values) if is_grid else values).numpy()
    colours = heat_colours()(heat_scale(top)(fine), bytes=True)
    return f'<img alt="" src="{data_address(colours)}">'


def _lines(one: Attended) -> str:
    """The ellipses of a density, or the edge of the support of sparse weights."""
    if one.density is not None:
        return _svg(_ellipses(one.density))
    support = (one.map()[0] > 0).numpy()
    return "" if support.all() or not support.any() else _svg(f'<path class="fv-edge" d="{_edges(support)}"/>')


def _svg(inside: str) -> str:
    return f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">{inside}</svg>'


def _ellipses(density: Density) -> str:
    """Ellipses around 50 and 95 % of each component, and a thick one around a bounded support."""
    several, drawn = has_several_components(density), []
    levels = [(level, "fv-part" if several and level == 0.5 else "fv-line") for level in LEVELS]
    for level, kind in [*levels, *([(1.0, "fv-edge")] if has_bounded_support(density) else [])]:
        each = density.ellipses(level)
        rows = zip(each.centre.tolist(), each.radii.tolist(), each.angle.tolist(), each.weight.tolist(), strict=True)
        for (x, y), (along, beside), angle, weight in rows:
            if weight > 0:
                turn = f"translate({SIDE * x:.2f} {SIDE * y:.2f}) rotate({np.degrees(angle):.2f})"
                drawn.append(
                    f'<ellipse class="{kind}" rx="{SIDE * along:.2f}" ry="{SIDE * beside:.2f}" transform="{turn}"/>'
                )
    return "".join(drawn)


def _edges(inside: np.ndarray) -> str:
    """The path around the cells of a region, along their edges."""
    ends = SIDE * np.array(edge_lines(inside))
    return "".join(f"M{x0:.2f} {y0:.2f}L{x1:.2f} {y1:.2f}" for (x0, y0), (x1, y1) in ends)
