"""Attention with discrete weights, by any transform of the table."""

from __future__ import annotations

from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from foveate.attention.attended import (
    Attended,
    Grid,
    check_grid,
    check_inputs,
    from_canvas,
    grid_size,
    mask_beside,
    to_canvas,
    without_padding,
)
from foveate.errors import UnknownName
from foveate.ops import TRANSFORMS
from foveate.ops.grid import grid_edges
from foveate.ops.reading import weighted_sum
from foveate.registry import lookup


class DiscreteAttention(nn.Module):
    """Weights by a transform of the scores, context by the weighted sum of the values.

    c = Σ_n p_n v_n,  p = transform(z)

    Args:
        transform: a name in TRANSFORMS.
        options: of the transform: `alpha`, `smoothness`, or `edges` (E, 2); without edges, a transform of a graph uses
            the neighbours on the grid, or a chain if there is no grid.

    A grid of one dimension, `grid=(N,)`, is a chain for every transform.

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
        weights = self.weigh(scores, grid, mask)
        mask = without_padding(grid, mask, scores.shape[-1])
        return Attended(weighted_sum(weights, values, self.row.sparse), weights, None, grid, mask)

    def weigh(self, scores: Tensor, grid: Grid | None = None, mask: Tensor | None = None) -> Tensor:
        """The weights alone, (B, ..., N)."""
        B, N = scores.shape[0], scores.shape[-1]
        check_grid(self.name, grid, B, N, needs_grid=self.row.axes == 2)
        keep = mask_beside(scores, without_padding(grid, mask, N))
        if not isinstance(grid, Tensor):
            return self._transform(scores, _rows_and_columns(grid, N), keep)
        if self.row.axes == 1 and (self.edges is not None or not self.row.needs_edges):
            return self._transform(scores, (1, N), keep)  # neighbours on the grid do not matter
        # On one canvas, neighbours in each example's own grid are neighbours of the whole batch.
        size = _rows_and_columns(grid, N)
        counts = torch.ones_like(scores) if keep is None else keep.expand(scores.shape).to(scores.dtype)
        cells, kept = (to_canvas(x, grid, size).flatten(-2) for x in (scores, counts))
        weights = self._transform(cells, size, kept > 0)
        return from_canvas(weights.reshape(*scores.shape[:-1], *size), grid, N)

    def _transform(self, scores: Tensor, size: tuple[int, int], keep: Tensor | None) -> Tensor:
        """Weights of (..., H·W) scores in the row order of one grid."""
        if self.row.axes == 2:
            cells = scores.reshape(*scores.shape[:-1], *size)
            keep = None if keep is None else keep.reshape(*keep.shape[:-1], *size)
            return self.row.function(cells, mask=keep, **self.options).flatten(-2)
        if self.row.needs_edges:
            edges = grid_edges(*size, device=scores.device) if self.edges is None else self.edges
            return self.row.function(scores, edges, mask=keep, **self.options)
        return self.row.function(scores, mask=keep, **self.options)

    def extra_repr(self) -> str:
        """The transform and its options, for print."""
        return ", ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])


def _rows_and_columns(grid: Grid | None, N: int) -> tuple[int, int]:
    """The grid's rows and columns; one row for a grid of one dimension and for none."""
    size = (N,) if grid is None else grid_size(grid)
    return (1, size[0]) if len(size) == 1 else (size[0], size[1])
