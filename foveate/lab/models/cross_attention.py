"""Cross attention between the fragments of images and sentences, from their inner products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from foveate.attention import Grid
from foveate.attention.arguments import mask_beside
from foveate.attention.discrete import DiscreteAttention
from foveate.checks import check_number
from foveate.errors import ShapeError, WrongType
from foveate.ops.support import above_uniform

SLOPE = 0.1
# Lower bound of lengths, so that nothing is divided by zero.
LEAST = 1e-8

Focus: TypeAlias = Callable[[Tensor, Tensor | None], Tensor]


class Aggregate(Protocol):
    """Reduces one number per query to one number per pair."""

    def __call__(self, relevance: Tensor, mask: Tensor | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Mean:
    """The mean over the queries that count; zero if none does.

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
    """A smooth maximum over the queries, `log Σ_q exp(λ r_q) / λ`; zero if no query counts.

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
        # Rows without a query that counts keep all of them, so that the gradient of the unused branch is finite.
        kept = mask | ~some[..., None]
        return torch.where(some, (relevance * self.factor).where(kept, -torch.inf).logsumexp(-1) / self.factor, 0)


class CrossAttention(nn.Module):
    """Attention of queries over keys and the relevance of the contexts, computed from cosines alone.

    With the cosines c_qk = q·k of unit vectors:

    x = leaky(c) / ‖leaky(c)‖ over the queries,  w = focus(transform(λ x)) over the keys,  a_q = Σ_k w_qk k
    r_q = cos(q, a_q) = Σ_k w_qk c_qk / √(w_qᵀ G w_q),  G = K Kᵀ

    so that the contexts a_q are never computed.

    Args:
        attend: a discrete attention, `mechanism("softmax")` in the papers, whose transform computes the weights.
        temperature: λ, the inverse temperature.
        focus: selects the keys that keep their weight, see `focus_equal`; None keeps all.

    Reference: Lee et al. 2018, eq. 1-5 and 9; Liu et al. 2019, eq. 4-8.
    """

    def __init__(self, attend: nn.Module, *, temperature: float, focus: Focus | None = None) -> None:
        super().__init__()
        if not isinstance(attend, DiscreteAttention):
            raise WrongType(
                f"CrossAttention: expected an attention with discrete weights, got {type(attend).__name__}; "
                'use mechanism("softmax"), "sparsemax", "tvmax" or another transform'
            )
        check_number("CrossAttention", "temperature", temperature, above=0, advice="9 is SCAN's, 20 is BFAN's")
        self.attend, self.temperature, self.focus = attend, temperature, focus

    def scores(self, cosines: Tensor, queries: Tensor | None = None) -> Tensor:
        """Scores λ x (X, Y, Q, K) of cosines; `queries` (X, Q) is True where a query counts."""
        x = functional.leaky_relu(cosines, SLOPE)
        if queries is not None:
            # Before normalising: the length of a column must not contain masked queries.
            x = x.where(queries[:, None, :, None], 0)
        length = x.square().sum(-2, keepdim=True).clamp_min(LEAST**2).sqrt()
        return x * (self.temperature / length)

    def weigh(self, scores: Tensor, grid: Grid | None = None, keys: Tensor | None = None) -> Tensor:
        """Weights (X, Y, Q, K) of scores; `keys` (X, K) is True where a key counts."""
        if grid is None and self.attend.row.axes == 2:
            raise ShapeError(f"{self.attend.name}: expected keys on a grid, got none; use it for images with a grid")
        weights = self.attend.weigh(scores, grid, keys)
        if self.focus is None:
            return weights
        # The selection is a step function of the weights and has no gradient.
        kept = weights * self.focus(weights.detach(), keys)
        return kept / kept.sum(-1, keepdim=True).clamp_min(LEAST)

    def relevance(
        self, cosines: Tensor, gram: Tensor, grid: Grid | None, keys: Tensor | None, queries: Tensor | None
    ) -> Tensor:
        """Relevance r (X, Y, Q), from the Gram matrix (X or 1, Y or 1, K, K) of the keys."""
        weights = self.weigh(self.scores(cosines, queries), grid, keys)
        length = _quadratic(weights, gram).clamp_min(LEAST**2).sqrt()
        return (weights * cosines).sum(-1) / length

    def attended(self, weights: Tensor, keys: Tensor | None = None) -> Tensor:
        """True where a key is attended to: with weight above 1/n, or above zero with a focus.

        Reference: Chen et al. 2021, §3.2 and §4.1, the function H.
        """
        if self.focus is not None:
            return weights > 0
        return above_uniform(weights, mask_beside(weights, keys))

    def extra_repr(self) -> str:
        """The temperature, for print."""
        return f"temperature={self.temperature}"


def expand_count(count: Tensor, weights: Tensor) -> Tensor:
    """(X,) with trailing axes of size one, so that it broadcasts with weights (X, ..., K)."""
    return count.reshape(-1, *[1] * (weights.ndim - 1))


def _quadratic(weights: Tensor, gram: Tensor) -> Tensor:
    """wᵀ G w over the last axis: (X, Y, Q) from weights (X, Y, Q, K) and a Gram matrix (X, 1, K, K) or (1, Y, K, K)."""
    if gram.shape[1] != 1:
        return _quadratic(weights.transpose(0, 1), gram.transpose(0, 1)).transpose(0, 1)
    # One matrix product per image, over all sentences and queries together.
    product = weights.flatten(1, 2) @ gram[:, 0]
    return (product.view(weights.shape) * weights).sum(-1)
