"""Coordinates: the image is the unit square, points are (x, y), x right and y down. They are defined here only."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cell_centres(
    H: int, W: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Centres of the cells of an H x W grid, in row order.

    Cell (i, j) has its centre at ((j + 1/2) / W, (i + 1/2) / H).

    Args:
        H, W: rows and columns of the grid.
        dtype, device: of the result; torch's defaults when absent.

    Returns:
        (H*W, 2) points (x, y).

    >>> cell_centres(1, 2).tolist()
    [[0.25, 0.5], [0.75, 0.5]]
    """
    x = (torch.arange(W, dtype=dtype or torch.get_default_dtype(), device=device) + 0.5) / W
    y = (torch.arange(H, dtype=dtype or torch.get_default_dtype(), device=device) + 0.5) / H
    return torch.stack([x.expand(H, W), y[:, None].expand(H, W)], dim=-1).reshape(H * W, 2)


def cell_centres_1d(N: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Tensor:
    """Centres of N equal cells of the unit interval, `(n + 1/2) / N`, as (N, 1) points.

    >>> cell_centres_1d(2).tolist()
    [[0.25], [0.75]]
    """
    return ((torch.arange(N, dtype=dtype or torch.get_default_dtype(), device=device) + 0.5) / N)[:, None]


def linspace_centres(
    side: int, dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor:
    """`side**dim` points spaced evenly over the unit interval or square, ends included, in row order.

    >>> linspace_centres(2, 2).tolist()
    [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
    """
    line = torch.linspace(0, 1, side, dtype=dtype or torch.get_default_dtype(), device=device)
    if side == 1:
        line = line + 0.5
    if dim == 1:
        return line[:, None]
    return torch.stack([line.expand(side, side), line[:, None].expand(side, side)], dim=-1).reshape(side * side, 2)


def cell_variance(positions: Tensor, mask: Tensor | None = None) -> Tensor:
    """Variance of a uniform distribution over one cell, derived from the spacing of the cell centres.

    A cell of width w has variance w² / 12 along that axis; w is the smallest distance between two different
    coordinates, or 1 where all coordinates are equal (one cell covers the whole axis).

    Args:
        positions: (..., N, d) cell centres.
        mask: (..., N) True where a location counts.

    Returns:
        (..., d) variances.

    >>> cell_variance(cell_centres(2, 4, dtype=torch.float64)).mul(12).tolist()
    [0.0625, 0.25]
    """
    line = positions.detach().transpose(-1, -2)
    if mask is not None:
        # Masked positions sort to the end; their gaps are inf or NaN and fail the comparison below.
        line = torch.where(mask[..., None, :], line, torch.inf)
    gaps = line.sort(dim=-1).values.diff(dim=-1)
    # Equal coordinates may differ by rounding, hence the lower bound.
    gaps = torch.where(gaps > 1e-5, gaps, torch.inf)
    width = gaps.amin(-1) if gaps.shape[-1] else line.new_full(line.shape[:-1], torch.inf)
    return torch.where(torch.isinf(width), torch.ones_like(width), width).square() / 12


def grid_edges(H: int, W: int, *, device: torch.device | str | None = None) -> Tensor:
    """Pairs of neighbouring cells of an H x W grid, (E, 2), downwards first, then rightwards.

    >>> grid_edges(2, 2).tolist()
    [[0, 2], [1, 3], [0, 1], [2, 3]]
    """
    index = torch.arange(H * W, device=device).reshape(H, W)
    down = torch.stack([index[:-1], index[1:]], dim=-1).reshape(-1, 2)
    right = torch.stack([index[:, :-1], index[:, 1:]], dim=-1).reshape(-1, 2)
    return torch.cat([down, right])


def lattice_edges(*sizes: int, device: torch.device | str | None = None) -> Tensor:
    """Pairs of neighbouring cells of a grid of any number of axes, (E, 2), the first axis first.

    >>> lattice_edges(2, 1, 2).tolist()
    [[0, 2], [1, 3], [0, 1], [2, 3]]
    """
    index = torch.arange(math.prod(sizes), device=device).reshape(sizes)
    pairs = [(index.narrow(dim, 0, n - 1), index.narrow(dim, 1, n - 1)) for dim, n in enumerate(sizes) if n > 1]
    parts = [torch.stack(pair, dim=-1).reshape(-1, 2) for pair in pairs]
    return torch.cat(parts) if parts else index.new_zeros(0, 2)


def canvas_places(grid: Tensor, N: int, W: int) -> tuple[Tensor, Tensor]:
    """Positions of the locations of images with different grids on one canvas that is W columns wide.

    The locations of each image are in the row order of its grid, padded at the end.

    Args:
        grid: (B, 2) rows and columns of each image.
        N: locations per image, padding included.
        W: columns of the canvas.

    Returns:
        (B, N) index into the canvas, in row order, and (B, N) True where the location is not padding.

    >>> canvas_places(torch.tensor([[2, 1]]), 3, 2)
    (tensor([[0, 2, 0]]), tensor([[ True,  True, False]]))
    """
    rows, columns = grid.to(torch.long)[..., None].unbind(-2)
    n = torch.arange(N, device=grid.device)
    real = n < rows * columns
    columns = columns.clamp(min=1)
    return torch.where(real, (n // columns) * W + n % columns, 0), real


def ragged_centres(grid: Tensor, N: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """Cell centres of images with different grids, each in the row order of its grid, padded at the end.

    Args:
        grid: (B, 2) rows and columns of each image.
        N: locations per image, padding included; the points at padding lie below the image.

    Returns:
        (B, N, 2) points (x, y).

    >>> ragged_centres(torch.tensor([[1, 2]]), 2).tolist()
    [[[0.25, 0.5], [0.75, 0.5]]]
    """
    rows, columns = grid.clamp(min=1).to(dtype or torch.get_default_dtype())[..., None].unbind(-2)
    n = torch.arange(N, device=grid.device)
    x = (n % columns + 0.5) / columns
    y = (torch.div(n, columns, rounding_mode="floor") + 0.5) / rows
    return torch.stack([x, y], dim=-1)
