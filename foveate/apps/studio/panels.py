"""Maps as HTML: the image, the colours of `foveate.plot` over it, and lines as SVG; a few milliseconds per map."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from html import escape

import numpy as np
import torch
from torch import Tensor

from foveate.apps.report.page import data_uri
from foveate.attention import Attended
from foveate.ops.density import Density
from foveate.ops.mixture import Mixture
from foveate.ops.resample import resample_map
from foveate.plot.canvas import bar_ticks, css_gradient, heat_colours, heat_scale
from foveate.plot.heat import (
    background_weight,
    fraction_of_image,
    has_bounded_support,
    has_several_components,
    heat,
    select_example,
)
from foveate.plot.layers import edge_lines, smooth

LEVELS = (0.5, 0.95)  # of a component's mass inside its ellipses
SIDE = 100  # units of the drawing
UNIT = "Attention per area, compared with looking evenly at the whole image (1×)"
LARGE = 40_000  # pixels of an image without transparency from which JPEG is used
LEAST = 8.0  # of the upper end of the colours
LIGHTEST = 0.005  # share of a component that is drawn


def data_address(pixels: np.ndarray) -> str:
    """Pixels as a data URL: PNG, or JPEG for photographs, which would be several times as large."""
    from PIL import Image

    file = io.BytesIO()
    if pixels.shape[-1] == 3 and pixels.shape[0] * pixels.shape[1] > LARGE:
        Image.fromarray(pixels).save(file, "JPEG", quality=88)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    Image.fromarray(pixels).save(file, "PNG", compress_level=1)
    return data_uri(file.getvalue())


def draw_panels(
    pixels: np.ndarray | None,
    attended: Mapping[str, Attended],
    truth: np.ndarray | None = None,
    *,
    size: str = "large",
    with_image: bool = False,
    with_scale: bool = True,
    top: float | None = None,
) -> str:
    """Several attentions to one image side by side, with one colour scale, as HTML.

    Args:
        pixels: (h, w, 3) uint8, or None to draw without an image.
        attended: attention of batch size one, by title.
        truth: (h, w) booleans, outlined on every map and compared with it.
        size: "large", "medium" or "small" maps, a "pair" beside each other, "one" as wide as its place, or a "single"
            larger one.
        with_image: begin with the image itself.
        with_scale: end with the colour bar and what the lines mean.
        top: the upper end of the colours; that of these maps if absent.

    >>> uniform = Attended(torch.zeros(1, 1), torch.full((1, 4), 0.25), grid=(2, 2))
    >>> draw_panels(None, {"<uniform>": uniform}).count("&lt;uniform&gt;")
    2
    """
    examples = {title: select_example("panels", one) for title, one in attended.items()}
    shown = {title: heat(one, cells=False) for title, one in examples.items()}
    top = scale_end(shown.values()) if top is None else top
    behind = "" if pixels is None else draw_pixels(pale(pixels))
    ratio = 1.0 if pixels is None else pixels.shape[1] / pixels.shape[0]
    region = None if truth is None else torch.from_numpy(np.ascontiguousarray(truth))
    outline = "" if truth is None else draw_outline(truth)
    parts = [panel("image", draw_pixels(pixels), (), ratio)] if with_image and pixels is not None else []
    for title, one in examples.items():
        layers = behind + draw_heat(shown[title], top, is_grid=one.density is None) + draw_lines(one) + outline
        parts.append(panel(title, layers, sentences(one, region), ratio))
    below = colour_bar(top) + _legend(examples.values(), region is not None) if examples and with_scale else ""
    return f'<div class="fv-saved"><div class="fv-panels fv-{size}">{"".join(parts)}</div></div>{below}'


def draw_strip(pixels: np.ndarray, attended: Mapping[str, Attended], chosen: int) -> str:
    """Small maps as buttons, in one colour scale; the number of the map is picked.

    Args:
        pixels: (h, w, 3) uint8.
        attended: attention of batch size one, by title.
        chosen: the number of the map that is marked.
    """
    examples = {title: select_example("strip", one) for title, one in attended.items()}
    shown = {title: heat(one, cells=False) for title, one in examples.items()}
    top, behind, ratio = scale_end(shown.values()), draw_pixels(pale(pixels)), pixels.shape[1] / pixels.shape[0]
    buttons = []
    for n, (title, one) in enumerate(examples.items()):
        layers = behind + draw_heat(shown[title], top, is_grid=one.density is None) + draw_lines(one)
        buttons.append(
            f'<button type="button" class="fv-panel" data-pick="{n}" aria-pressed="{str(n == chosen).lower()}">'
            f'<span class="fv-stack" style="aspect-ratio:{ratio:.4f}">{layers}</span>'
            f'<span class="fv-title">{escape(title)}</span></button>'
        )
    return f'<div class="fv-saved"><div class="fv-strip">{"".join(buttons)}</div></div>'


def scale_end(maps: Iterable[Tensor]) -> float:
    """The upper end of the colours: the largest value, at least LEAST, so that even attention does not look strong.

    >>> scale_end([torch.ones(2, 2), torch.full((2, 2), 9.0)])
    9.0
    """
    return max([LEAST, *(float(values.max()) for values in maps)])


def sentences(one: Attended, truth: Tensor | None = None) -> list[str]:
    """What a map shows, in words: how much of it is inside the true region, how large it is, its components.

    >>> one = Attended(torch.zeros(1, 8), torch.tensor([[0.5, 0.5, 0.0, 0.0]]), grid=(2, 2))
    >>> sentences(one, torch.tensor([[True, False], [False, False]]))
    ['50 % of the attention is inside the true region (even: 25 %)', 'looks at 50 % of the image']
    """
    said = []
    if truth is not None and isinstance(one.grid, tuple):
        inside = float((one.map(56, 56)[0].float() * _cover(truth)).sum())
        even = float(truth.float().mean())
        said.append(f"{100 * inside:.0f} % of the attention is inside the true region (even: {100 * even:.0f} %)")
    area = fraction_of_image(one)
    said.append(_spread(one) if area > 0.995 else f"looks at {max(1, round(100 * area))} % of the image")
    if isinstance(one.density, Mixture):
        count = int(one.density.components_used)
        found = f"{count} component{'' if count == 1 else 's'}"
        haze = background_weight(one.density)
        said.append(found + (f" and {100 * haze:.0f} % background" if haze >= 0.005 else ""))
    return said


def _spread(one: Attended) -> str:
    """How concentrated a map is that is zero nowhere."""
    if not isinstance(one.grid, tuple) or len(one.grid) != 2:
        return "looks at all regions"
    shares = one.map(56, 56)[0].float().flatten().sort(descending=True).values.cumsum(0)
    half = float((shares < 0.5 * shares[-1]).float().mean())
    if half > 0.4:
        return "spread over the whole image"
    return f"half of the attention is on {max(1, round(100 * half))} % of the image"


def colour_bar(top: float) -> str:
    """The scale of all maps in a row, in multiples of the even share.

    >>> "even (1×)" in colour_bar(10.0), "10×" in colour_bar(10.0)
    (True, True)
    """
    ticks = "".join(f'<span style="left:{100 * place:.1f}%">{text}</span>' for place, text in bar_ticks(top))
    return (
        f'<div class="fv-scale"><p>{UNIT}</p><div class="fv-ramp" role="img" aria-label="colours from 0 to {top:.3g} '
        f'times the even share" style="background:{css_gradient()}"></div>'
        f'<div class="fv-ticks">{ticks}</div></div>'
    )


def panel(title: str, layers: str, below: Sequence[str], ratio: float = 1.0) -> str:
    """One drawing with its title and sentences below."""
    label = escape(", ".join([title, *below]))
    lines = f"<small>{'<br>'.join(map(escape, below))}</small>" if below else ""
    return (
        f'<figure class="fv-panel"><figcaption>{escape(title)}</figcaption>'
        f'<div class="fv-stack" style="aspect-ratio:{ratio:.4f}" role="img" aria-label="{label}">{layers}</div>'
        f"{lines}</figure>"
    )


def draw_pixels(pixels: np.ndarray) -> str:
    """An image as a layer."""
    return f'<img alt="" src="{data_address(pixels)}">'


def draw_heat(values: Tensor, top: float, *, is_grid: bool) -> str:
    """The colours of a map as a layer; those of a grid are interpolated."""
    fine = (smooth(values) if is_grid else values).numpy()
    return draw_pixels(heat_colours()(heat_scale(top)(fine), bytes=True))


def draw_lines(one: Attended) -> str:
    """The ellipses of a density, or the edge of the support of sparse weights."""
    if one.density is not None:
        return svg_layer(draw_ellipses(one.density))
    support = (one.map()[0] > 0).numpy()
    return "" if support.all() or not support.any() else svg_layer(f'<path class="fv-edge" d="{edge_path(support)}"/>')


def svg_layer(inside: str) -> str:
    """Lines in units of SIDE as a layer."""
    return f'<svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" aria-hidden="true">{inside}</svg>'


def draw_ellipses(density: Density) -> str:
    """Ellipses around 50 and 95 % of each component, and a thick one around a bounded support."""
    several, drawn = has_several_components(density), []
    levels = [(level, "fv-part" if several and level == 0.5 else "fv-line") for level in LEVELS]
    for level, kind in [*levels, *([(1.0, "fv-edge")] if has_bounded_support(density) else [])]:
        each = density.ellipses(level)
        rows = zip(each.centre.tolist(), each.radii.tolist(), each.angle.tolist(), each.weight.tolist(), strict=True)
        for (x, y), (along, beside), angle, weight in rows:
            if weight >= LIGHTEST:
                turn = f"translate({SIDE * x:.2f} {SIDE * y:.2f}) rotate({np.degrees(angle):.2f})"
                drawn.append(
                    f'<ellipse class="{kind}" rx="{SIDE * along:.2f}" ry="{SIDE * beside:.2f}" transform="{turn}"/>'
                )
    return "".join(drawn)


def edge_path(inside: np.ndarray) -> str:
    """The path around the cells of a region, along their edges."""
    ends = SIDE * np.array(edge_lines(inside))
    return "".join(f"M{x0:.4g} {y0:.4g}L{x1:.4g} {y1:.4g}" for (x0, y0), (x1, y1) in ends)


def pale(pixels: np.ndarray) -> np.ndarray:
    """The image in light greys, so that the colours above it can be read."""
    grey = 0.52 * 255 + 0.46 * (pixels.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32))
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)


def draw_outline(truth: np.ndarray) -> str:
    """A line around the true region as a layer."""
    path = edge_path(truth)
    return svg_layer(f'<path class="fv-halo" d="{path}"/><path class="fv-truth" d="{path}"/>')


def _cover(truth: Tensor) -> Tensor:
    """The fraction of each of 56 x 56 cells that the true region covers."""
    return resample_map(truth.float(), 56, 56) / (truth.numel() / 56**2)


def _legend(examples: Iterable[Attended], has_truth: bool) -> str:
    """What the lines mean, for those that are drawn."""
    densities = [one.density for one in examples if one.density is not None]
    sparse = any(one.density is None and not bool((one.weights > 0).all()) for one in examples)
    rows = [("#007a3d", 2.4, "", "true region")] if has_truth else []
    if densities:
        rows.append(("currentColor", 1.2, "", "contains 50 and 95 % of a component"))
    if any(has_several_components(density) for density in densities):
        rows.append(("#0072b2", 2.2, "6 3", "half of one of several components"))
    if sparse or any(map(has_bounded_support, densities)):
        rows.append(("currentColor", 2.6, "", "edge: no attention outside"))
    items = "".join(
        f'<li><svg width="28" height="8" aria-hidden="true"><line x1="0" x2="28" y1="4" y2="4" stroke="{colour}" '
        f'stroke-width="{width}" stroke-dasharray="{dash}"/></svg>{text}</li>'
        for colour, width, dash, text in rows
    )
    return f'<ul class="fv-legend">{items}</ul>' if items else ""
