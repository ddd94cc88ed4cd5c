"""Divergences between distributions over any number of axes, and their entropy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number
from foveate.errors import ShapeError


def kl_divergence(p: Tensor, q: Tensor, *, axes: int = 2, base: float = math.e, floor: float = 0.0) -> Tensor:
    """Kullback-Leibler divergence from q to p.

    KL(p ‖ q) = Σ_i p_i log(p_i / max(q_i, floor))

    Args:
        p, q: (..., H, W) distributions over the last `axes` axes.
        axes: number of axes of one distribution: 2 for maps, 1 for words.
        base: of the logarithm.
        floor: lower bound on q; with 0 the divergence is infinite where q is zero and p is not.

    Returns:
        (...) one number per distribution; locations with p = 0 contribute nothing.

    >>> kl_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.5, 0.5]]), base=2).item()
    1.0
    """
    _check("kl_divergence", p, q, axes, base)
    return _relative(p, q, floor).sum(_last(axes)) / math.log(base)


def js_divergence(
    p: Tensor, q: Tensor, *, axes: int = 2, base: float = 2.0, distance: bool = False, floor: float = 0.0
) -> Tensor:
    """Jensen-Shannon divergence, symmetric and at most log 2: 1 in base 2.

    JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),  m = ½ (p + q)

    Args:
        p, q, axes, base: as in `kl_divergence`.
        distance: return the square root, which is a metric.
        floor: lower bound on p and q inside their own logarithms, which keeps the gradient finite at zeros.

    Returns:
        (...) one number per pair.

    >>> js_divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])).item()
    1.0
    """
    _check("js_divergence", p, q, axes, base)
    m = 0.5 * (p + q)
    both = 0.5 * (_to_mean(p, m, floor) + _to_mean(q, m, floor)).sum(_last(axes)) / math.log(base)
    both = both.clamp(min=0)  # rounding may leave −1e-17 for equal distributions, which has no root
    return both.sqrt() if distance else both


def entropy(p: Tensor, *, axes: int = 2, base: float = 2.0) -> Tensor:
    """Entropy `−Σ p log p` of distributions over the last `axes` axes: 0 for one location, log N if uniform over N.

    >>> entropy(torch.full((2, 2), 0.25)).item()
    2.0
    """
    _check("entropy", p, p, axes, base)
    return -torch.xlogy(p, p).sum(_last(axes)) / math.log(base)


def _relative(p: Tensor, q: Tensor, floor: float) -> Tensor:
    """`p log(p / max(q, floor))`, zero where p is zero."""
    q = q.clamp(min=floor) if floor else q
    return torch.where(p > 0, torch.xlogy(p, p) - torch.xlogy(p, q), 0)


def _to_mean(p: Tensor, m: Tensor, floor: float) -> Tensor:
    """`p log(max(p, floor) / m)`, zero where p is zero, with a finite gradient there if the floor is positive."""
    own = p.clamp(min=floor) if floor else p
    return torch.xlogy(p, own) - torch.xlogy(p, torch.where(m > 0, m, 1))


def _last(axes: int) -> tuple[int, ...]:
    return tuple(range(-axes, 0))


def _check(where: str, p: Tensor, q: Tensor, axes: int, base: float) -> None:
    check_floating(where, "distributions", p)
    check_floating(where, "distributions", q)
    check_number(where, "base", base, above=1.0, advice="use 2 for bits, math.e for nats")
    if min(p.ndim, q.ndim) < axes or p.shape[-axes:] != q.shape[-axes:]:
        raise ShapeError(
            f"{where}: expected distributions over the same {axes} axes, got {tuple(p.shape)} and {tuple(q.shape)}; "
            "resample both to one grid, for example with ops.resample_map"
        )
