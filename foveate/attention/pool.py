"""Pooling with learned queries: the head that replaces global average pooling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.attended import AnyGrid, Attended
from foveate.attention.multihead import MultiheadAttention
from foveate.errors import ShapeError


class AttentionPool(nn.Module):
    """Pool the features of an image with learned queries and any mechanism.

    `c = W_o [head_1; …; head_M]`, `head_m = attend(q_m K_mᵀ / √(D/M)) V_m` with learned queries q

    Takes the place of `features.mean((2, 3))` or of a multi-head attention pooling (MAP) head, and reports where it
    looked. One density per head and query for continuous mechanisms.

    Args:
        dim: D, features per location and of the result.
        mechanism: a name in MECHANISMS; `options` are its options.
        heads: M, a divisor of D.
        queries: number of learned queries.

    >>> pool = AttentionPool(8, mechanism="continuous-softmax")
    >>> seen = pool(torch.randn(2, 8, 7, 7))
    >>> seen.context.shape, seen.map().shape, seen.density.mean.shape
    (torch.Size([2, 8]), torch.Size([2, 7, 7]), torch.Size([2, 2]))
    """

    def __init__(
        self, dim: int, mechanism: str = "multimodal", heads: int = 1, queries: int = 1, **options: Any
    ) -> None:
        super().__init__()
        if queries < 1:
            raise ValueError(f"AttentionPool: expected queries >= 1, got {queries}; use 1")
        self.query = nn.Parameter(torch.randn(queries, dim) * dim**-0.5)
        self.attend = MultiheadAttention(dim, heads, transform=mechanism, **options)

    def forward(self, features: Tensor, grid: AnyGrid | None = None, mask: Tensor | None = None) -> Attended:
        """Pool.

        Args:
            features: (B, D, H, W), or (B, N, D) with the locations in the row order of the grid.
            grid: of the locations of (B, N, D); mechanisms over a grid need it.
            mask: (B, N) or (B, H, W), True where a location counts.

        Returns:
            Attended with context (B, D) for one query, else (B, Q, D). Weights, density and maps have batch shape
            (B, M, Q), without the axes of size one: (B, N) weights for one head and one query.
        """
        dim = self.attend.embed_dim
        if features.ndim == 4:
            if grid is not None:
                raise ShapeError(
                    f"AttentionPool: expected no grid beside features (B, D, H, W), got {grid!r}; leave it out"
                )
            grid = (features.shape[-2], features.shape[-1])
            features = features.flatten(2).transpose(1, 2)
        if features.ndim != 3 or features.shape[-1] != dim:
            raise ShapeError(
                f"AttentionPool: expected features (B, {dim}, H, W) or (B, N, {dim}), got {tuple(features.shape)}; "
                "move the feature axis"
            )
        mask = mask.flatten(1) if mask is not None and mask.ndim == 3 else mask
        queries = self.query.to(features.dtype).expand(features.shape[0], *self.query.shape)
        seen = self.attend(queries, features, grid=grid, mask=mask)
        return _without_single_axes(seen)

    def extra_repr(self) -> str:
        """The sizes, for print."""
        return f"dim={self.attend.embed_dim}, heads={self.attend.heads}, queries={len(self.query)}"


def _without_single_axes(seen: Attended) -> Attended:
    """The attention of (B, M, Q) without a head axis of one and a query axis of one."""
    B, M, Q = seen.weights.shape[:3]
    shape = (B, *(n for n in (M, Q) if n != 1))
    density = seen.density
    return replace(
        seen,
        context=seen.context[:, 0] if Q == 1 else seen.context,
        weights=seen.weights.reshape(*shape, seen.weights.shape[-1]),
        density=None if density is None else density.map_tensors(lambda part: part.reshape(*shape, *part.shape[3:])),
    )
