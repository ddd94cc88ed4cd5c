"""One way to call every transform of the table on (..., 12) scores, whatever its axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from foveate.ops import TRANSFORMS, Transform
from foveate.ops.grid import grid_edges

N, GRID = 12, (3, 4)
NAMES = list(TRANSFORMS)


def call(row: Transform, scores: Tensor, mask: Tensor | None = None, **options: Any) -> Tensor:
    """Weights (..., 12) of scores (..., 12): transforms over a grid see 3 x 4 cells, those over a graph its edges."""
    if row.needs_edges:
        return row.function(scores, grid_edges(*GRID), mask=mask, **options)
    if row.axes == 1:
        return row.function(scores, mask=mask, **options)
    cells = scores.unflatten(-1, GRID)
    return row.function(cells, mask=None if mask is None else mask.unflatten(-1, GRID), **options).flatten(-2)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Seeded normal scores."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
