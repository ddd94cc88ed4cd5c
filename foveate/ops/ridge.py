"""From values on a grid to a value function: ridge regression on a basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask, check_number, check_shape
from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.grid import cell_centres, cell_centres_1d

Cells = tuple[int, ...]


def ridge_coefficients(
    values: Tensor,
    basis: Basis,
    grid: Sequence[int] | Tensor,
    penalty: float = 0.01,
    padding: bool = True,
    mask: Tensor | None = None,
) -> Tensor:
    """Coefficients of the value function `V(t) = Bᵀ ψ(t)` that fits the values at the cell centres best.

    `B = (F Fᵀ + penalty I)⁻¹ F values`, the columns of F being ψ at the cell centres; solved by Cholesky in float64.
    Without mask the solution operator depends on grid, basis and penalty alone and is kept between calls.

    Args:
        values: (B, N, D) one vector a location, in row order.
        basis: J functions; its dimension d is the number of axes of the grid.
        grid: (H, W) for pictures, (N,) on a line, for all examples; or an integer tensor (B, d) when they differ, the
            locations of an example then being its first H·W, the rest padding at the end.
        penalty: ridge penalty, above zero.
        padding: fit on a grid of about twice the side with zero values around the picture (half a side, rounded up, on
            each side), so that the value function falls to zero outside.
        mask: (B, N) True where a location counts; the others leave the fit, at the cost of one Cholesky an example.

    Returns:
        (B, J, D) coefficients, differentiable in the values. An example without any location has zeros.

    Reference: Farinhas 2021 (thesis), algorithm 1, (3.17): its H is our values, B our coefficients transposed, λ our
    penalty; padding: a footnote of its chapter 6.

    >>> from foveate.ops.basis import GaussianBasis
    >>> basis = GaussianBasis.for_grid(7, 7)
    >>> coefficients = ridge_coefficients(torch.ones(1, 49, 3), basis, grid=(7, 7), padding=False)
    >>> bool(((basis(torch.rand(5, 2)) @ coefficients[0] - 1).abs() < 0.05).all())
    True
    """
    where = "ridge_coefficients"
    check_floating(where, "values", values)
    check_shape(where, "values", values, (None, None, None), "(B, N, D)")
    check_number(where, "penalty", penalty, above=0, advice="the papers use 0.01")
    if mask is not None:
        check_mask(where, mask, values.shape[:2])
        mask = mask.expand(values.shape[:2])
        values = torch.where(mask.unsqueeze(-1), values, torch.zeros_like(values))
    groups = _groups(where, values, basis, grid)
    cells = groups[0][0]
    if len(groups) == 1 and mask is None and math.prod(cells) == values.shape[1]:
        return ridge_matrix(basis, cells, penalty, padding, values.dtype, values.device) @ values
    fit = values.new_zeros(values.shape[0], len(basis), values.shape[1])
    for cells, rows in groups:
        n = math.prod(cells)
        kept = None if mask is None else mask[rows, :n]
        if kept is None or bool(kept.all()):
            fit[rows, :, :n] = ridge_matrix(basis, cells, penalty, padding, values.dtype, values.device)
        else:
            fit[rows, :, :n] = _masked_matrix(basis, cells, penalty, padding, kept).to(values.dtype)
    return fit @ values


@torch.compiler.assume_constant_result
def ridge_matrix(
    basis: Basis, grid: Cells, penalty: float, padding: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The operator `(F Fᵀ + penalty I)⁻¹ F`, (J, N), from values on a full grid to coefficients.

    Kept between calls: do not write to it.

    >>> from foveate.ops.basis import GaussianBasis
    >>> ridge_matrix(GaussianBasis.grid(49), (14, 14), 0.01, True, torch.float32, torch.device("cpu")).shape
    torch.Size([49, 196])
    """
    return _ridge_matrix(basis, grid, penalty, padding, dtype, device)


@lru_cache(maxsize=64)
def _ridge_matrix(
    basis: Basis, grid: Cells, penalty: float, padding: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        F, system = _system(basis, grid, penalty, padding, device)
        return torch.cholesky_solve(F.T, torch.linalg.cholesky(system + F.T @ F)).to(dtype)


@torch.no_grad()
def _masked_matrix(basis: Basis, grid: Cells, penalty: float, padding: bool, kept: Tensor) -> Tensor:
    """The operator (b, J, N) of each example when only the locations `kept` (b, N) take part."""
    F, system = _system(basis, grid, penalty, padding, kept.device)
    seen = F * kept.unsqueeze(-1)
    return torch.cholesky_solve(seen.transpose(-1, -2), torch.linalg.cholesky(system + seen.transpose(-1, -2) @ F))


def _system(basis: Basis, grid: Cells, penalty: float, padding: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Functions at the locations of the picture (N, J), and the part of the system that they do not change (J, J)."""
    basis = basis.to(device)
    centres = _centres(grid, device)
    system = penalty * torch.eye(len(basis), dtype=torch.float64, device=device)
    if padding:
        around = basis(_surroundings(grid, device))
        system = system + around.T @ around
    return basis(centres), system


def _centres(grid: Cells, device: torch.device) -> Tensor:
    if len(grid) == 1:
        return cell_centres_1d(grid[0], dtype=torch.float64, device=device)
    return cell_centres(grid[0], grid[1], dtype=torch.float64, device=device)


def _surroundings(grid: Cells, device: torch.device) -> Tensor:
    """Centres of the cells around the picture: half a side, rounded up, on each side."""
    border = [math.ceil(n / 2) for n in grid]
    large = tuple(n + 2 * b for n, b in zip(grid, border, strict=True))
    factor = torch.tensor([m / n for m, n in zip(large, grid, strict=True)][::-1], dtype=torch.float64, device=device)
    shift = torch.tensor([b / n for b, n in zip(border, grid, strict=True)][::-1], dtype=torch.float64, device=device)
    centres = _centres(large, device) * factor - shift
    return centres[((centres < 0) | (centres > 1)).any(-1)]


def _groups(
    where: str, values: Tensor, basis: Basis, grid: Sequence[int] | Tensor
) -> list[tuple[Cells, slice | Tensor]]:
    """The different grids of a batch and the examples that have each."""
    B, N, _ = values.shape
    if isinstance(grid, Tensor):
        check_shape(where, "grid", grid, (B, basis.dim), "(B, d)")
        listed = [tuple(row) for row in grid.tolist()]
        index = {cells: [i for i, row in enumerate(listed) if row == cells] for cells in dict.fromkeys(listed)}
        groups: list[tuple[Cells, slice | Tensor]] = [
            (cells, torch.tensor(rows, device=values.device)) for cells, rows in index.items()
        ]
        fits = all(min(cells) > 0 and math.prod(cells) <= N for cells in index)
    else:
        groups = [(tuple(int(n) for n in grid), slice(None))]
        fits = len(grid) == basis.dim and min(grid) > 0 and math.prod(grid) == N
    if not fits:
        shown = grid.tolist() if isinstance(grid, Tensor) else tuple(grid)
        raise ShapeError(
            f"{where}: expected a grid of {basis.dim} axes whose cells are the {N} locations, got {shown}; "
            "give (H, W), (N,) on a line, or a tensor (B, d) for examples padded at the end"
        )
    return groups
