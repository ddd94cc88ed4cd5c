"""What a plot shows of an attention: one example, its map relative to uniform attention, and a line of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.errors import ShapeError
from foveate.ops.compact import CompactDensity
from foveate.ops.density import Density
from foveate.ops.divergence import js_divergence
from foveate.ops.grid import cell_centres
from foveate.ops.mixture import Mixture
from foveate.ops.resample import resample_map

AttentionLike = Attended | Density
ExampleIndex = int | tuple[int, ...]
FINE = 240  # rows and columns on which a density is drawn
COMPARED = (14, 14)  # the grid on which a map is compared with the truth, as in the metrics


def select_example(where: str, attended: AttentionLike, index: ExampleIndex = 0) -> Attended:
    """One example as an `Attended` with a batch of one and without query axes, detached and on the CPU.

    Args:
        where: name of the caller, for messages.
        attended: what a mechanism returned, or a density of any batch shape.
        index: the example, or (example, query, ...) if there are query axes; ignored for a density without batch axes.

    >>> attended = Attended(torch.zeros(2, 3, 8), torch.full((2, 3, 4), 0.25), grid=(2, 2))
    >>> select_example("example", attended, (1, 2)).weights.shape
    torch.Size([1, 4])
    """
    if isinstance(attended, Density):
        batch, dim = attended.mean.shape[:-1], attended.mean.shape[-1]
        empty, one = attended.mean.new_zeros(*batch, 0), attended.mean.new_ones(*batch, 1)
        attended = Attended(empty, one, attended, (1,) * dim)
    batch = attended.weights.shape[:-1]
    at = () if not batch else (index,) if isinstance(index, int) else tuple(index)
    if len(at) != len(batch) or any(not -n <= i < n for i, n in zip(at, batch, strict=True)):
        raise ShapeError(
            f"{where}: expected an index into attention of batch shape {tuple(batch)}, got {index}; "
            "pass the example and, if there are query axes, the query"
        )
    grid = tuple(int(n) for n in attended.grid[at[0]]) if isinstance(attended.grid, Tensor) else attended.grid
    mask = None if attended.mask is None else attended.mask.expand(batch[0], -1)[at[0]][None].cpu()
    weights, context = (x[at].detach().cpu().float()[None] for x in (attended.weights, attended.context))
    if grid is not None and attended.density is None:
        weights = weights[:, : torch.Size(grid).numel()]
    density = None if attended.density is None else attended.density.map_tensors(lambda part: part[at].detach().cpu())
    return Attended(context, weights, density, grid, mask)


def heat(one: Attended, cells: bool) -> Tensor:
    """The map (H, W) of a single example relative to uniform attention; a density on a fine grid unless `cells`.

    Where a mask leaves out a part of the image, uniform attention is even over the rest.

    >>> heat(Attended(torch.zeros(1, 8), torch.tensor([[0.5, 0.5, 0.0, 0.0]]), grid=(2, 2)), cells=True).tolist()
    [[2.0, 2.0], [0.0, 0.0]]
    """
    seen = seen_cells(one)
    if one.density is None or cells:
        values = one.map()[0]
    else:
        values = one.density.pdf(cell_centres(FINE, FINE)).reshape(FINE, FINE)
    inside = torch.ones_like(values) if seen is None else stretch(seen, *values.shape).to(values)
    values = values * inside
    if one.density is None:
        return values * inside.sum()
    mean = values.sum() / inside.sum().clamp(min=1)
    attends = (mean > 0) & (one.weights.sum() > 0)
    return torch.where(attends, values / torch.where(attends, mean, 1), 0)


def seen_cells(one: Attended) -> Tensor | None:
    """(H, W) booleans: the cells that count, such as those inside the crop that a model sees; None if all do.

    >>> seen_cells(Attended(torch.zeros(1, 8), torch.ones(1, 2), grid=(1, 2), mask=torch.tensor([[True, False]])))
    tensor([[ True, False]])
    """
    if one.mask is None or not isinstance(one.grid, tuple) or len(one.grid) != 2:
        return None
    H, W = one.grid
    cells = one.mask[0, : H * W].reshape(H, W)
    return None if bool(cells.all()) else cells


def stretch(cells: Tensor, H: int, W: int) -> Tensor:
    """Booleans on another grid, each taking the cell that its centre lies in.

    >>> stretch(torch.tensor([[True, False]]), 1, 4)
    tensor([[ True,  True, False, False]])
    """
    rows, columns = (((torch.arange(n) + 0.5) * size / n).long() for n, size in zip((H, W), cells.shape, strict=True))
    return cells[rows[:, None], columns]


def truth_map(truth: Tensor, H: int, W: int) -> Tensor:
    """A region or a human map (h, w) as a distribution on an H x W grid."""
    mass = resample_map(truth.float(), H, W)
    return mass / mass.sum().clamp(min=torch.finfo(mass.dtype).tiny)


def summarise(one: Attended, truth: Tensor | None = None) -> str:
    """Area, components and background of a mixture, and divergence from the truth if it is known, in one line.

    The area (or length, in one dimension) is the fraction of the image with non-zero attention, K the number of
    components, the background the fraction of the attention that is nowhere in particular, JS the Jensen-Shannon
    divergence in bits on 14 x 14 cells. Without a grid: the number of regions with non-zero attention.

    >>> summarise(Attended(torch.zeros(1, 8), torch.tensor([[0.5, 0.5, 0.0, 0.0]]), grid=(2, 2)))
    'area 50 %'
    """
    if one.grid is None:
        return f"{int((one.weights > 0).sum())} of {one.weights.shape[-1]} regions"
    parts = [f"{'length' if len(one.grid) == 1 else 'area'} {100 * fraction_of_image(one):.0f} %"]
    if isinstance(one.density, Mixture):
        parts.append(f"K {int(one.density.components_used)}")
        background = background_weight(one.density)
        if background >= 0.005:  # below that it would be shown as 0 %
            parts.append(f"background {100 * background:.0f} %")
    if truth is not None and len(one.grid) == 2:
        js = js_divergence(one.map(*COMPARED)[0].float(), truth_map(truth, *COMPARED))
        parts.append(f"JS {js.item():.2f}")
    return ", ".join(parts)


def has_bounded_support(density: Density) -> bool:
    """True for densities that are zero outside of ellipses; a background reaches everywhere.

    >>> from foveate.ops import Gaussian
    >>> has_bounded_support(Gaussian(torch.zeros(2), torch.eye(2)))
    False
    """
    if isinstance(density, Mixture):
        return isinstance(density.components, CompactDensity) and background_weight(density) == 0
    return isinstance(density, CompactDensity)


def has_several_components(density: Density) -> bool:
    """True for a mixture with more than one component in use."""
    return isinstance(density, Mixture) and bool(density.components_used > 1)


def fraction_of_image(one: Attended) -> float:
    """The fraction of the image, or of the line, with non-zero attention."""
    if not bool(one.weights.sum() > 0):
        return 0.0
    seen = seen_cells(one)
    if one.density is not None:
        if has_bounded_support(one.density):
            return float(one.density.support_area())
        return 1.0 if seen is None else float(seen.float().mean())
    if seen is not None:
        return float((one.weights > 0).float().mean())
    counted = one.weights if one.mask is None else one.weights[one.mask[:, : one.weights.shape[-1]]]
    return float((counted > 0).float().mean())


def background_weight(density: Mixture) -> float:
    """The weight of the background of a single mixture."""
    return 0.0 if density.background is None else float(density.background.max())
