"""Structured transforms: sparsemax of a total-variation prox, so that neighbours share a weight.

    `argmin_{p in simplex} ½‖p − z‖² + λ Σ_{i~j} |p_i − p_j| = sparsemax(prox_{λ·TV}(z))`

The neighbours are those of a chain (fusedmax), of a grid (TVmax) or of any graph (gfusedmax).
Reference: Martins et al. 2020, eq. 5-7 and proposition 1; the ½ is missing in their eq. 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.checks import (
    as_number,
    at_least_float32,
    beside_rows,
    check_dim,
    check_floating,
    check_mask,
    check_ndim,
    check_number,
)
from foveate.errors import ShapeError
from foveate.ops import kernels
from foveate.ops.grid import lattice_edges
from foveate.ops.simplex import sparsemax
from foveate.ops.total_variation import check_edges, solve_tv
from foveate.ops.tv_solver import group_mean

# A score more than FAR_BELOW + 2 d λ below the largest of its row, d neighbours at most, is a mask: models add -1e4 or
# -1e9 where a key does not count. No weight survives there: the prox is z − Dᵀu with |u| ≤ λ, so that it moves a score
# by d λ at most, and sparsemax is zero from 1 below the largest on. What remains of such a score is its pull on its
# neighbours, which a mask must not have; scores that mean something lie closer together.
FAR_BELOW = 5e3


def fusedmax(scores: Tensor, smoothness: float | Tensor = 0.1, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparse weights in runs: neighbours along `dim` tend to share the same weight.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_n |p_{n+1} − p_n|`

    Args:
        scores: (..., N, ...) real numbers; -inf, and what is 5000 below the largest, counts as masked; +inf shares the
            weight among the infinite ones.
        smoothness: λ ≥ 0; with 0 the result is sparsemax. A tensor broadcasts to the scores with size 1 along the
            normalised axes (one per row, per head or for all), and gets its exact gradient.
        dim: the axis that is normalised and along which neighbours are fused.
        mask: True where a location counts; broadcasts to the scores. Masked locations leave the chain.

    Returns:
        weights of the scores' shape and dtype that sum to one along `dim`; zeros where there is nothing to attend
        to. Neighbours that end up exactly equal count as fused in the gradient.

    Reference: Niculae and Blondel 2017; Martins et al. 2020, eq. 6 on a chain.

    >>> fusedmax(torch.tensor([1.0, 1.2, 0.0, 0.0]), smoothness=0.2).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    check_floating("fusedmax", "scores", scores)
    dim = check_dim("fusedmax", scores, dim)
    smoothness = as_number(smoothness)
    if isinstance(smoothness, Tensor):
        smoothness = beside_rows("fusedmax", "smoothness", smoothness, scores, (dim,))
    elif _is_direct("fusedmax", scores, mask) and dim == scores.ndim - 1:
        return _fuse("fusedmax", scores, mask, smoothness)
    scores, mask = _finite("fusedmax", scores, smoothness, mask, (dim,))
    # By proposition 1, the simplex constraint may be applied after the prox.
    moved = scores.movedim(dim, -1)
    smoothness = smoothness.movedim(dim, -1) if isinstance(smoothness, Tensor) else smoothness
    fused = solve_tv("fusedmax", moved, smoothness, mask.movedim(dim, -1), dim=dim - scores.ndim).value
    return sparsemax(fused.movedim(-1, dim), dim, mask)


def tvmax(
    scores: Tensor,
    smoothness: float | Tensor = 0.01,
    mask: Tensor | None = None,
    *,
    grid: tuple[int, ...] | None = None,
) -> Tensor:
    """Sparse weights in patches of a grid, from scores (..., H, W): the last two axes are rows and columns.

    Neighbouring cells tend to share the same weight. Scores (..., H·W) of flattened grids need `grid=(H, W)`: without
    it, a batch (B, H·W) would be taken for one grid of B rows.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_{i~j} |p_i − p_j|`  over the four neighbours

    Args:
        scores: (..., H, W) real numbers; -inf, and what is 5000 below the largest, counts as masked; +inf shares the
            weight among the infinite ones.
        smoothness: λ ≥ 0; with 0 the result is sparsemax. A tensor broadcasts to the scores with size 1 along the
            normalised axes (one per row, per head or for all), and gets its exact gradient.
        mask: True where a cell counts; broadcasts to the scores. Images of different grids are padded and masked.
        grid: rows and columns of scores (..., H·W) in row order, or frames, rows and columns of a video, (T, H, W).

    Returns:
        weights of the scores' shape and dtype that sum to one over the last two axes; zeros where there is
        nothing to attend to. Neighbours that end up exactly equal count as fused in the gradient.

    Reference: Martins et al. 2020, eq. 5 (their λ is ours).

    >>> tvmax(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), smoothness=0.1)
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    >>> tvmax(torch.tensor([1.0, 1.0, 0.0, 0.0]), smoothness=0.1, grid=(2, 2)).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    check_floating("tvmax", "scores", scores)
    if grid is not None:
        return _tvmax_flat(scores, smoothness, mask, tuple(grid))
    check_ndim("tvmax", "scores", scores, 2, "(..., H, W)")
    smoothness = as_number(smoothness)
    if isinstance(smoothness, Tensor):
        smoothness = beside_rows("tvmax", "smoothness", smoothness, scores, (-2, -1))
    elif _is_direct("tvmax", scores, mask):
        return _fuse("tvmax", scores, mask, smoothness, axes=2)
    scores, mask = _finite("tvmax", scores, smoothness, mask, (-2, -1))
    fused = solve_tv("tvmax", scores, smoothness, mask, axes=2).value
    return sparsemax(fused.flatten(-2), -1, mask.flatten(-2)).reshape(scores.shape)


def _tvmax_flat(scores: Tensor, smoothness: float | Tensor, mask: Tensor | None, grid: tuple[int, ...]) -> Tensor:
    """TVmax of scores (..., N) in the row order of a grid of two or three axes."""
    if len(grid) not in (2, 3) or scores.ndim < 1 or scores.shape[-1] != math.prod(grid):
        raise ShapeError(
            f"tvmax: expected scores (..., N) for a grid of N cells, got {tuple(scores.shape)} and grid={grid}; pass "
            "grid=(H, W) or (T, H, W), or scores (..., H, W) without a grid"
        )
    if len(grid) == 3:
        return gfusedmax(scores, lattice_edges(*grid, device=scores.device), smoothness, mask)
    if mask is not None:
        check_mask("tvmax", mask, scores.shape)
        mask = mask.expand(*mask.shape[:-1], scores.shape[-1]).unflatten(-1, grid)
    smoothness = smoothness.unsqueeze(-1) if isinstance(smoothness, Tensor) and smoothness.ndim else smoothness
    return tvmax(scores.unflatten(-1, grid), smoothness, mask).flatten(-2)


def gfusedmax(scores: Tensor, edges: Tensor, smoothness: float | Tensor = 0.1, mask: Tensor | None = None) -> Tensor:
    """Sparse weights on any graph: nodes joined by an edge tend to share the same weight.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_{(i,j) in edges} |p_i − p_j|`

    Args:
        scores: (..., N) real numbers; -inf, and what is 5000 below the largest, counts as masked; +inf shares the
            weight among the infinite ones.
        edges: (E, 2) pairs of node numbers.
        smoothness: λ ≥ 0; with 0 the result is sparsemax. A tensor broadcasts to the scores with size 1 along the
            normalised axes (one per row, per head or for all), and gets its exact gradient.
        mask: True where a node counts; broadcasts to the scores. Masked nodes leave the graph.

    Returns:
        weights of the scores' shape and dtype that sum to one along the last axis; zeros where there is
        nothing to attend to. Nodes that are joined and end up exactly equal count as fused in the gradient.

    Reference: Martins et al. 2020, eq. 6-9.

    >>> gfusedmax(torch.tensor([1.0, 0.0, 1.2]), torch.tensor([[0, 2]]), smoothness=0.5).tolist()
    [0.5, 0.0, 0.5]
    """
    check_floating("gfusedmax", "scores", scores)
    check_ndim("gfusedmax", "scores", scores, 1, "(..., N)")
    smoothness = as_number(smoothness)
    check_edges("gfusedmax", edges, scores.shape[-1])
    if isinstance(smoothness, Tensor):
        smoothness = beside_rows("gfusedmax", "smoothness", smoothness, scores, (-1,))
    elif _is_direct("gfusedmax", scores, mask):
        return _fuse("gfusedmax", scores, mask, smoothness, edges=edges)
    scores, mask = _finite("gfusedmax", scores, smoothness, mask, (-1,), edges)
    return sparsemax(solve_tv("gfusedmax", scores, smoothness, mask, edges=edges).value, -1, mask)


def _finite(
    where: str,
    scores: Tensor,
    smoothness: float | Tensor,
    mask: Tensor | None,
    dims: tuple[int, ...],
    edges: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Scores with 0 where masked, and the mask of the locations that remain.

    Scores of +inf are above all others by any margin: only they remain and share the weight, with the gradient of ties.
    """
    if not isinstance(smoothness, Tensor):
        check_number(where, "smoothness", smoothness, least=0.0, advice="0 leaves the scores as they are")
    keep = scores != -torch.inf
    if mask is not None:
        check_mask(where, mask, scores.shape)
        keep = keep & mask
    if scores.numel():
        wide = at_least_float32(scores.detach())
        top = torch.where(keep, wide, -torch.inf).amax(dims, keepdim=True)
        keep = keep & ~(wide < top - (FAR_BELOW + 2 * _degree(scores, dims, edges) * smoothness))  # NaN is not below
    return torch.where(keep, scores, 0), keep


