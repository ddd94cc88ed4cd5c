"""Cross attention between the fragments of pictures and sentences, from their inner products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import Grid
from foveate.attention.discrete import DiscreteAttention
from foveate.checks import check_number
from foveate.errors import ShapeError

SLOPE = 0.1
# Lengths below it count as this long, so that nothing is divided by zero.
LEAST = 1e-8

Focus: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]


class Aggregate(Protocol):
    """From one number a query to one number a pair."""

    def __call__(self, relevance: Tensor, mask: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Mean:
    """The mean over the queries that count; zero when none does.

    >>> Mean()(torch.tensor([0.5, 1.5, 9.0]), torch.tensor([True, True, False])).item()
    1.0
    """

    def __call__(self, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., Q) to (...)."""
        if mask is None:
            return relevance.mean(-1)
        return relevance.where(mask, 0).sum(-1) / mask.sum(-1).clamp_min(1)


@dataclass(frozen=True)
class LogSumExp:
    """`log Σ_q exp(λ r_q) / λ`: the largest and a little for every other one near it; zero when no query counts.

    >>> round(LogSumExp(6.0)(torch.tensor([0.0, 1.0])).item(), 4)
    1.0004
    """

    factor: float = 6.0

    def __post_init__(self) -> None:
        check_number("LogSumExp", "factor", self.factor, above=0, advice="6 is SCAN's for text to image")

    def __call__(self, relevance: Tensor, mask: Tensor | None = None) -> Tensor:
        """(..., Q) to (...)."""
        if mask is None:
            return (relevance * self.factor).logsumexp(-1) / self.factor
        some = mask.any(-1)
        kept = mask | ~some[..., None]
        return torch.where(some, (relevance * self.factor).where(kept, -torch.inf).logsumexp(-1) / self.factor, 0)


class CrossAttention(nn.Module):
    """Queries look at keys: the scores, the weights and the relevance of what they read, from cosines alone.

    With the cosines c_qk = q·k of unit vectors:

    x = leaky(c) / ‖leaky(c)‖ over the queries,  w = focus(transform(λ x)) over the keys,  a_q = Σ_k w_qk k
    r_q = cos(q, a_q) = Σ_k w_qk c_qk / √(w_qᵀ G w_q),  G = K Kᵀ

    so that the attended vectors a_q are never made.

    Args:
        attend: a discrete attention, `mechanism("softmax")` in the papers; its transform makes the weights.
        temperature: λ, inverse.
        focus: says which of the weighted keys to keep, see `bfan`; None keeps all.

    Reference: Lee et al. 2018, eq. 1-5 and 9; Liu et al. 2019, eq. 4-8.
    """

    def __init__(self, attend: nn.Module, *, temperature: float, focus: Focus | None = None) -> None:
        super().__init__()
        if not isinstance(attend, DiscreteAttention):
            raise TypeError(
                f"CrossAttention: expected an attention with discrete weights, got {type(attend).__name__}; "
                'use mechanism("softmax"), "sparsemax", "tvmax" or another transform'
            )
        check_number("CrossAttention", "temperature", temperature, above=0, advice="9 is SCAN's, 20 is BFAN's")
        self.attend, self.temperature, self.focus = attend, temperature, focus

    def scores(self, cosines: Tensor, queries: Tensor | None = None) -> Tensor:
        """λ x (X, Y, Q, K); masked queries (X, Q) count nothing."""
        x = functional.leaky_relu(cosines, SLOPE)
        if queries is not None:
            x = x.where(queries[:, None, :, None], 0)
        length = x.square().sum(-2, keepdim=True).clamp_min(LEAST**2).sqrt()
        return x * (self.temperature / length)

    def weigh(self, scores: Tensor, grid: Grid | None = None, keys: Tensor | None = None) -> Tensor:
        """The weights (X, Y, Q, K) of scores, with masked keys (X, K)."""
        if grid is None and self.attend.row.axes == 2:
            raise ShapeError(f"{self.attend.name}: expected keys on a grid, got none; use it for pictures with a grid")
        weights = self.attend.weigh(scores, grid, keys)
        if self.focus is None:
            return weights
        kept = weights * self.focus(weights.detach(), keys)
        return kept / kept.sum(-1, keepdim=True).clamp_min(LEAST)

    def relevance(
        self, cosines: Tensor, gram: Tensor, grid: Grid | None, keys: Tensor | None, queries: Tensor | None
    ) -> Tensor:
        """r (X, Y, Q), for a Gram matrix (X or 1, Y or 1, K, K) of the keys."""
        weights = self.weigh(self.scores(cosines, queries), grid, keys)
        length = _quadratic(weights, gram).clamp_min(LEAST**2).sqrt()
        return (weights * cosines).sum(-1) / length

    def attended(self, weights: Tensor, keys: Tensor | None = None) -> Tensor:
        """True where a key is attended to: its weight is above 1/n; with a focus, above zero.

        Reference: Chen et al. 2021, §3.2 and §4.1, the function H.
        """
        if self.focus is not None:
            return weights > 0
        count = weights.shape[-1] if keys is None else beside(keys.sum(-1), weights)
        return weights * count > 1

    def extra_repr(self) -> str:
        """The temperature, for print."""
        return f"temperature={self.temperature}"


def beside(count: Tensor, weights: Tensor) -> Tensor:
    """(X,) shaped to go beside weights (X, ..., K)."""
    return count.reshape(-1, *[1] * (weights.ndim - 1))


def _quadratic(weights: Tensor, gram: Tensor) -> Tensor:
    """wᵀ G w over the last axis: (X, Y, Q, K) with (X, 1, K, K) or (1, Y, K, K) give (X, Y, Q)."""
    if gram.shape[1] != 1:
        return _quadratic(weights.transpose(0, 1), gram.transpose(0, 1)).transpose(0, 1)
    turned = weights.flatten(1, 2) @ gram[:, 0]
    return (turned.view(weights.shape) * weights).sum(-1)
