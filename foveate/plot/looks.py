"""What is drawn of an attention: one example, its map in multiples of the even share, and the numbers beside it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

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

Seen = Attended | Density
Index = int | tuple[int, ...]
FINE = 240  # rows and columns on which a density is drawn
COMPARED = (14, 14)  # the grid on which a map is compared with the truth, as in the metrics


def pick(where: str, seen: Seen, index: Index = 0) -> Attended:
    """One example as an `Attended` with a batch of one and no query axes, detached and on the CPU.

    Args:
        where: name of the caller, for errors.
        seen: what a mechanism returned, or a density of any batch shape.
        index: the example, or (example, query, ...) where there are query axes; of no account for a lone density.

    >>> pick("example", Attended(torch.zeros(2, 3, 8), torch.full((2, 3, 4), 0.25), grid=(2, 2)), (1, 2)).weights.shape
    torch.Size([1, 4])
    """
    if isinstance(seen, Density):
        batch = seen.mean.shape[:-1]
        seen = Attended(seen.mean.new_zeros(*batch, 0), seen.mean.new_ones(*batch, 1), seen, (1,) * seen.mean.shape[-1])
    batch = seen.weights.shape[:-1]
    at = () if not batch else (index,) if isinstance(index, int) else tuple(index)
    if len(at) != len(batch) or any(not -n <= i < n for i, n in zip(at, batch, strict=True)):
        raise ShapeError(
            f"{where}: expected an index into attention of batch shape {tuple(batch)}, got {index}; "
            "name the example and, where there are query axes, the query"
        )
    grid = tuple(int(n) for n in seen.grid[at[0]]) if isinstance(seen.grid, Tensor) else seen.grid
    mask = None if seen.mask is None else seen.mask.expand(batch[0], -1)[at[0]][None].cpu()
    weights, context = (x[at].detach().cpu().float()[None] for x in (seen.weights, seen.context))
    if grid is not None and seen.density is None:
        weights = weights[:, : torch.Size(grid).numel()]
    return Attended(context, weights, None if seen.density is None else _row(seen.density, at), grid, mask)


def heat(one: Attended, cells: bool) -> Tensor:
    """The map of a picked example in multiples of the even share, (H, W); a density on a fine grid unless `cells`.

    >>> heat(Attended(torch.zeros(1, 8), torch.tensor([[0.5, 0.5, 0.0, 0.0]]), grid=(2, 2)), cells=True).tolist()
    [[2.0, 2.0], [0.0, 0.0]]
    """
    if one.density is None or cells:
        shown = one.map()[0]
        return shown * shown.numel()
    values = one.density.pdf(cell_centres(FINE, FINE)).reshape(FINE, FINE)
    mean = values.mean()
    there = (mean > 0) & (one.weights.sum() > 0)
    return torch.where(there, values / torch.where(there, mean, 1), 0)


def truth_map(truth: Tensor, H: int, W: int) -> Tensor:
    """A region or a human map (h, w) as a distribution on an H x W grid."""
    mass = resample_map(truth.float(), H, W)
    return mass / mass.sum().clamp(min=torch.finfo(mass.dtype).tiny)


def numbers(one: Attended, truth: Tensor | None = None) -> str:
    """Area, number of components and divergence from the truth, as far as there are such, in one line.

    Area (length on a line) is the share of the picture that gets any attention, JS the Jensen-Shannon divergence in
    bits on 14 x 14 cells. Without a grid: how many of the regions get any.

    >>> numbers(Attended(torch.zeros(1, 8), torch.tensor([[0.5, 0.5, 0.0, 0.0]]), grid=(2, 2)))
    'area 50 %'
    """
    if one.grid is None:
        return f"{int((one.weights > 0).sum())} of {one.weights.shape[-1]} regions"
    parts = [f"{'length' if len(one.grid) == 1 else 'area'} {100 * _area(one):.0f} %"]
    if isinstance(one.density, Mixture):
        parts.append(f"K {int(one.density.components_used)}")
    if truth is not None and len(one.grid) == 2:
        js = js_divergence(one.map(*COMPARED)[0].float(), truth_map(truth, *COMPARED))
        parts.append(f"JS {js.item():.2f}")
    return ", ".join(parts)


def is_sparse(density: Density) -> bool:
    """True for densities that are zero outside ellipses.

    >>> from foveate.ops import Gaussian
    >>> is_sparse(Gaussian(torch.zeros(2), torch.eye(2)))
    False
    """
    return isinstance(density.components if isinstance(density, Mixture) else density, CompactDensity)


def is_several(density: Density) -> bool:
    """True for a mixture with more than one component in use."""
    return isinstance(density, Mixture) and bool(density.components_used > 1)


def _area(one: Attended) -> float:
    if not bool(one.weights.sum() > 0):
        return 0.0
    if one.density is not None:
        return float(one.density.support_area()) if is_sparse(one.density) else 1.0
    counted = one.weights if one.mask is None else one.weights[one.mask[:, : one.weights.shape[-1]]]
    return float((counted > 0).float().mean())


def _row(density: Density, at: tuple[int, ...]) -> Any:
    """The density of one example, with batch shape ()."""
    parts = {field.name: getattr(density, field.name) for field in fields(density)}  # type: ignore[arg-type]
    chosen = {
        name: _row(part, at) if isinstance(part, Density) else part[at].detach().cpu()
        for name, part in parts.items()
        if isinstance(part, Tensor | Density)
    }
    return replace(density, **chosen)  # type: ignore[type-var]
