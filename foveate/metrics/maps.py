"""Measures of attention maps: against the true region or human maps, and of the shape of a map by itself.

A map (B, H, W) is a distribution over the cells of the image, as returned by `Attended.map`. The truth is a
distribution on the same grid; a region (B, H, W) in [0, 1] is the fraction of each cell that must be attended to.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.ops.density import Density
from foveate.ops.grid import cell_centres
from foveate.ops.support import above_uniform, label_components

MapMeasure = Callable[[Tensor, Tensor], Tensor]


def spearman(maps: Tensor, truth: Tensor) -> Tensor:
    """Rank correlation of two maps, (B,) in [-1, 1]; tied values receive their mean rank.

    ρ = cov(rank p, rank q) / √(var(rank p) var(rank q))

    The correlation with a constant map, which has no order, is 0.

    >>> spearman(torch.tensor([[[0.1, 0.2, 0.7]]]), torch.tensor([[[0.0, 0.4, 0.6]]])).item()
    1.0
    """
    _check("spearman", maps, truth)
    a, b = (_centred_ranks(x.flatten(1)) for x in (maps, truth))
    # Ranks of a constant map are all equal, so that its spread, and the correlation, would be 0 / 0.
    spread = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(spread > 0, (a * b).sum(-1) / spread.where(spread > 0, 1), 0).to(maps.dtype)


def box_maps(weights: Tensor, boxes: Tensor, H: int, W: int) -> Tensor:
    """Maps (B, H, W) of attention over regions: the weight of a region is spread evenly over its box.

    Args:
        weights: (B, N) attention weights.
        boxes: (B, N, 4) left, top, right, bottom in fractions of the image; an empty box keeps its weight out.
        H, W: rows and columns of the maps.

    >>> box_maps(torch.tensor([[1.0]]), torch.tensor([[[0.0, 0.0, 0.5, 1.0]]]), 1, 2).tolist()
    [[[1.0, 0.0]]]
    """
    check_shape("box_maps", "boxes", boxes, (*weights.shape, 4), "(B, N, 4)")
    boxes = boxes.to(weights)
    sides = []
    for low, high, cells in ((boxes[..., 1], boxes[..., 3], H), (boxes[..., 0], boxes[..., 2], W)):
        edges = torch.linspace(0, 1, cells + 1, dtype=weights.dtype, device=weights.device)
        inside = torch.minimum(high[..., None], edges[1:]) - torch.maximum(low[..., None], edges[:-1])
        sides.append(inside.clamp_min(0))
    areas = [side.sum(-1) for side in sides]
    share = weights / (areas[0] * areas[1]).clamp_min(torch.finfo(weights.dtype).tiny)
    maps = torch.einsum("bn,bnh,bnw->bhw", share.where(areas[0] * areas[1] > 0, 0), *sides)
    total = maps.sum((-2, -1), keepdim=True)
    return maps / total.where(total > 0, 1)


def mass_inside(maps: Tensor, region: Tensor) -> Tensor:
    """Fraction of the attention that falls inside the region, (B,): `Σ map · region`.

    >>> mass_inside(torch.tensor([[[0.75, 0.25]]]), torch.tensor([[[1.0, 0.0]]])).item()
    0.75
    """
    _check("mass_inside", maps, region)
    return (maps * region).sum((-2, -1))


def pointing(maps: Tensor, region: Tensor) -> Tensor:
    """The pointing game, (B,): 1 where the cell with the most attention touches the region, else 0.

    If several cells share the maximum, it is the fraction of them that touch the region.

    Reference: Zhang et al. 2016.

    >>> pointing(torch.tensor([[[0.7, 0.3]], [[0.5, 0.5]]]), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])).tolist()
    [0.0, 0.5]
    """
    _check("pointing", maps, region)
    top = maps == maps.amax((-2, -1), keepdim=True)  # exact: the maximum is one of the values
    return (top & (region > 0)).sum((-2, -1)) / top.sum((-2, -1)).to(maps.dtype)


def support_area(maps: Tensor) -> Tensor:
    """Fraction of the cells with non-zero attention, (B,): 1 for softmax and for Gaussians, which reach everywhere.

    >>> support_area(torch.tensor([[[0.5, 0.5, 0.0, 0.0]]])).item()
    0.5
    """
    check_floating("support_area", "maps", maps)
    return (maps > 0).flatten(-2).to(maps.dtype).mean(-1)


def connected_regions(maps: Tensor, above: float = 1.0) -> Tensor:
    """Number of connected regions of cells with more than the uniform weight, (B,) integers.

    Args:
        maps: (B, H, W).
        above: a cell counts if its weight is above this multiple of 1 / (H·W); 0 counts the regions of the support.

    Cells are neighbours if they share an edge, not if they share a corner.

    >>> connected_regions(torch.tensor([[[0.5, 0.0, 0.5]]])).item()
    2
    """
    check_floating("connected_regions", "maps", maps)
    check_number("connected_regions", "above", above, least=0, advice="0 counts the regions of the support")
    inside = above_uniform(maps.flatten(-2), multiple=above).reshape(maps.shape)
    # A region is labelled by its first cell, so that exactly one cell of each region carries its own number.
    cells = torch.arange(maps.shape[-2] * maps.shape[-1], device=maps.device).reshape(maps.shape[-2:])
    return (label_components(inside) == cells).sum((-2, -1))


def components(density: Density) -> Tensor:
    """Number of components of a density that carry any mass, one integer per example.

    >>> from foveate.ops.gaussian import Gaussian
    >>> components(Gaussian(torch.full((3, 2), 0.5), torch.eye(2).expand(3, 2, 2))).tolist()
    [1, 1, 1]
    """
    return (density.ellipses(0.5).weight > 0).sum(-1)


def uniform_maps(B: int, H: int, W: int) -> Tensor:
    """The same weight in every cell: the score of attending nowhere in particular.

    >>> uniform_maps(1, 1, 2).tolist()
    [[[0.5, 0.5]]]
    """
    return torch.full((B, H, W), 1 / (H * W))


def centre_maps(B: int, H: int, W: int, deviation: float = 0.2) -> Tensor:
    """A round Gaussian at the centre of the image, where photographers put their subject and annotators look first.

    Args:
        B, H, W: number of maps, and their grid.
        deviation: standard deviation of the Gaussian, as a fraction of the image.

    >>> centre_maps(1, 3, 3)[0].argmax().item()
    4
    """
    check_number("centre_maps", "deviation", deviation, above=0, advice="0.2 is a fifth of the image")
    squared = (cell_centres(H, W) - 0.5).square().sum(-1).reshape(H, W)
    weights = (-squared / (2 * deviation**2)).exp()
    return (weights / weights.sum()).expand(B, H, W)


def random_maps(B: int, H: int, W: int, generator: torch.Generator | None = None) -> Tensor:
    """Maps drawn uniformly from all distributions on the grid.

    >>> random_maps(2, 3, 3, torch.Generator().manual_seed(0)).sum((1, 2)).tolist()
    [1.0, 1.0]
    """
    # Normalised exponential variables are uniform on the simplex; −log u is exponential for a uniform u.
    weights = torch.rand(B, H, W, generator=generator, dtype=torch.float64).clamp(min=1e-300).log().neg()
    return (weights / weights.sum((-2, -1), keepdim=True)).float()


def baseline_maps(H: int, W: int) -> dict[str, Tensor]:
    """The baselines by name, (1, H, W) each in float64.

    The random one has a fixed seed, so that it is the same for every example however the split is cut into batches.
    """
    return {
        "uniform": uniform_maps(1, H, W).double(),
        "centre": centre_maps(1, H, W).double(),
        "random": random_maps(1, H, W, torch.Generator().manual_seed(0)).double(),
    }


def _centred_ranks(x: Tensor) -> Tensor:
    """Ranks along the last axis minus their mean; tied values receive their mean rank."""
    ordered = x.sort(-1).values
    # The mean rank of a tie is midway between the values below it and the values up to it.
    below = torch.searchsorted(ordered, x.contiguous(), right=False)
    upto = torch.searchsorted(ordered, x.contiguous(), right=True)
    return (below + upto).double() / 2 - x.shape[-1] / 2


def _check(where: str, maps: Tensor, other: Tensor) -> None:
    """Raises TypeError or ShapeError unless both are floating-point (B, H, W)."""
    check_floating(where, "maps", maps)
    check_floating(where, "the other maps", other)
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "the other maps", other, tuple(maps.shape), "(B, H, W)")
