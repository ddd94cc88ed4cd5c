"""How a state and locations are compared: the alignment models of attention (Farinhas 2021, table 2.1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

ScoreKind: TypeAlias = Literal["additive", "product", "dot", "scaled-dot", "general"]


class AdditiveScores(nn.Module):
    """Additive scores `z_n = wᵀ tanh(affine([v_n; h]))`.

    The affine map is split in two, so that the part of the locations is computed once per image.
    """

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.locations, self.state = nn.Linear(dim, size), nn.Linear(dim, size, bias=False)
        self.weight = nn.Parameter(torch.empty(size).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Scores (B, ..., N) of keys (B, N, S) = `locations(v)` and queries (B, ..., S) = `state(h)`."""
        B, N, S = keys.shape
        expanded = keys.reshape(B, *[1] * (queries.ndim - 2), N, S)
        return (expanded + queries[..., None, :]).tanh() @ self.weight


class ProductScores(nn.Module):
    """Scores `z_n = wᵀ (tanh(affine(v_n)) ⊙ tanh(affine(h)))`, one product of matrices for all words and locations.

    Additive scores must saturate their tanh before the location that is attended to depends on the state; these depend
    on it from the first step on.
    """

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, size: int) -> None:
        super().__init__()
        self.locations, self.state = nn.Sequential(nn.Linear(dim, size), nn.Tanh()), nn.Linear(dim, size)
        self.weight = nn.Parameter(torch.empty(size).uniform_(-(size**-0.5), size**-0.5))

    def forward(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Scores (B, ..., N) of keys (B, N, S) = `locations(v)` and queries (B, ..., S) = `state(h)`."""
        B, N, S = keys.shape
        scores = (queries.tanh() * self.weight).reshape(B, -1, S) @ keys.mT
        return scores.reshape(*queries.shape[:-1], N)


class DotScores(nn.Module):
    """Scores `z_n = v_n · h`, `v_n · h / √D` or, with a matrix between them, `v_nᵀ W h` (general; Luong et al. 2015).

    Args:
        dim: D, of locations and states.
        size: not used: the products need no size of their own.
        scaled: divide by √D.
        general: learn W; without it the two must live in one space from the start.
    """

    recomputable: ClassVar[bool] = True

    def __init__(self, dim: int, size: int, *, scaled: bool = False, general: bool = False) -> None:
        super().__init__()
        self.scale = dim**-0.5 if scaled else 1.0
        self.locations = nn.Identity()
        self.state = nn.Linear(dim, dim, bias=False) if general else nn.Identity()

    def forward(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Scores (B, ..., N) of keys (B, N, D) = `locations(v)` and queries (B, ..., D) = `state(h)`."""
        B, N, D = keys.shape
        scores = (self.scale * queries).reshape(B, -1, D) @ keys.mT
        return scores.reshape(*queries.shape[:-1], N)


SCORES: dict[str, Callable[[int, int], Any]] = {
    "additive": AdditiveScores,
    "product": ProductScores,
    "dot": DotScores,
    "scaled-dot": partial(DotScores, scaled=True),
    "general": partial(DotScores, general=True),
}
