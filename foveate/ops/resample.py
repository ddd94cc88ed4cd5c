"""Resampling of maps from one grid to another, with their mass preserved."""

from __future__ import annotations

import torch
from torch import Tensor


def resample_map(weights: Tensor, H: int, W: int, grid: Tensor | None = None) -> Tensor:
    """Spread the mass of each cell evenly over the cell and collect it on another grid of the same image.

    m'_{ij} = Σ_{rs} m_{rs} · |cell ij ∩ cell rs| / |cell rs|

    Args:
        weights: (..., h, w) mass per cell.
        H, W: rows and columns of the result.
        grid: (..., 2) rows and columns in use, at the top left, when the examples differ; None when all are in use.

    Returns:
        (..., H, W) mass per cell, with the same total.

    >>> resample_map(torch.ones(1, 2), 1, 4).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    h, w = weights.shape[-2:]
    sizes = (h, w) if grid is None else grid.to(weights).unbind(-1)
    down = _fractions(H, h, sizes[0], weights)
    across = _fractions(W, w, sizes[1], weights)
    return down @ weights @ across.transpose(-1, -2)


def to_distribution(weights: Tensor, H: int, W: int) -> Tensor:
    """A map as a distribution on an H x W grid: the fraction of its mass in each cell; zeros if it has none.

    Args:
        weights: (..., h, w) non-negative, of any size.
        H, W: rows and columns of the result.

    Returns:
        (..., H, W), sums to one.

    >>> to_distribution(torch.tensor([[1.0, 2.0, 1.0]]), 1, 2).tolist()
    [[0.5, 0.5]]
    """
    mass = resample_map(weights, H, W)
    total = mass.sum((-2, -1), keepdim=True)
    return mass / total.where(total > 0, 1)


def _fractions(new: int, old: int, count: Tensor | int, like: Tensor) -> Tensor:
    """(..., new, old) fraction of each old interval inside each new one; `count` old intervals fill the image."""
    count = torch.as_tensor(count, dtype=like.dtype, device=like.device)[..., None, None]
    start = torch.arange(old, dtype=like.dtype, device=like.device)
    edge = torch.arange(new, dtype=like.dtype, device=like.device)[:, None] * (count / new)
    # Overlap of the new interval [edge, edge + count / new] with the old [start, start + 1], in units of old ones.
    low, high = torch.maximum(edge, start), torch.minimum(edge + count / new, start + 1)
    return (high - low).clamp(min=0)
