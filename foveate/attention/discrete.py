"""Attention with discrete weights, by any transform of the table."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.attended import Attended, Grid, from_canvas, grid_size, to_canvas
from foveate.attention.shapes import check_inputs, mask_beside, weighted_sum, without_padding
from foveate.errors import UnknownName
from foveate.ops import TRANSFORMS
from foveate.ops.grid import grid_edges
from foveate.registry import lookup


class DiscreteAttention(nn.Module):
    """Weights by a transform of the scores, context by the weighted sum of the values.

    c = Σ_n p_n v_n,  p = transform(z)

    Args:
        transform: a name in TRANSFORMS.
        options: of the transform: `alpha`, `smoothness`, `edges` (absent edges: the neighbours on the grid, or a chain
            where there is no grid).

    Reference: Martins et al. 2020, §2.

    >>> attend = DiscreteAttention("sparsemax")
    >>> attend(torch.tensor([[2.0, 0.0]]), torch.tensor([[[1.0], [5.0]]])).context.tolist()
    [[1.0]]
    """

    edges: Tensor | None

    def __init__(self, transform: str, **options: Any) -> None:
        super().__init__()
        self.row = lookup("transform", transform, TRANSFORMS)
        self.name = transform
        self.register_buffer("edges", options.pop("edges", None), persistent=False)
        known = set(signature(self.row.function).parameters) - {"scores", "dim", "mask", "edges"}
        for option in options:
            if option not in known:
                raise UnknownName(f"option of {transform}", option, known or {"none"})
        self.options = options

    def forward(self, scores: Tensor, values: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Attended:
        """Attend with scores (B, ..., N) to values (B, N, D) on a grid, where mask (B, N) is True."""
        check_inputs(self.name, scores, values, grid, mask, needs_grid=self.row.axes == 2)
        mask = without_padding(grid, mask, scores.shape[-1])
        weights = self.weigh(scores, grid, mask)
        return Attended(weighted_sum(weights, values), weights, None, grid, mask)

    def weigh(self, scores: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        """The weights alone, (B, ..., N)."""
        keep = mask_beside(scores, mask)
        if self.row.axes == 2:
            assert grid is not None
            return self._weigh_grid(scores, grid, keep)
        if self.row.needs_edges:
            return self.row.function(scores, self._edges(scores, grid), mask=keep, **self.options)
        return self.row.function(scores, mask=keep, **self.options)

    def _weigh_grid(self, scores: Tensor, grid: Grid, keep: Tensor | None) -> Tensor:
        size = grid_size(grid)
        if isinstance(grid, Tensor):
            kept = torch.ones_like(scores) if keep is None else keep.expand(scores.shape).to(scores.dtype)
            canvas = self.row.function(
                to_canvas(scores, grid, size), mask=to_canvas(kept, grid, size) > 0, **self.options
            )
            return from_canvas(canvas, grid, scores.shape[-1])
        cells = scores.reshape(*scores.shape[:-1], *size)
        keep = None if keep is None else keep.reshape(*keep.shape[:-1], *size)
        return self.row.function(cells, mask=keep, **self.options).flatten(-2)

    def _edges(self, scores: Tensor, grid: Grid | None) -> Tensor:
        if self.edges is not None:
            return self.edges
        size = (1, scores.shape[-1]) if grid is None or isinstance(grid, Tensor) or len(grid) < 2 else grid
        return grid_edges(size[0], size[1], device=scores.device)

    def extra_repr(self) -> str:
        """The transform and its options, for print."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])
