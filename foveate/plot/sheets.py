"""Many maps on one sheet: a gallery of examples, and the heads of every layer."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_number
from foveate.errors import ShapeError
from foveate.plot.canvas import SMALL, add_scale, draw_image, heat_scale, make_panels, read_image, set_title
from foveate.plot.figures import draw_panel, prepare_drawing, strip
from foveate.plot.heat import AttentionLike, heat, select_example, summarise
from foveate.plot.layers import draw_heat, draw_region

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = 1.05  # inches of a head on its sheet
MOST = 8  # maps that a notebook shows of an `Attended`


def gallery(
    images: Sequence[Any],
    attended: Attended | Sequence[AttentionLike],
    *,
    titles: Sequence[str] = (),
    truths: Sequence[Any] = (),
    style: str | None = None,
    columns: int = 4,
    top: float | None = None,
) -> Figure:
    """Draw many examples, each image under its attention, with one colour scale.

    Args:
        images: one per example, each as in `show`; None draws without an image.
        attended: of a batch of as many examples, or one attention per image.
        titles: one per example, for instance the answers; none if empty.
        truths: one region (h, w) of booleans or None per example, outlined; none if empty.
        style, top: as in `show`.
        columns: examples per row.

    Returns:
        The figure; `figure.savefig(path)` writes it.

    >>> seen = Attended(torch.zeros(3, 8), torch.full((3, 4), 0.25), grid=(2, 2))
    >>> figure = gallery([None] * 3, seen, titles=["a", "b", "c"])
    >>> [axes.get_title() for axes in figure.axes[:3]]
    ['a', 'b', 'c']
    """
    check_number("gallery", "columns", columns, least=1, advice="4 fit on a page")
    several = [attended[n] for n in range(len(attended.weights))] if isinstance(attended, Attended) else list(attended)
    for what, given in (("attentions", several), ("titles", titles), ("truths", truths)):
        if len(given) != len(images) and (given or what == "attentions"):
            raise ShapeError(f"gallery: expected one per image, got {len(images)} images and {len(given)} {what}")
    if not several:
        raise ShapeError("gallery: expected at least one image, got none; pass images and their attention")
    pixels = [read_image("gallery", image) for image in images]
    drawings = [prepare_drawing("gallery", select_example("gallery", one), style, None) for one in several]
    figure, panels = make_panels(len(images), columns, pixels[0])
    scale = heat_scale(top or max(drawing.peak for drawing in drawings))
    for n, (axes, drawing) in enumerate(zip(panels, drawings, strict=True)):
        draw_panel(axes, pixels[n], drawing, scale)
        region = None if not truths or truths[n] is None else torch.as_tensor(truths[n])
        if region is not None and region.dtype == torch.bool:
            draw_region(axes, region.numpy())
        set_title(axes, titles[n] if titles else None, summarise(drawing.one, region))
    add_scale(figure, panels, scale)
    return figure


def heads(image: Any, weights: Tensor, *, grid: tuple[int, int], title: str | None = None) -> Figure:
    """Draw the attention of every head of every layer on one sheet: layers from top to bottom, heads left to right.

    Every map has its own colour scale: what matters is where a head looks, not how much attention the image gets.

    Args:
        image: as in `show`.
        weights: (L, M, N) non-negative: layers, heads, locations of the grid in row order.
        grid: rows and columns of the locations.
        title: above the sheet.

    Returns:
        The figure; `figure.savefig(path)` writes it.

    >>> figure = heads(None, torch.rand(2, 3, 16), grid=(4, 4))
    >>> len(figure.axes)
    6
    """
    if weights.ndim != 3 or weights.shape[-1] != grid[0] * grid[1] or 0 in weights.shape:
        raise ShapeError(
            f"heads: expected weights (L, M, N) with N = {grid[0]} x {grid[1]}, got {tuple(weights.shape)}; "
            "pass one query: `look.layers[:, :, word]`"
        )
    from matplotlib.figure import Figure

    pixels = read_image("heads", image)
    L, M = weights.shape[:2]
    ratio = 1.0 if pixels is None else pixels.shape[0] / pixels.shape[1]
    figure = Figure(figsize=(HEAD * M + 0.5, HEAD * ratio * L + 0.5), layout="constrained", facecolor="white")
    rows = figure.subplots(L, M, squeeze=False)
    for layer, head in ((layer, head) for layer in range(L) for head in range(M)):
        axes, own = rows[layer, head], weights[layer, head].detach().cpu().float()
        shown = heat(Attended(own.new_zeros(1, 1), (own / own.sum().clamp_min(1e-12))[None], grid=grid), cells=True)
        draw_image(axes, pixels, pale=True)
        draw_heat(axes, shown, heat_scale(max(2.0, float(shown.max()))), cells=False, edge=False)
        if layer == 0:
            axes.set_title(f"head {head}", fontsize=SMALL)
        if head == 0:
            axes.set_ylabel(f"layer {layer}", fontsize=SMALL)
    if title:
        figure.suptitle(title, fontsize=SMALL + 2, parse_math=False)
    return figure


def to_png(attended: Attended) -> bytes | None:
    """The maps of the first examples, or of the first words of the first example; None if there is no image grid."""
    if attended.grid is None or attended.weights.ndim not in (2, 3) or 0 in attended.weights.shape:
        return None
    if isinstance(attended.grid, tuple) and len(attended.grid) != 2:
        return None
    if attended.weights.ndim == 3:
        count = min(MOST, attended.weights.shape[1])
        figure = strip(None, [f"query {n}" for n in range(count)], attended, columns=4)
    else:
        several = [select_example("inline", attended, n) for n in range(min(MOST, len(attended.weights)))]
        titles = [f"example {n}" for n in range(len(several))] if len(several) > 1 else ["attention"]
        figure = gallery([None] * len(several), several, titles=titles)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    return file.getvalue()
