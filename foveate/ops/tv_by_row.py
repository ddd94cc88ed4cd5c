"""The total-variation prox with λ as a tensor: one per row, per head or for all, with its exact derivative.

On a piece of the space of (x, λ) where the fused groups stay the same, the prox is affine:

    `w_g = mean(x_g) − λ b_g`,  `b_g = (1 / |g|) Σ_{i in g, j not in g, i~j} sign(w_i − w_j)`

so that the derivative in λ is the signed boundary of each group over its size. The groups come from the operator; the
formula above, in torch, then has every derivative.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.ops.tv_solver import group_mean

_LEAST = 1e-20  # below it, the prox is the identity


def prox_by_row(
    x: Tensor,
    keep: Tensor,
    edges: Tensor | None,
    axes: int,
    smoothness: Tensor,
    solve: Callable[[Tensor, float], tuple[Tensor, Tensor, Tensor]],
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, groups and gap over the last axes of x, for smoothness with as many axes as x, 1 in the last ones.

    Args:
        x, keep: (..., *nodes) values and whether they count.
        edges: (E, 2) of a graph, None for a chain or a grid.
        axes: 1 or 2.
        smoothness: λ >= 0, which broadcasts to x.
        solve: the operator `(x, λ) -> value, labels, gap` for one number λ.
    """
    with torch.no_grad():
        # prox_λ(x) = λ prox_1(x / λ): one number for the operator, whatever the rows have.
        scale = smoothness.detach().clamp(min=_LEAST).to(x.dtype)
        rough, labels, gap = solve(torch.where(keep, x.detach() / scale, 0), 1.0)
        boundary = _boundary(rough, keep, edges, axes, labels)
    start = x.ndim - axes
    flat = labels.flatten(start)
    mean = group_mean(torch.where(keep, x, 0).flatten(start), flat).reshape(x.shape)
    pull = group_mean(boundary.flatten(start), flat).reshape(x.shape)
    return torch.where(keep, mean - smoothness.to(x.dtype) * pull, 0), labels, gap


def _boundary(value: Tensor, keep: Tensor, edges: Tensor | None, axes: int, labels: Tensor) -> Tensor:
    """`Σ_j sign(w_i − w_j)` over the neighbours j of each node that count and are in another group."""
    total = torch.zeros_like(value)
    if edges is not None:
        near, far = edges.long().unbind(-1)
        both = keep[..., near] & keep[..., far] & (labels[..., near] != labels[..., far])
        sign = torch.where(both, (value[..., near] - value[..., far]).sign(), 0)
        return total.index_add(-1, near, sign).index_add(-1, far, -sign)
    for dim in range(-axes, 0):
        n = value.shape[dim]
        if n < 2:
            continue
        (a, ka), (b, kb) = ([x.narrow(dim, at, n - 1) for x in (value, keep)] for at in (0, 1))
        apart = labels.narrow(dim, 0, n - 1) != labels.narrow(dim, 1, n - 1)
        sign = torch.where(ka & kb & apart, (a - b).sign(), 0)
        edge = torch.zeros_like(value.narrow(dim, 0, 1))
        total = total + torch.cat([sign, edge], dim) - torch.cat([edge, sign], dim)
    return total


def check_smoothness(where: str, smoothness: Tensor) -> None:
    """Raises an error if a known smoothness is negative or no floating-point tensor."""
    if not smoothness.is_floating_point():
        raise TypeError(f"{where}: expected floating-point smoothness, got {smoothness.dtype}; call .float() first")
    known = type(smoothness) in (Tensor, torch.nn.Parameter) and not smoothness.is_meta and smoothness.numel() > 0
    if known and not is_tracing() and not float(smoothness.detach().min()) >= 0:
        raise ValueError(
            f"{where}: expected smoothness >= 0, got {float(smoothness.detach().min()):g}; 0 leaves the scores as they "
            "are"
        )
