"""A density for attention that is already there, whoever computed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from foveate.attention.attended import Attended, mask_beside, without_padding
from foveate.attention.continuous import ContinuousAttention, _positions
from foveate.attention.mechanism import mechanism
from foveate.errors import ShapeError, UnknownName


def fit_density(attended: Attended, name: str, options: Mapping[str, Any]) -> Attended:
    """The attention with the density that a continuous mechanism fits to its weights; see `Attended.fit`."""
    from foveate.attention import MECHANISMS

    if attended.grid is None:
        raise ShapeError("Attended.fit: expected attention over a grid, got grid=None; pass grid=(H, W) to attend")
    attend = mechanism(name, **options)
    if not isinstance(attend, ContinuousAttention):
        raise UnknownName("continuous mechanism", name, [key for key, row in MECHANISMS.items() if row.continuous])
    weights = attended.weights.to(torch.promote_types(attended.weights.dtype, torch.float32))
    total = weights.sum(-1, keepdim=True)
    weights = torch.where(total > 0, weights / torch.where(total > 0, total, 1), 0)
    mask = without_padding(attended.grid, attended.mask, weights.shape[-1])
    density = attend.fit(weights, _positions(weights, attended.grid), mask_beside(weights, mask), training=False)
    return replace(attended, weights=weights, density=density)
