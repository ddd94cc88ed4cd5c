"""Structured transforms: sparsemax of a total-variation prox, so that neighbours share a weight.

    `argmin_{p in simplex} ½‖p − z‖² + λ Σ_{i~j} |p_i − p_j| = sparsemax(prox_{λ·TV}(z))`

The neighbours are those of a chain (fusedmax), of a grid (TVmax) or of any graph (gfusedmax).
Reference: Martins et al. 2020, eq. 5-7 and proposition 1; the ½ is missing in their eq. 6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.checks import check_dim, check_floating, check_mask, check_ndim
from foveate.ops.simplex import sparsemax
from foveate.ops.total_variation import prox_tv1d, prox_tv2d, prox_tv_graph


def fusedmax(scores: Tensor, smoothness: float = 0.1, dim: int = -1, mask: Tensor | None = None) -> Tensor:
    """Sparse weights in runs: neighbours along `dim` tend to share the same weight.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_n |p_{n+1} − p_n|`

    Args:
        scores: (..., N, ...) real numbers; -inf counts as masked, +inf shares the weight among the infinite ones.
        smoothness: λ ≥ 0; 0 gives sparsemax.
        dim: the axis that is normalised and along which neighbours are fused.
        mask: True where a location counts; broadcasts to the scores. Masked locations leave the chain.

    Returns:
        weights of the scores' shape and dtype that sum to one along `dim`; zeros where nothing can be attended to.
        Neighbours that end up exactly equal count as fused in the gradient.

    Reference: Niculae and Blondel 2017; Martins et al. 2020, eq. 6 on a chain.

    >>> fusedmax(torch.tensor([1.0, 1.2, 0.0, 0.0]), smoothness=0.2).tolist()
    [0.5, 0.5, 0.0, 0.0]
    """
    check_floating("fusedmax", "scores", scores)
    dim = check_dim("fusedmax", scores, dim)
    scores, mask = _finite("fusedmax", scores, mask, (dim,))
    fused = prox_tv1d(scores.movedim(dim, -1), smoothness, mask.movedim(dim, -1))
    return sparsemax(fused.movedim(-1, dim), dim, mask)


def tvmax(scores: Tensor, smoothness: float = 0.01, mask: Tensor | None = None) -> Tensor:
    """Sparse weights in patches: neighbouring cells of a grid tend to share the same weight.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_{i~j} |p_i − p_j|`  over the four neighbours

    Args:
        scores: (..., H, W) real numbers; -inf counts as masked, +inf shares the weight among the infinite ones.
        smoothness: λ ≥ 0; 0 gives sparsemax.
        mask: True where a cell counts; broadcasts to the scores. Images of different grids are padded and masked.

    Returns:
        weights of the scores' shape and dtype that sum to one over the last two axes; zeros where nothing can be
        attended to. Neighbours that end up exactly equal count as fused in the gradient.

    Reference: Martins et al. 2020, eq. 5 (their λ is ours).

    >>> tvmax(torch.tensor([[1.0, 1.0], [0.0, 0.0]]), smoothness=0.1)
    tensor([[0.5000, 0.5000],
            [0.0000, 0.0000]])
    """
    check_floating("tvmax", "scores", scores)
    check_ndim("tvmax", "scores", scores, 2, "(..., H, W)")
    scores, mask = _finite("tvmax", scores, mask, (-2, -1))
    fused = prox_tv2d(scores, smoothness, mask)
    return sparsemax(fused.flatten(-2), -1, mask.flatten(-2)).reshape(scores.shape)


def gfusedmax(scores: Tensor, edges: Tensor, smoothness: float = 0.1, mask: Tensor | None = None) -> Tensor:
    """Sparse weights on any graph: nodes joined by an edge tend to share the same weight.

    `p = argmin_{p in simplex} ½‖p − z‖² + λ Σ_{(i,j) in edges} |p_i − p_j|`

    Args:
        scores: (..., N) real numbers; -inf counts as masked, +inf shares the weight among the infinite ones.
        edges: (E, 2) pairs of node numbers.
        smoothness: λ ≥ 0; 0 gives sparsemax.
        mask: True where a node counts; broadcasts to the scores. Masked nodes leave the graph.

    Returns:
        weights of the scores' shape and dtype that sum to one along the last axis; zeros where nothing can be
        attended to. Nodes that are joined and end up exactly equal count as fused in the gradient.

    Reference: Martins et al. 2020, eq. 6-9.

    >>> gfusedmax(torch.tensor([1.0, 0.0, 1.2]), torch.tensor([[0, 2]]), smoothness=0.5).tolist()
    [0.5, 0.0, 0.5]
    """
    check_floating("gfusedmax", "scores", scores)
    check_ndim("gfusedmax", "scores", scores, 1, "(..., N)")
    scores, mask = _finite("gfusedmax", scores, mask, (-1,))
    return sparsemax(prox_tv_graph(scores, edges, smoothness, mask), -1, mask)


def _finite(where: str, scores: Tensor, mask: Tensor | None, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Scores with 0 for infinite ones, and the mask that says which locations are left."""
    keep = scores != -torch.inf
    if mask is not None:
        check_mask(where, mask, scores.shape)
        keep = keep & mask
    winners = (scores == torch.inf) & keep
    keep = torch.where(winners.any(dims[0], keepdim=True).any(dims[-1], keepdim=True), winners, keep)
    return torch.where(torch.isinf(scores), 0, scores), keep