def _degree(scores: Tensor, dims: tuple[int, ...], edges: Tensor | None) -> float | Tensor:
    """The largest number of neighbours of a location."""
    if edges is None:
        return sum(min(2, scores.shape[dim] - 1) for dim in dims)
    ends = torch.where(edges[:, :1] == edges[:, 1:], scores.shape[-1], edges.long())  # a loop joins nothing
    counts = torch.zeros(scores.shape[-1] + 1, dtype=torch.long, device=edges.device)
    return counts.index_add(0, ends.flatten(), torch.ones_like(ends.flatten()))[:-1].amax().to(scores.device)


def _is_direct(where: str, scores: Tensor, mask: Tensor | None) -> bool:
    """True where one kernel can do the whole transform."""
    if mask is not None:
        check_mask(where, mask, scores.shape)
    return kernels.is_direct(scores) and (mask is None or kernels.is_direct_mask(mask))


def _fuse(
    where: str, scores: Tensor, mask: Tensor | None, smoothness: float, axes: int = 1, edges: Tensor | None = None
) -> Tensor:
    """The transform over the last axes in one step of the autograd graph."""
    check_number(where, "smoothness", smoothness, least=0.0, advice="0 leaves the scores as they are")
    return _fused(scores, mask, edges, axes, float(smoothness), where)


