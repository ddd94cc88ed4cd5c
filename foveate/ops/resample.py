"""Maps from one grid to another, keeping their mass."""

from __future__ import annotations

import torch
from torch import Tensor


def resample_map(weights: Tensor, H: int, W: int, grid: Tensor | None = None) -> Tensor:
    """Spread each cell's mass evenly over the cell and collect it on another grid of the same picture.

    m'_{ij} = Σ_{rs} m_{rs} · |cell ij ∩ cell rs| / |cell rs|

    Args:
        weights: (..., h, w) mass per cell.
        H, W: rows and columns of the result.
        grid: (..., 2) rows and columns that really are in use, top left, when the examples differ; all when absent.

    Returns:
        (..., H, W) mass per cell; the total is kept.

    >>> resample_map(torch.ones(1, 2), 1, 4).tolist()
    [[0.5, 0.5, 0.5, 0.5]]
    """
    h, w = weights.shape[-2:]
    sizes = (h, w) if grid is None else grid.to(weights).unbind(-1)
    down = _shares(H, h, sizes[0], weights)
    across = _shares(W, w, sizes[1], weights)
    return down @ weights @ across.transpose(-1, -2)


def _shares(new: int, old: int, count: Tensor | int, like: Tensor) -> Tensor:
    """(..., new, old) share of each old interval that lies in each new one; `count` old ones fill the whole."""
    count = torch.as_tensor(count, dtype=like.dtype, device=like.device)[..., None, None]
    start = torch.arange(old, dtype=like.dtype, device=like.device)
    edge = torch.arange(new, dtype=like.dtype, device=like.device)[:, None] * (count / new)
    low, high = torch.maximum(edge, start), torch.minimum(edge + count / new, start + 1)
    return (high - low).clamp(min=0)
