"""Where a model looks, in numbers: against the true region or people's maps, and by the shape of the map alone.

A map (B, H, W) is a distribution over the cells of the picture, as `Attended.map` gives it. A truth is a distribution
on the same grid; a region is the share of each cell that must be looked at, (B, H, W) in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.ops.density import Density
from foveate.ops.grid import cell_centres

Measure = Callable[[Tensor, Tensor], Tensor]


def spearman(maps: Tensor, truth: Tensor) -> Tensor:
    """Rank correlation of two maps, (B,) in [-1, 1]; equal values share their mean rank.

    ρ = cov(rank p, rank q) / √(var(rank p) var(rank q))

    A map without any order, all cells alike, correlates with nothing: 0.

    >>> spearman(torch.tensor([[[0.1, 0.2, 0.7]]]), torch.tensor([[[0.0, 0.4, 0.6]]])).item()
    1.0
    """
    _check("spearman", maps, truth)
    a, b = (_centred_ranks(x.flatten(1)) for x in (maps, truth))
    spread = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    return torch.where(spread > 0, (a * b).sum(-1) / spread.where(spread > 0, 1), 0).to(maps.dtype)


def mass_inside(maps: Tensor, region: Tensor) -> Tensor:
    """Share of the attention that falls inside the region, (B,): `Σ map · region`.

    >>> mass_inside(torch.tensor([[[0.75, 0.25]]]), torch.tensor([[[1.0, 0.0]]])).item()
    0.75
    """
    _check("mass_inside", maps, region)
    return (maps * region).sum((-2, -1))


def pointing(maps: Tensor, region: Tensor) -> Tensor:
    """The pointing game, (B,): 1 where the cell with most attention touches the region, else 0.

    Where several cells share the maximum it is the share of them that touch the region.

    Reference: Zhang et al. 2016.

    >>> pointing(torch.tensor([[[0.7, 0.3]], [[0.5, 0.5]]]), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]])).tolist()
    [0.0, 0.5]
    """
    _check("pointing", maps, region)
    top = maps == maps.amax((-2, -1), keepdim=True)
    return (top & (region > 0)).sum((-2, -1)) / top.sum((-2, -1)).to(maps.dtype)


def support_area(maps: Tensor) -> Tensor:
    """Share of the cells with any attention, (B,). Softmax and Gaussians reach everywhere: 1.

    >>> support_area(torch.tensor([[[0.5, 0.5, 0.0, 0.0]]])).item()
    0.5
    """
    check_floating("support_area", "maps", maps)
    return (maps > 0).flatten(-2).to(maps.dtype).mean(-1)


def connected_regions(maps: Tensor, above: float = 1.0) -> Tensor:
    """Number of connected regions of cells that get more than their even share, (B,) integers.

    Args:
        maps: (B, H, W).
        above: a cell belongs when its weight is above this multiple of 1 / (H·W); 0 counts the parts of the support.

    Cells are neighbours across edges, not across corners.

    >>> connected_regions(torch.tensor([[[0.5, 0.0, 0.5]]])).item()
    2
    """
    check_floating("connected_regions", "maps", maps)
    check_number("connected_regions", "above", above, least=0, advice="0 counts the parts of the support")
    H, W = maps.shape[-2:]
    inside = maps > above / (H * W)
    # Every cell starts with a number of its own and takes the largest of its neighbours until nothing changes.
    labels = torch.where(inside, torch.arange(1, H * W + 1, device=maps.device).reshape(H, W), 0)
    while True:
        grown = torch.where(inside, _largest_around(labels), 0)
        if torch.equal(grown, labels):
            break
        labels = grown
    own = torch.arange(1, H * W + 1, device=maps.device)
    return (labels.flatten(-2) == own).sum(-1)


def components(density: Density) -> Tensor:
    """Number of components of a density that carry any mass, one integer an example.

    >>> from foveate.ops.gaussian import Gaussian
    >>> components(Gaussian(torch.full((3, 2), 0.5), torch.eye(2).expand(3, 2, 2))).tolist()
    [1, 1, 1]
    """
    return (density.ellipses(0.5).weight > 0).sum(-1)


def uniform_maps(B: int, H: int, W: int) -> Tensor:
    """All cells alike: what looking nowhere in particular scores.

    >>> uniform_maps(1, 1, 2).tolist()
    [[[0.5, 0.5]]]
    """
    return torch.full((B, H, W), 1 / (H * W))


def centre_maps(B: int, H: int, W: int, deviation: float = 0.2) -> Tensor:
    """A round Gaussian at the middle of the picture: people and cameras like it there.

    Args:
        B, H, W: how many, and their grid.
        deviation: of the Gaussian, in fractions of the picture.

    >>> centre_maps(1, 3, 3)[0].argmax().item()
    4
    """
    check_number("centre_maps", "deviation", deviation, above=0, advice="0.2 is a fifth of the picture")
    squared = (cell_centres(H, W) - 0.5).square().sum(-1).reshape(H, W)
    weights = (-squared / (2 * deviation**2)).exp()
    return (weights / weights.sum()).expand(B, H, W)


def random_maps(B: int, H: int, W: int, generator: torch.Generator | None = None) -> Tensor:
    """Maps drawn evenly from all distributions on the grid.

    >>> random_maps(2, 3, 3, torch.Generator().manual_seed(0)).sum((1, 2)).tolist()
    [1.0, 1.0]
    """
    weights = torch.rand(B, H, W, generator=generator, dtype=torch.float64).clamp(min=1e-300).log().neg()
    return (weights / weights.sum((-2, -1), keepdim=True)).float()


def _centred_ranks(x: Tensor) -> Tensor:
    """Ranks of the last axis less their mean, equal values sharing theirs: half the wins less the losses."""
    ordered = x.sort(-1).values
    below = torch.searchsorted(ordered, x.contiguous(), right=False)
    upto = torch.searchsorted(ordered, x.contiguous(), right=True)
    return (below + upto).double() / 2 - x.shape[-1] / 2


def _largest_around(labels: Tensor) -> Tensor:
    """The largest number of a cell and its four neighbours."""
    padded = torch.nn.functional.pad(labels, (1, 1, 1, 1))
    shifted = (padded[..., :-2, 1:-1], padded[..., 2:, 1:-1], padded[..., 1:-1, :-2], padded[..., 1:-1, 2:])
    largest = labels
    for other in shifted:
        largest = torch.maximum(largest, other)
    return largest


def _check(where: str, maps: Tensor, other: Tensor) -> None:
    check_floating(where, "maps", maps)
    check_floating(where, "the other maps", other)
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "the other maps", other, tuple(maps.shape), "(B, H, W)")
