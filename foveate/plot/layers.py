"""The layers over the image: maps, contours, components, regions, boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from foveate.ops.density import Density, Ellipses
from foveate.ops.grid import cell_centres
from foveate.plot.canvas import INK, PAPER, SMALL, heat_colours, outlined
from foveate.plot.heat import has_bounded_support, has_several_components

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import PowerNorm

FRACTIONS = (0.95, 0.75, 0.5, 0.25)  # of the mass inside the contours
SMOOTH = 256  # points per axis of a smooth map
THICK, THIN, CELLS = 2.4, 0.9, 1.7  # points: edge of a density, contours, edge of a map
RING = "#0072b2"
WHOLE = (0, 1, 1, 0)
LABELS = 4  # boxes that are labelled with their weight


def draw_heat(axes: Axes, shown: Tensor, scale: PowerNorm, *, cells: bool, edge: bool, opacity: float = 1.0) -> None:
    """Draw a map (H, W) in colours, smooth or cell by cell; if `edge`, with a thick line around its support.

    Below 1, `opacity` lets the image under strong attention shine through.
    """
    values = shown if cells else smooth(shown)
    axes.imshow(
        values.numpy(),
        extent=WHOLE,
        cmap=heat_colours(),
        norm=scale,
        interpolation="nearest",
        aspect=axes.get_aspect(),
        zorder=1,
        alpha=opacity,
    )
    support = (shown > 0).numpy()
    if edge and support.any() and not support.all():
        draw_edges(axes, support)


def smooth(shown: Tensor) -> Tensor:
    """The map on about SMOOTH points per axis, interpolated between cell centres and still zero where it was zero.

    >>> smooth(torch.tensor([[0.0, 1.0]])).shape
    torch.Size([256, 256])
    """
    H, W = shown.shape
    size = (H * max(1, SMOOTH // H), W * max(1, SMOOTH // W))
    fine = interpolate(shown[None, None], size, mode="bilinear")[0, 0]
    return fine * interpolate((shown > 0).to(shown)[None, None], size, mode="nearest")[0, 0]


def edge_lines(inside: np.ndarray) -> list[list[tuple[float, float]]]:
    """The edges between the cells of a region (H, W) and the other cells, as pairs of points in the unit square.

    >>> edge_lines(np.array([[True, False]]))
    [[(0.0, 0.0), (0.5, 0.0)], [(0.0, 1.0), (0.5, 1.0)], [(0.0, 0.0), (0.0, 1.0)], [(0.5, 0.0), (0.5, 1.0)]]
    """
    H, W = inside.shape
    padded = np.pad(inside, 1)
    down, across = (
        np.argwhere(padded[:-1, 1:-1] != padded[1:, 1:-1]),
        np.argwhere(padded[1:-1, :-1] != padded[1:-1, 1:]),
    )
    lines = [[(j / W, i / H), ((j + 1) / W, i / H)] for i, j in down.tolist()]
    return lines + [[(j / W, i / H), (j / W, (i + 1) / H)] for i, j in across.tolist()]


def draw_edges(axes: Axes, inside: np.ndarray) -> None:
    """Draw a thick line around the cells of a region (H, W), along their edges."""
    from matplotlib.collections import LineCollection

    drawn = LineCollection(edge_lines(inside), colors=INK, linewidths=CELLS, capstyle="projecting", zorder=3)
    drawn.set_path_effects(outlined(CELLS))
    axes.add_collection(drawn)


def draw_frame(axes: Axes, seen: np.ndarray) -> None:
    """Draw a dashed frame around what a model sees of the image (H, W); ellipses end there."""
    from matplotlib.patches import Rectangle

    (y0, y1), (x0, x1) = (
        (where.min() / n, (where.max() + 1) / n) for where, n in zip(seen.nonzero(), seen.shape, strict=True)
    )
    frame = Rectangle(
        (x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=INK, linewidth=1.3, linestyle=(0, (4, 2)), zorder=3
    )
    frame.set_path_effects(outlined(1.3))
    for drawn in axes.patches:
        drawn.set_clip_path(Rectangle((x0, y0), x1 - x0, y1 - y0, transform=axes.transData))
    axes.add_patch(frame)


def draw_region(axes: Axes, region: np.ndarray) -> None:
    """Draw a dashed line around a region (h, w)."""
    h, w = region.shape
    x, y = (np.arange(-1, w + 1) + 0.5) / w, (np.arange(-1, h + 1) + 0.5) / h
    lines = axes.contour(x, y, np.pad(region, 1).astype(float), levels=[0.5], colors=INK, zorder=3)
    lines.set(linewidths=1.3, linestyles=[(0, (2, 1.2))], path_effects=outlined(1.3))


def draw_density(axes: Axes, density: Density, values: Tensor) -> None:
    """Draw contours around 25, 50, 75 and 95 % of the mass, a thick one around the support, means and components.

    `values` (P, P) are the density at the centres of P x P cells, up to a factor.
    """
    points = cell_centres(*values.shape, dtype=torch.float64)
    x, y = points.reshape(*values.shape, 2).unbind(-1)
    levels = np.unique(contour_levels(values))
    if len(levels) and float(values.max()) > levels[0]:
        lines = axes.contour(x.numpy(), y.numpy(), values.numpy(), levels=levels, colors=INK, linewidths=THIN, zorder=3)
        lines.set_path_effects(outlined(THIN))
    if has_bounded_support(density):
        inside = _inside(density.ellipses(1), points).reshape(values.shape)
        edge = axes.contour(x.numpy(), y.numpy(), inside.numpy(), levels=[0], colors=INK, linewidths=THICK, zorder=3)
        edge.set_path_effects(outlined(THICK))
    draw_components(axes, density)


def contour_levels(values: Tensor) -> list[float]:
    """The heights whose contours contain FRACTIONS of the mass inside the image.

    >>> [round(level, 2) for level in contour_levels(torch.arange(100.0).reshape(10, 10) / 99)]
    [0.22, 0.51, 0.71, 0.87]
    """
    high = values.flatten().sort(descending=True).values
    total = high.sum()
    if not bool(total > 0):
        return []
    # The superlevel set with the mass `fraction` ends where the sorted values have summed up to it.
    held = high.cumsum(0) / total
    return [float(high[int((held < fraction).sum())]) for fraction in FRACTIONS]


def draw_components(axes: Axes, density: Density) -> None:
    """Mark the mean of every component; of several, also draw an ellipse around half of the mass, and the weight."""
    from matplotlib.patches import Ellipse

    each = density.ellipses(0.5)
    several = has_several_components(density)
    for centre, radii, angle, weight in zip(*(x.tolist() for x in _parts(each)), strict=True):
        if weight <= 0:
            continue
        axes.plot(
            *centre, marker="+", color=INK, markersize=7, markeredgewidth=1.4, path_effects=outlined(1.4), zorder=4
        )
        if not several:
            continue
        size = (2 * radii[0], 2 * radii[1])
        ring = Ellipse(centre, *size, angle=np.degrees(angle), fill=False, edgecolor=RING, linewidth=1.8, zorder=4)
        ring.set(linestyle=(0, (2.2, 1.1)))
        axes.add_patch(ring)
        label = axes.annotate(f"{weight:.2f}", centre, (4, 3), textcoords="offset points", fontsize=SMALL, color=INK)
        label.set(path_effects=outlined(0.6), zorder=5, annotation_clip=True)


def draw_boxes(axes: Axes, boxes: Tensor, weights: Tensor, scale: PowerNorm) -> None:
    """Draw regions as boxes (N, 4) in fractions of the image, coloured by weight; the heaviest are labelled with it."""
    from matplotlib.patches import Rectangle

    order = weights.argsort(stable=True).tolist()
    most = max(float(weights.max()), 1e-9) if order else 1.0
    for rank, n in enumerate(order):
        x0, y0, x1, y1 = boxes[n].tolist()
        weight = float(weights[n])
        *colour, alpha = heat_colours()(scale(weight * len(weights)))
        width = 0.5 + 2 * weight / most
        fill = Rectangle((x0, y0), x1 - x0, y1 - y0, facecolor=(*colour, 0.6 * alpha), linewidth=0, zorder=1)
        line = Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor=INK, linewidth=width, zorder=2)
        line.set_path_effects(outlined(width))
        axes.add_patch(fill)
        axes.add_patch(line)
        if weight > 0 and rank >= len(order) - LABELS:
            tag = axes.text(x0, y0, f"{weight:.2f}", fontsize=SMALL, color=INK, va="bottom", ha="left", zorder=5)
            tag.set(bbox={"facecolor": PAPER, "edgecolor": INK, "linewidth": 0.4, "pad": 1}, clip_on=True)


def _parts(each: Ellipses) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return each.centre, each.radii, each.angle, each.weight


def _inside(each: Ellipses, points: Tensor) -> Tensor:
    """`max_k 1 − |u_k|²` at points (P, 2), positive inside of the ellipses.

    u_k are the coordinates in which ellipse k is the unit circle: shifted to its centre, rotated by its angle, divided
    by its radii.
    """
    centre, radii, angle, weight = (x.double() for x in _parts(each))
    away = points[:, None] - centre
    cos, sin = angle.cos(), angle.sin()
    along = (away[..., 0] * cos + away[..., 1] * sin) / radii[:, 0]
    beside = (away[..., 1] * cos - away[..., 0] * sin) / radii[:, 1]
    inside = torch.where(weight > 0, 1 - along.square() - beside.square(), -torch.inf)
    return inside.amax(-1).clamp(min=-10)  # contours cannot interpolate infinities
