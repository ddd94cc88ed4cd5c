"""Which locations are attended to, and which of them hang together."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask
from foveate.ops.grid import grid_edges


def above_uniform(weights: Tensor, mask: Tensor | None = None, *, multiple: float = 1.0) -> Tensor:
    """Locations whose weight exceeds that of a uniform distribution.

    `w_i > multiple / n`, with n the number of locations that count

    Args:
        weights: (..., N) weights that sum to one.
        mask: True where a location counts; broadcasts to the weights.
        multiple: how many times the uniform weight must be exceeded; 0 returns the support.

    Returns:
        (..., N) booleans, False where masked.

    Reference: Chen et al. 2021, §3.2, the indicator H for n locations.

    >>> above_uniform(torch.tensor([0.6, 0.4, 0.0])).tolist()
    [True, True, False]
    >>> above_uniform(torch.tensor([0.6, 0.4, 0.0]), torch.tensor([True, True, False])).tolist()
    [True, False, False]
    """
    check_floating("above_uniform", "weights", weights)
    if mask is None:
        return weights * weights.shape[-1] > multiple
    check_mask("above_uniform", mask, weights.shape)
    # A mask of one column stands for all N locations, so it is expanded along that axis before counting.
    count = mask.expand(*mask.shape[:-1], weights.shape[-1]).sum(-1, keepdim=True)
    return (weights * count > multiple) & mask


def label_components(inside: Tensor) -> Tensor:
    """Connected components of the marked cells of grids; cells are neighbours across edges, not across corners.

    Args:
        inside: (..., H, W) booleans, True for the cells to be grouped.

    Returns:
        (..., H, W) integers: the smallest cell number, in row order, of the cell's component; -1 outside.

    >>> label_components(torch.tensor([[True, False, True], [True, False, True]])).tolist()
    [[0, -1, 2], [0, -1, 2]]
    """
    H, W = inside.shape[-2:]
    cells = inside.reshape(math.prod(inside.shape[:-2]), H * W)
    near, far = grid_edges(H, W, device=inside.device).unbind(-1)
    joined = (cells[:, near] & cells[:, far]).T
    return torch.where(inside, connected_components(H * W, near, far, joined).T.reshape(inside.shape), -1)


def connected_components(N: int, near: Tensor, far: Tensor, joined: Tensor) -> Tensor:
    """Connected components of B graphs on the same N nodes that keep different edges.

    Args:
        N: number of nodes.
        near, far: (E,) the two end nodes of each edge.
        joined: (E, B) True where a graph keeps the edge.

    Returns:
        (N, B) the smallest node number of each node's component.

    >>> connected_components(3, torch.tensor([0, 1]), torch.tensor([1, 2]), torch.tensor([[True], [False]])).T.tolist()
    [[0, 0, 2]]
    """
    B = joined.shape[-1]
    edge, graph = joined.nonzero(as_tuple=True)
    one, other = near[edge] * B + graph, far[edge] * B + graph
    root = torch.arange(N * B, device=joined.device)
    # Each round hooks the larger of two joined roots to the smaller one, then shortens every path to its root.
    while len(one):
        root = root.scatter_reduce(0, torch.maximum(one, other), torch.minimum(one, other), "amin")
        shorter = root[root]
        while not torch.equal(shorter, root):
            root, shorter = shorter, shorter[shorter]
        one, other = root[one], root[other]
        apart = one != other
        one, other = one[apart], other[apart]
    return torch.div(root, max(B, 1), rounding_mode="floor").reshape(N, B)