class _Fused(torch.autograd.Function):
    """`sparsemax(prox(scores))` with both gradients in one: that of sparsemax, then its mean inside each group."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, mask: Tensor | None, edges: Tensor | None, axes: int, smoothness: float, where: str
    ) -> Tensor:
        native = kernels.fused(scores, mask, edges, axes, smoothness)
        weights, labels = _fuse_torch(where, scores, mask, edges, axes, smoothness) if native is None else native
        ctx.save_for_backward(weights, labels)
        ctx.axes = axes
        return weights

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        weights, labels = ctx.saved_tensors
        result = kernels.fused_gradient(weights, labels, gradient, ctx.axes)
        if result is None:
            start = weights.ndim - ctx.axes
            parts = (x.flatten(start) for x in (weights, labels.long(), gradient))
            result = _fused_gradient(*parts).reshape(weights.shape)
        return result, None, None, None, None, None


_fused: Callable[..., Tensor] = _Fused.apply


def _fuse_torch(
    where: str, scores: Tensor, mask: Tensor | None, edges: Tensor | None, axes: int, smoothness: float
) -> tuple[Tensor, Tensor]:
    """Weights and groups where the kernel has none: empty batches, and scores that have to be explained."""
    finite, keep = _finite(where, scores, smoothness, mask, tuple(range(-axes, 0)), edges)
    solution = solve_tv(where, finite, smoothness, keep, axes=axes, edges=edges)
    start = scores.ndim - axes
    weights = sparsemax(solution.value.flatten(start), -1, keep.flatten(start)).reshape(scores.shape)
    return weights, solution.groups


def _fused_gradient(weights: Tensor, labels: Tensor, gradient: Tensor) -> Tensor:
    """Rows of examples: the gradient of sparsemax, then its mean inside each group."""
    support = (weights > 0).to(gradient.dtype)
    mean = (support * gradient).sum(-1, keepdim=True) / support.sum(-1, keepdim=True).clamp(min=1)
    own = torch.arange(labels.shape[-1], device=labels.device).expand(labels.shape)
    inner = group_mean(support * (gradient - mean), torch.where(labels >= 0, labels, own))
    return torch.where(labels >= 0, inner, 0)
