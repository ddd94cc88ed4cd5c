"""Attention from queries to keys and values with several heads and any transform."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.attended import Attended, Grid, without_padding
from foveate.attention.discrete import DiscreteAttention
from foveate.checks import check_mask, check_shape
from foveate.errors import ShapeError


class MultiheadAttention(nn.Module):
    """Scaled dot-product attention with M heads, in which any transform of the table can replace the softmax.

    context = W_o [head_1; …; head_M],  head_m = transform(Q_m K_mᵀ / √(D/M)) V_m

    The parameters have the names and shapes of `torch.nn.MultiheadAttention` (batch first, equal sizes), so its
    state_dict loads here, and the outputs with softmax are the same.

    Args:
        dim: D, features of queries, keys and values.
        heads: M, a divisor of D.
        transform: a name in TRANSFORMS; `options` are its options.
        dropout: fraction of the weights that are dropped in training.

    >>> attend = MultiheadAttention(8, heads=2, transform="sparsemax")
    >>> attend(torch.randn(1, 3, 8), torch.randn(1, 5, 8)).weights.shape
    torch.Size([1, 2, 3, 5])
    """

    def __init__(
        self, dim: int, heads: int, *, transform: str = "softmax", dropout: float = 0.0, **options: Any
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ShapeError(
                f"MultiheadAttention: expected heads that divide dim = {dim}, got {heads}; use {math.gcd(dim, heads)}"
            )
        self.heads = heads
        self.transform = DiscreteAttention(transform, **options)
        self.dropout = nn.Dropout(dropout)
        self.in_proj_weight = nn.Parameter(torch.empty(3 * dim, dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * dim))
        self.out_proj = nn.Linear(dim, dim)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor | None = None,
        *,
        grid: Grid | None = None,
        mask: Tensor | None = None,
    ) -> Attended:
        """Attend.

        Args:
            queries: (B, Q, D).
            keys: (B, N, D).
            values: (B, N, D); the keys when absent.
            grid: of the N locations, for transforms over a grid.
            mask: (B, N) True where a key counts, or (B, Q, N) per query.

        Returns:
            Attended with context (B, Q, D) and weights (B, M, Q, N); a query with nothing to attend to
            has zero weights, and its context is the output bias.
        """
        values = keys if values is None else values
        dim = self.out_proj.in_features
        check_shape("MultiheadAttention", "queries", queries, (None, None, dim), "(B, Q, D)")
        check_shape("MultiheadAttention", "keys", keys, (queries.shape[0], None, dim), "(B, N, D)")
        check_shape("MultiheadAttention", "values", values, tuple(keys.shape), "(B, N, D)")
        q, k, v = (self._split(x, i) for i, x in enumerate((queries, keys, values)))
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim // self.heads)
        weights = self._weigh(scores, grid, mask)
        context = self.dropout(weights) @ v
        context = self.out_proj(context.transpose(1, 2).flatten(2))
        shared = mask if mask is None or mask.ndim == 2 else None
        return Attended(context, weights, None, grid, without_padding(grid, shared, keys.shape[1]))

    def _split(self, x: Tensor, part: int) -> Tensor:
        """Project by the q, k or v part and split into heads: (B, M, N, D/M)."""
        dim = x.shape[-1]
        rows = slice(part * dim, (part + 1) * dim)
        y = nn.functional.linear(x, self.in_proj_weight[rows], self.in_proj_bias[rows])
        return y.reshape(*y.shape[:-1], self.heads, dim // self.heads).transpose(1, 2)

    def _weigh(self, scores: Tensor, grid: Grid | None, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self.transform.weigh(scores, grid)
        B, _, Q, N = scores.shape
        if mask.ndim == 2:
            check_mask("MultiheadAttention", mask, (B, N))
            return self.transform.weigh(scores, grid, mask)
        check_mask("MultiheadAttention", mask, (B, Q, N))
        # A mask per query has no (B, N) form; every transform treats the score -inf as masked.
        return self.transform.weigh(scores.masked_fill(~mask[:, None], -math.inf), grid)
