"""Attention over its image: one mechanism, several side by side, or one image per word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_number
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.plot.canvas import (
    INK,
    LARGE,
    SMALL,
    add_glow_scale,
    add_scale,
    draw_image,
    draw_photograph,
    glow_colours,
    heat_scale,
    make_panels,
    read_image,
    set_title,
)
from foveate.plot.heat import (
    AttentionLike,
    ExampleIndex,
    has_bounded_support,
    has_several_components,
    heat,
    seen_cells,
    select_example,
    stretch,
    summarise,
    truth_map,
)
from foveate.plot.layers import draw_boxes, draw_density, draw_frame, draw_heat, draw_region, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

OVERLAY, TITLE = 6.4, 54  # inches of the width of an overlay, characters per line of its heading
SHINING = 0.7  # opacity of colours through which the image is seen
STYLES = ("smooth", "cells", "contours")


def show(
    image: Any,
    attended: AttentionLike,
    *,
    index: ExampleIndex = 0,
    style: str | None = None,
    truth: Any = None,
    boxes: Any = None,
    title: str | None = None,
    top: float | None = None,
) -> Figure:
    """Draw attention over its image, whatever the mechanism: the image, the attention and, if known, the truth.

    Colours are relative to uniform attention, which is 1 everywhere. A thick line is the edge of the support: attention
    is exactly zero outside of it.

    Args:
        image: (h, w), (h, w, 3) or (h, w, 4), as uint8 or as floats from 0 to 1; None to draw without an image.
        attended: what a mechanism returned, or a density.
        index: the example, or (example, query, ...) if there are query axes.
        style: "smooth" or "cells"; "contours", for densities, adds lines around 25, 50, 75 and 95 % of the mass, the
            means, and the components of a mixture with their weights. If absent, contours for densities and smooth
            otherwise.
        truth: (h, w), the region that must be attended to as booleans, or a human attention map as non-negative
            numbers. It is drawn in its own panel; a region is also outlined (dashed) over the attention.
        boxes: (N, 4), left, top, right, bottom of each location in fractions of the image, for attention to regions.
        title: above the attention, for instance the answer.
        top: upper end of the colours, relative to uniform attention; the largest value in the figure if absent.

    Returns:
        The figure; `figure.savefig(path)` writes it. Below the attention are the fraction of the image with non-zero
        attention, the number of components of a mixture, and the Jensen-Shannon divergence from the truth in bits.

    Reference: Farinhas 2021 (thesis), §6.2.4: contours over the image, a thick one around the support.

    >>> import foveate as fv
    >>> seen = fv.mechanism("tvmax")(torch.randn(1, 49), torch.randn(1, 49, 8), grid=(7, 7))
    >>> figure = show(np.zeros((90, 120, 3), dtype=np.uint8), seen, title="tvmax")
    >>> len(figure.axes)  # the image, the attention, the colours
    3
    """
    named = {title or "attention": attended}
    return _draw("show", image, named, index, style, truth, boxes, columns=4, top=top)


def compare(
    image: Any,
    attended: Mapping[str, AttentionLike],
    *,
    index: ExampleIndex = 0,
    style: str | None = None,
    truth: Any = None,
    boxes: Any = None,
    columns: int = 4,
    top: float | None = None,
) -> Figure:
    """Draw several attentions to one image side by side, with one colour scale.

    Args:
        image, index, style, truth, boxes, top: as in `show`.
        attended: what each mechanism returned, or densities, by title.
        columns: panels per row.

    Returns:
        A figure of the image, one panel per mechanism, the truth.

    >>> import foveate as fv
    >>> scores, values = torch.randn(1, 49), torch.randn(1, 49, 8)
    >>> names = ("softmax", "sparsemax", "continuous-sparsemax")
    >>> figure = compare(None, {name: fv.mechanism(name)(scores, values, grid=(7, 7)) for name in names})
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['softmax', 'sparsemax', 'continuous-sparsemax']
    """
    check_number("compare", "columns", columns, least=1, advice="4 fit on a page")
    if not attended:
        raise WrongValue("compare: expected at least one attention, got none; pass {title: attended}")
    return _draw("compare", image, attended, index, style, truth, boxes, columns=columns, top=top)


def strip(
    image: Any,
    words: Sequence[str],
    attended: Attended | Sequence[Attended],
    *,
    index: int = 0,
    style: str | None = None,
    boxes: Any = None,
    columns: int = 6,
    top: float | None = None,
    original: bool = False,
) -> Figure:
    """Draw one image per word with the attention of that word, with one colour scale.

    Args:
        image, style, boxes, top: as in `show`.
        words: T words.
        attended: attention with one query axis, weights (B, T', N) with T' >= T; or one attention per word.
        index: the example.
        columns: images per row.
        original: draw the image alone first, and let it shine through the colours of the others.

    Returns:
        The figure; `figure.savefig(path)` writes it.

    >>> seen = Attended(torch.zeros(1, 3, 8), torch.full((1, 3, 4), 0.25), grid=(2, 2))
    >>> figure = strip(np.zeros((8, 8)), ["a", "red", "star"], seen)
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['a', 'red', 'star']
    """
    check_number("strip", "columns", columns, least=1, advice="6 fit on a page")
    if isinstance(attended, Attended):
        count = attended.weights.shape[1] if attended.weights.ndim == 3 else 0
        selected = [select_example("strip", attended, (index, t)) for t in range(min(count, len(words)))]
    else:
        count, selected = len(attended), [select_example("strip", one, index) for one in attended[: len(words)]]
    if count < len(words) or not words:
        raise ShapeError(
            f"strip: expected words and an attention for each, got {len(words)} words and {count} attentions; "
            "pass weights (B, T, N), or one Attended per word"
        )
    pixels = read_image("strip", image)
    drawings = [prepare_drawing("strip", one, style, boxes) for one in selected]
    first = int(original and pixels is not None)
    figure, panels = make_panels(len(words) + first, columns, pixels)
    scale = heat_scale(top or max(drawing.peak for drawing in drawings))
    if first:
        draw_image(panels[0], pixels, pale=False)
        set_title(panels[0], "image")
    for axes, word, drawing in zip(panels[first:], words, drawings, strict=True):
        draw_panel(axes, pixels, drawing, scale, opacity=SHINING if first else 1.0)
        set_title(axes, word, summarise(drawing.one))
    add_scale(figure, panels, scale)
    _add_legend(figure, drawings)
    return figure


def overlay(
    images: Any,
    titles: Sequence[str],
    attended: Sequence[AttentionLike],
    *,
    heading: str | None = None,
    columns: int | None = None,
    original: bool = True,
    top: float | None = None,
) -> Figure:
    """Draw attention as a transparent colour over photographs, which show through it.

    The colour is linear in the attention: none where there is none, red at the upper end of the scale. What lies
    outside a dashed frame is faded: the model did not see it. Titles keep their size where the figure is shown small.

    Args:
        images: one image for all panels, as in `show`, or a sequence with one per panel.
        titles: above each panel.
        attended: one per panel; densities with contours around their mass.
        heading: above the figure.
        columns: panels per row; by default 2 for one attention beside its image, else 3.
        original: draw the image alone first, where all panels share one.
        top: upper end of the colours, relative to uniform attention; if absent, what 99.5 % of the image stay below.

    Returns:
        The figure; `figure.savefig(path)` writes it.

    >>> seen = Attended(torch.zeros(1, 8), torch.tensor([[0.1, 0.2, 0.3, 0.4]]), grid=(2, 2))
    >>> [axes.get_title() for axes in overlay(np.zeros((8, 8)), ["a"], [seen]).axes[:2]]
    ['image', 'a']
    """
    shared = not isinstance(images, list | tuple)
    several = [images] * len(titles) if shared else list(images)
    if not titles or not len(titles) == len(attended) == len(several):
        raise ShapeError(
            f"overlay: expected a title and an attention for each panel, got {len(several)} images, "
            f"{len(titles)} titles and {len(attended)} attentions; pass as many of each"
        )
    pixels = [read_image("overlay", image) for image in several[:1] if shared] * len(titles)
    pixels = pixels or [read_image("overlay", image) for image in several]
    drawings = [prepare_drawing("overlay", select_example("overlay", one), None, None) for one in attended]
    first = int(original and shared and pixels[0] is not None)
    count = len(titles) + first
    columns = columns or (2 if count == 2 else 3)
    check_number("overlay", "columns", columns, least=1, advice="3 can be read on a phone")
    figure, panels = make_panels(count, columns, pixels[0], width=OVERLAY / min(count, columns, 3))
    high = top or max(float(torch.quantile(drawing.values.flatten(), 0.995)) for drawing in drawings)
    scale = heat_scale(max(high, 1.5), power=1)
    if first:
        draw_image(panels[0], pixels[0], pale=False)
        set_title(panels[0], "image", size=LARGE)
    for axes, image, title, drawing in zip(panels[first:], pixels, titles, drawings, strict=True):
        _draw_overlay(axes, image, drawing, scale)
        set_title(axes, title, size=LARGE, width=round(TITLE / min(count, columns)))
    if heading:
        figure.suptitle(fill(heading, TITLE), fontsize=LARGE, color=INK, parse_math=False)
    framed = any(seen_cells(drawing.one) is not None for drawing in drawings)
    add_glow_scale(figure, panels, scale, max(drawing.peak for drawing in drawings), framed)
    return figure


def _draw_overlay(axes: Axes, pixels: np.ndarray | None, drawing: Drawing, scale: PowerNorm) -> None:
    """A photograph with faint colours, the attention above it, and the frame of what was seen."""
    seen = seen_cells(drawing.one)
    shape = (0, 0) if pixels is None else pixels.shape[:2]
    draw_photograph(axes, pixels, None if seen is None else stretch(seen, *shape).numpy())
    values = drawing.values if drawing.one.density is not None else smooth(drawing.values)
    axes.imshow(
        values.numpy(), extent=(0, 1, 1, 0), cmap=glow_colours(), norm=scale, interpolation="nearest", zorder=1,
        aspect=axes.get_aspect(),
    )  # fmt: skip
    if drawing.one.density is not None and drawing.peak > 0:
        draw_density(axes, drawing.one.density, drawing.values)
    if seen is not None:
        draw_frame(axes, seen.numpy())


@dataclass(frozen=True, eq=False)
class Drawing:
    """One attention ready to draw: `values` relative to uniform attention, (H, W) or one per box."""

    one: Attended
    style: str
    values: Tensor
    boxes: Tensor | None = None

    @property
    def peak(self) -> float:
        return float(self.values.max())


def _draw(
    where: str,
    image: Any,
    attended: Mapping[str, AttentionLike],
    index: ExampleIndex,
    style: str | None,
    truth: Any,
    boxes: Any,
    *,
    columns: int,
    top: float | None,
) -> Figure:
    """The image, every attention, the truth."""
    pixels = read_image(where, image)
    region = _check_truth(where, truth)
    drawings = {
        title: prepare_drawing(where, select_example(where, one, index), style, boxes)
        for title, one in attended.items()
    }
    count = len(drawings) + (pixels is not None) + (region is not None)
    figure, panels = make_panels(count, columns, pixels)
    scale = heat_scale(top or max(drawing.peak for drawing in drawings.values()))
    if pixels is not None:
        draw_image(panels[0], pixels, pale=False)
        set_title(panels[0], "image")
    for axes, (title, drawing) in zip(panels[pixels is not None :], drawings.items(), strict=False):
        draw_panel(axes, pixels, drawing, scale)
        if region is not None and region.dtype == torch.bool:
            draw_region(axes, region.numpy())
        set_title(axes, title, summarise(drawing.one, region))
    if region is not None:
        _draw_truth(panels[-1], pixels, region, scale)
    add_scale(figure, panels, scale)
    _add_legend(figure, list(drawings.values()))
    return figure


def draw_panel(axes: Axes, pixels: np.ndarray | None, drawing: Drawing, scale: PowerNorm, opacity: float = 1.0) -> None:
    """One attention over the image."""
    draw_image(axes, pixels, pale=True)
    if drawing.boxes is not None:
        draw_boxes(axes, drawing.boxes, drawing.one.weights[0], scale)
        return
    density = drawing.one.density
    bounded = density is None or has_bounded_support(density)
    edge = bounded and drawing.style != "contours"
    draw_heat(axes, drawing.values, scale, cells=drawing.style == "cells", edge=edge, opacity=opacity)
    if density is not None and drawing.style == "contours" and drawing.peak > 0:
        draw_density(axes, density, drawing.values)
    seen = seen_cells(drawing.one)
    if seen is not None:
        draw_frame(axes, seen.numpy())


def _draw_truth(axes: Axes, pixels: np.ndarray | None, region: Tensor, scale: PowerNorm) -> None:
    """The true region, or a human attention map, in the colours of the attention."""
    draw_image(axes, pixels, pale=True)
    shown = truth_map(region, *region.shape) * region.numel()
    is_region = region.dtype == torch.bool
    draw_heat(axes, shown, scale, cells=is_region, edge=False)
    if is_region:
        draw_region(axes, region.numpy())
    area = 100 * float((region > 0).float().mean())
    set_title(axes, "true region" if is_region else "human attention", f"area {area:.0f} %")


def _add_legend(figure: Figure, drawings: Sequence[Drawing]) -> None:
    """Explain the lines of densities, if there are any."""
    contours = [drawing.one.density for drawing in drawings if drawing.style == "contours"]
    densities = [density for density in contours if density is not None]
    parts = ["lines: 25, 50, 75, 95 % of the mass"] if densities else []
    parts += ["blue dashes: half of a component's mass"] if any(map(has_several_components, densities)) else []
    parts += ["thick line: zero outside"] if any(map(has_bounded_support, densities)) else []
    line = "      ".join(parts)
    if line:
        # A character is about half as wide as high, and a point is 1/72 inch.
        fits = len(line) * SMALL / 2 / 72 < figure.get_figwidth()
        figure.supxlabel(line if fits else "\n".join(parts), fontsize=SMALL)


def prepare_drawing(where: str, one: Attended, style: str | None, boxes: Any) -> Drawing:
    """What to draw of one attention; raises an error if it cannot be drawn in this style."""
    if style is not None and style not in STYLES:
        raise UnknownName(f"{where} style", style, STYLES)
    if boxes is not None:
        return Drawing(one, "boxes", one.weights[0] * one.weights.shape[-1], _check_boxes(where, boxes, one))
    if one.grid is None:
        raise ShapeError(f"{where}: expected attention over a grid, got none; pass boxes=(N, 4) for regions")
    if len(one.grid) != 2:
        raise ShapeError(f"{where}: expected attention over an image, got grid {one.grid}; use plot.words for text")
    if style == "contours" and one.density is None:
        raise WrongValue(f"{where}: expected a density for contours, got weights; use style='smooth' or 'cells'")
    chosen = style or ("smooth" if one.density is None else "contours")
    return Drawing(one, chosen, heat(one, chosen == "cells"))


def _check_truth(where: str, truth: Any) -> Tensor | None:
    """The truth on the CPU; raises ShapeError unless it is (h, w), boolean or non-negative."""
    if truth is None:
        return None
    region = torch.as_tensor(truth).detach().cpu()
    if region.ndim != 2 or 0 in region.shape or (region.dtype != torch.bool and bool((region < 0).any())):
        raise ShapeError(
            f"{where}: expected truth (h, w), boolean or non-negative, got {tuple(region.shape)} {region.dtype}; "
            "pass one region or one map"
        )
    return region


def _check_boxes(where: str, boxes: Any, one: Attended) -> Tensor:
    """The boxes on the CPU; raises ShapeError unless there is one per location."""
    places = torch.as_tensor(boxes).detach().cpu().float()
    if places.shape != (one.weights.shape[-1], 4):
        raise ShapeError(
            f"{where}: expected boxes ({one.weights.shape[-1]}, 4), one per location, got {tuple(places.shape)}; "
            "pass left, top, right, bottom in fractions of the image"
        )
    return places
