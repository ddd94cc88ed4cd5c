"""Attention on its picture: one mechanism, several side by side, or one picture a word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_number
from foveate.errors import ShapeError, UnknownName
from foveate.plot.canvas import SMALL, add_scale, heat_scale, lay_picture, make_panels, read_image, set_title
from foveate.plot.layers import draw_boxes, draw_density, draw_heat, draw_region
from foveate.plot.looks import Index, Seen, heat, is_several, is_sparse, numbers, pick, truth_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

STYLES = ("smooth", "cells", "contours")


def show(
    image: Any,
    attended: Seen,
    *,
    index: Index = 0,
    style: str | None = None,
    truth: Any = None,
    boxes: Any = None,
    title: str | None = None,
    top: float | None = None,
) -> Figure:
    """Draw attention on its picture, whatever the mechanism: the picture, the attention and, if known, the truth.

    Colours mean multiples of the even share: 1 is what every place gets from attention that prefers none. A thick line
    is the edge of the support, where attention is exactly zero beyond.

    Args:
        image: the picture, (h, w), (h, w, 3) or (h, w, 4), bytes or floats from 0 to 1; None for none.
        attended: what a mechanism returned, or a density.
        index: the example, or (example, query, ...) where there are query axes.
        style: "smooth" or "cells"; "contours" for densities adds lines around 25, 50, 75 and 95 % of the mass, the
            means, and the components of a mixture with their weights. When absent, contours for densities and smooth
            otherwise.
        truth: (h, w) where one must look, as booleans, or where people looked, as any non-negative numbers. Drawn
            beside; a region is also outlined (dashed) on the attention.
        boxes: (N, 4) left, top, right, bottom of each location in fractions of the picture, for attention to regions.
        title: above the attention, for instance the answer.
        top: upper end of the colours, in even shares; the largest value shown when absent.

    Returns:
        The figure; `figure.savefig(path)` writes it. Under the attention stand the share of the picture that gets any,
        the number of components of a mixture, and the Jensen-Shannon divergence from the truth in bits.

    Reference: Farinhas 2021 (thesis), §6.2.4: contours over the picture, a thick one where the density ends.

    >>> import foveate as fv
    >>> seen = fv.mechanism("tvmax")(torch.randn(1, 49), torch.randn(1, 49, 8), grid=(7, 7))
    >>> figure = show(np.zeros((90, 120, 3), dtype=np.uint8), seen, title="tvmax")
    >>> len(figure.axes)  # the picture, the attention, the colours
    3
    """
    named = {title or "attention": attended}
    return _draw("show", image, named, index, style, truth, boxes, columns=4, top=top)


def compare(
    image: Any,
    attended: Mapping[str, Seen],
    *,
    index: Index = 0,
    style: str | None = None,
    truth: Any = None,
    boxes: Any = None,
    columns: int = 4,
    top: float | None = None,
) -> Figure:
    """Draw several attentions to one picture side by side, in the same colours.

    Args:
        image, index, style, truth, boxes, top: as in `show`.
        attended: what each mechanism returned, or densities, by title.
        columns: panels in a row.

    Returns:
        The figure: the picture, one panel a mechanism, the truth.

    >>> import foveate as fv
    >>> scores, values = torch.randn(1, 49), torch.randn(1, 49, 8)
    >>> names = ("softmax", "sparsemax", "continuous-sparsemax")
    >>> figure = compare(None, {name: fv.mechanism(name)(scores, values, grid=(7, 7)) for name in names})
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['softmax', 'sparsemax', 'continuous-sparsemax']
    """
    check_number("compare", "columns", columns, least=1, advice="4 fit on a page")
    if not attended:
        raise ValueError("compare: expected at least one attention, got none; pass {title: attended}")
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
) -> Figure:
    """Draw one picture a word, each with the attention of that word, in the same colours.

    Args:
        image, style, boxes, top: as in `show`.
        words: T words.
        attended: attention with one query axis, weights (B, T', N) with T' >= T; or one attention a word.
        index: the example.
        columns: pictures in a row.

    >>> seen = Attended(torch.zeros(1, 3, 8), torch.full((1, 3, 4), 0.25), grid=(2, 2))
    >>> figure = strip(np.zeros((8, 8)), ["a", "red", "star"], seen)
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['a', 'red', 'star']
    """
    check_number("strip", "columns", columns, least=1, advice="6 fit on a page")
    if isinstance(attended, Attended):
        there = attended.weights.shape[1] if attended.weights.ndim == 3 else 0
        picked = [pick("strip", attended, (index, t)) for t in range(min(there, len(words)))]
    else:
        there, picked = len(attended), [pick("strip", one, index) for one in attended[: len(words)]]
    if there < len(words) or not words:
        raise ShapeError(
            f"strip: expected words and an attention for each, got {len(words)} words and {there} attentions; "
            "pass weights (B, T, N), or one Attended a word"
        )
    pixels = read_image("strip", image)
    looks = [_look("strip", one, style, boxes) for one in picked]
    figure, panels = make_panels(len(words), columns, pixels)
    scale = heat_scale(top or max(look.peak for look in looks))
    for axes, word, look in zip(panels, words, looks, strict=True):
        _panel(axes, pixels, look, scale)
        set_title(axes, word, numbers(look.one))
    add_scale(figure, panels, scale)
    _legend(figure, looks)
    return figure


@dataclass(frozen=True, eq=False)
class _Look:
    """One attention ready to draw: `values` in even shares, (H, W) or one a box."""

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
    attended: Mapping[str, Seen],
    index: Index,
    style: str | None,
    truth: Any,
    boxes: Any,
    *,
    columns: int,
    top: float | None,
) -> Figure:
    """The picture, every attention, the truth."""
    pixels = read_image(where, image)
    region = _truth(where, truth)
    looks = {title: _look(where, pick(where, seen, index), style, boxes) for title, seen in attended.items()}
    count = len(looks) + (pixels is not None) + (region is not None)
    figure, panels = make_panels(count, columns, pixels)
    scale = heat_scale(top or max(look.peak for look in looks.values()))
    if pixels is not None:
        lay_picture(panels[0], pixels, pale=False)
        set_title(panels[0], "picture")
    for axes, (title, look) in zip(panels[pixels is not None :], looks.items(), strict=False):
        _panel(axes, pixels, look, scale)
        if region is not None and region.dtype == torch.bool:
            draw_region(axes, region.numpy())
        set_title(axes, title, numbers(look.one, region))
    if region is not None:
        _truth_panel(panels[-1], pixels, region, scale)
    add_scale(figure, panels, scale)
    _legend(figure, list(looks.values()))
    return figure


def _panel(axes: Axes, pixels: np.ndarray | None, look: _Look, scale: PowerNorm) -> None:
    """One attention on the picture."""
    lay_picture(axes, pixels, pale=True)
    if look.boxes is not None:
        draw_boxes(axes, look.boxes, look.one.weights[0], scale)
        return
    density = look.one.density
    ends = density is None or is_sparse(density)
    draw_heat(axes, look.values, scale, cells=look.style == "cells", edge=ends and look.style != "contours")
    if density is not None and look.style == "contours" and look.peak > 0:
        draw_density(axes, density, look.values)


def _truth_panel(axes: Axes, pixels: np.ndarray | None, region: Tensor, scale: PowerNorm) -> None:
    """The region, or where people looked, in the colours of the attention."""
    lay_picture(axes, pixels, pale=True)
    shown = truth_map(region, *region.shape) * region.numel()
    is_region = region.dtype == torch.bool
    draw_heat(axes, shown, scale, cells=is_region, edge=False)
    if is_region:
        draw_region(axes, region.numpy())
    set_title(axes, "true region" if is_region else "people", f"area {100 * float((region > 0).float().mean()):.0f} %")


def _legend(figure: Figure, looks: Sequence[_Look]) -> None:
    """What the lines of the densities mean, as far as there are such lines."""
    densities = [look.one.density for look in looks if look.style == "contours" and look.one.density is not None]
    parts = ["lines: 25, 50, 75, 95 % of the mass"] if densities else []
    parts += ["blue dashes: half of a component's mass"] if any(map(is_several, densities)) else []
    parts += ["thick: nothing beyond"] if any(map(is_sparse, densities)) else []
    if parts:
        figure.supxlabel("      ".join(parts), fontsize=SMALL)


def _look(where: str, one: Attended, style: str | None, boxes: Any) -> _Look:
    """What to draw of one attention, after refusing what cannot be drawn."""
    if style is not None and style not in STYLES:
        raise UnknownName(f"{where} style", style, STYLES)
    if boxes is not None:
        return _Look(one, "boxes", one.weights[0] * one.weights.shape[-1], _boxes(where, boxes, one))
    if one.grid is None:
        raise ShapeError(f"{where}: expected attention over a grid, got none; pass boxes=(N, 4) for regions")
    if len(one.grid) != 2:
        raise ShapeError(f"{where}: expected attention over a picture, got grid {one.grid}; use plot.words for text")
    if style == "contours" and one.density is None:
        raise ValueError(f"{where}: expected a density for contours, got weights; use style='smooth' or 'cells'")
    chosen = style or ("smooth" if one.density is None else "contours")
    return _Look(one, chosen, heat(one, chosen == "cells"))


def _truth(where: str, truth: Any) -> Tensor | None:
    if truth is None:
        return None
    region = torch.as_tensor(truth).detach().cpu()
    if region.ndim != 2 or 0 in region.shape or (region.dtype != torch.bool and bool((region < 0).any())):
        raise ShapeError(
            f"{where}: expected truth (h, w), boolean or non-negative, got {tuple(region.shape)} {region.dtype}; "
            "pass one region or one map"
        )
    return region


def _boxes(where: str, boxes: Any, one: Attended) -> Tensor:
    places = torch.as_tensor(boxes).detach().cpu().float()
    if places.shape != (one.weights.shape[-1], 4):
        raise ShapeError(
            f"{where}: expected boxes ({one.weights.shape[-1]}, 4), one a location, got {tuple(places.shape)}; "
            "give left, top, right, bottom in fractions of the picture"
        )
    return places
