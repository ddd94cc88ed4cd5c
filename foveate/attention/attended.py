"""What every attention returns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.ops.density import Density
from foveate.ops.grid import canvas_places
from foveate.ops.resample import resample_map

Grid = tuple[int, ...] | Tensor


@dataclass(frozen=True)
class Attended:
    """The result of attending: what was read, and where.

    Attributes:
        context: (B, ..., D) the attended values.
        weights: (B, ..., N) the discrete weights; for a density, the ones it was fitted to.
        density: the continuous density, of batch shape (B, ...), or None for a discrete mechanism.
        grid: (H, W) rows and columns of the locations, (N,) in one dimension, or a (B, 2) tensor with one pair an
            example (each in the row order of its own grid, padded at the end), or None when there is no grid.
        mask: (B, N) True where a location counts, or None when all do.

    >>> seen = Attended(torch.zeros(1, 8), torch.full((1, 4), 0.25), grid=(2, 2))
    >>> seen.map().shape, seen.map(4, 4).sum().item()
    (torch.Size([1, 2, 2]), 1.0)
    """

    context: Tensor
    weights: Tensor
    density: Density | None = None
    grid: Grid | None = None
    mask: Tensor | None = None

    def map(self, H: int | None = None, W: int | None = None) -> Tensor:
        """The attention as an image that sums to one over the picture, whatever the mechanism.

        Args:
            H, W: rows and columns of the result; those of the grid (the largest one, where they differ) when absent.
                In one dimension H is the number of cells.

        Returns:
            (B, ..., H, W) mass per cell, (B, ..., H) in one dimension; zeros where there was nothing to attend to.
        """
        if self.grid is None:
            raise ShapeError("Attended.map: expected attention over a grid, got grid=None; pass grid=(H, W) to attend")
        size = grid_size(self.grid)
        H = size[0] if H is None else H
        if len(size) == 1:
            return self._line(H)
        W = size[1] if W is None else W
        if self.density is None:
            return resample_map(self._cells(size), H, W, self._used())
        return _share(self.density.to_map(H, W), self.weights, 2)

    def _line(self, N: int) -> Tensor:
        if self.density is None:
            return resample_map(self.weights[..., None, :], 1, N)[..., 0, :]
        return _share(self.density.to_map(N), self.weights, 1)

    def _cells(self, size: tuple[int, ...]) -> Tensor:
        if not isinstance(self.grid, Tensor):
            return self.weights.reshape(*self.weights.shape[:-1], *size)
        return to_canvas(self.weights, self.grid, size)

    def _used(self) -> Tensor | None:
        """The grid of each example, shaped to go beside the query axes."""
        if not isinstance(self.grid, Tensor):
            return None
        return self.grid.reshape(self.grid.shape[0], *[1] * (self.weights.ndim - 2), 2)


def grid_size(grid: Grid) -> tuple[int, ...]:
    """Rows and columns of the grid, or of the canvas that holds every grid of the batch.

    >>> grid_size(torch.tensor([[2, 5], [3, 4]]))
    (3, 5)
    """
    return tuple(int(n) for n in grid.amax(0)) if isinstance(grid, Tensor) else tuple(grid)


def to_canvas(x: Tensor, grid: Tensor, size: tuple[int, ...]) -> Tensor:
    """Lay (B, ..., N) locations of images with different grids on one (B, ..., H, W) canvas; 0 where there is none.

    >>> to_canvas(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[2, 1]]), (2, 2)).tolist()
    [[[1.0, 0.0], [2.0, 0.0]]]
    """
    places, real = (_beside(part, x) for part in canvas_places(grid, x.shape[-1], size[1]))
    canvas = x.new_zeros(*x.shape[:-1], size[0] * size[1])
    return canvas.scatter_add(-1, places, torch.where(real, x, 0)).reshape(*x.shape[:-1], *size)


def from_canvas(canvas: Tensor, grid: Tensor, N: int) -> Tensor:
    """Read (B, ..., N) locations back from the canvas; 0 at padding.

    >>> from_canvas(torch.tensor([[[1.0, 0.0], [2.0, 0.0]]]), torch.tensor([[2, 1]]), 3).tolist()
    [[1.0, 2.0, 0.0]]
    """
    flat = canvas.flatten(-2)
    like = flat.new_zeros(*flat.shape[:-1], N)
    places, real = (_beside(part, like) for part in canvas_places(grid, N, canvas.shape[-1]))
    return torch.where(real, flat.gather(-1, places), 0)


def _beside(part: Tensor, x: Tensor) -> Tensor:
    """(B, N) expanded over the query axes of x (B, ..., N)."""
    return part.reshape(part.shape[0], *[1] * (x.ndim - 2), part.shape[-1]).expand(x.shape)


def _share(mass: Tensor, weights: Tensor, axes: int) -> Tensor:
    """Mass per cell scaled to sum to one; zero where no weight was given."""
    dims = tuple(range(-axes, 0))
    total = mass.sum(dims, keepdim=True)
    there = (weights.sum(-1) > 0).reshape(*weights.shape[:-1], *[1] * axes)
    return torch.where(there & (total > 0), mass / torch.where(total > 0, total, 1), 0)
