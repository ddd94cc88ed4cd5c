"""From values on a grid to a value function: ridge regression on a basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask, check_number, check_shape, is_tracing
from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.values import memo

Cells = tuple[int, ...]
Source = Basis | tuple[type[Basis], Cells]


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
    Without a mask the operator depends only on grid, basis and penalty and is kept between calls.

    Args:
        values: (B, N, D) one vector per location, in row order.
        basis: J functions; its dimension d is the number of axes of the grid.
        grid: (H, W) for images, (N,) on a line, for all examples; or an integer tensor (B, d) when they differ, the
            first H·W locations of an example are then its own, the rest is padding.
        penalty: ridge penalty, above zero.
        padding: fit on a grid of about twice the side with zero values around the image (half a side, rounded up, on
            each side), so that the value function decays to zero outside.
        mask: (B, N) True where a location counts; the others are left out of the fit, which then takes one Cholesky
            factorisation per example.

    Returns:
        (B, J, D) coefficients, differentiable in the values. Zeros for an example without any location.

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
    if not isinstance(grid, Tensor):
        return _fit(values, basis, _whole_grid(where, values, basis, grid), penalty, padding, mask)
    parts, order = [values.new_zeros(0, len(basis), values.shape[-1])], []
    for cells, rows in _groups(where, values, basis, grid):
        own = None if mask is None else mask[rows]
        parts.append(_fit(values[rows], basis, cells, penalty, padding, own))
        order += rows
    back = torch.tensor(order, dtype=torch.long, device=values.device).argsort()
    return torch.cat(parts)[back]


def _fit(values: Tensor, basis: Basis, cells: Cells, penalty: float, padding: bool, mask: Tensor | None) -> Tensor:
    """`ridge_coefficients` of examples that share a grid, whose cells are their first locations."""
    n = math.prod(cells)
    if mask is None or _counts_all(mask[:, :n]):
        return ridge_matrix(basis, cells, penalty, padding, values.dtype, values.device) @ values[:, :n]
    return _masked_matrix(basis, cells, penalty, padding, mask[:, :n]).to(values.dtype) @ values[:, :n]


def ridge_weights(
    expectations: Tensor, basis: Basis, grid: Cells, penalty: float, padding: bool, mask: Tensor | None = None
) -> Tensor:
    """The weights with which the expectation of the value function reads the values: `E[V] = Σ_n w_n v_n`.

    `w = r (F Fᵀ + penalty I)⁻¹ F`: one product for each expectation r instead of coefficients for every feature, and
    with a mask one triangular solve instead of N.

    Args:
        expectations: (B, Q, J) of the basis functions.
        basis, penalty, padding: as in `ridge_coefficients`.
        grid: the cells of all examples, N together.
        mask: (B, N) True where a location counts.

    Returns:
        (B, Q, N) weights in the dtype of the expectations, differentiable in them; 0 where masked.

    >>> from foveate.ops.basis import GaussianBasis
    >>> ridge_weights(torch.ones(1, 1, 49), GaussianBasis.for_grid(7, 7), (7, 7), 0.01, False).shape
    torch.Size([1, 1, 49])
    """
    if mask is None or _counts_all(mask):
        return expectations @ ridge_matrix(basis, grid, penalty, padding, expectations.dtype, expectations.device)
    with torch.no_grad():
        F, system = _system(_source(basis), grid, penalty, padding, mask.device)
        seen = F * mask.unsqueeze(-1)
        root = torch.linalg.cholesky(system + seen.transpose(-1, -2) @ F)
    solved = torch.cholesky_solve(expectations.double().transpose(-1, -2), root)
    return (seen @ solved).transpose(-1, -2).to(expectations.dtype)


def ridge_matrix(
    basis: Basis, grid: Cells, penalty: float, padding: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The operator `(F Fᵀ + penalty I)⁻¹ F`, (J, N), from values on a full grid to coefficients.

    Kept between calls, and a constant for torch.compile: do not write to it.

    >>> from foveate.ops.basis import GaussianBasis
    >>> ridge_matrix(GaussianBasis.grid(49), (14, 14), 0.01, True, torch.float32, torch.device("cpu")).shape
    torch.Size([49, 196])
    """
    return _matrix(_source(basis), grid, penalty, padding, dtype, device)


@memo(maxsize=64)
def _matrix(
    source: Source, grid: Cells, penalty: float, padding: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    F, system = _system(source, grid, penalty, padding, device)
    return torch.cholesky_solve(F.T, torch.linalg.cholesky(system + F.T @ F)).to(dtype)


@torch.no_grad()
def _masked_matrix(basis: Basis, grid: Cells, penalty: float, padding: bool, kept: Tensor) -> Tensor:
    """The operator (b, J, N) of each example when only the locations `kept` (b, N) take part."""
    F, system = _system(_source(basis), grid, penalty, padding, kept.device)
    seen = F * kept.unsqueeze(-1)
    return torch.cholesky_solve(seen.transpose(-1, -2), torch.linalg.cholesky(system + seen.transpose(-1, -2) @ F))


def _counts_all(mask: Tensor) -> bool:
    """Whether all locations count; False while tracing and on the meta device, where values cannot be inspected."""
    return not is_tracing() and not mask.is_meta and bool(mask.all())


def _source(basis: Basis) -> Source:
    """The basis, or how to make it: under torch.compile one made by `for_grid` has no numbers to compute with yet."""
    if torch.compiler.is_compiling() and basis.suits is not None:
        return type(basis), basis.suits
    return basis


@memo(maxsize=64)
def _system(source: Source, grid: Cells, penalty: float, padding: bool, device: torch.device) -> tuple[Tensor, Tensor]:
    """Functions at the locations of the image (N, J), and the part of the system that they do not change (J, J).

    Computed on the CPU wherever the values are, so that the meta device has it too.
    """
    basis = (source if isinstance(source, Basis) else source[0].for_grid(*reversed(source[1]))).to("cpu")
    system = penalty * torch.eye(len(basis), dtype=torch.float64)
    if padding:
        around = basis(_surroundings(grid))
        system = system + around.T @ around
    return basis(_centres(grid)).to(device), system.to(device)


def _centres(grid: Cells) -> Tensor:
    if len(grid) == 1:
        return cell_centres_1d(grid[0], dtype=torch.float64, device="cpu")
    return cell_centres(grid[0], grid[1], dtype=torch.float64, device="cpu")


def _surroundings(grid: Cells) -> Tensor:
    """Centres of the cells around the image: half a side, rounded up, on each side."""
    border = [math.ceil(n / 2) for n in grid]
    large = tuple(n + 2 * b for n, b in zip(grid, border, strict=True))
    factor = torch.tensor([m / n for m, n in zip(large, grid, strict=True)][::-1], dtype=torch.float64)
    shift = torch.tensor([b / n for b, n in zip(border, grid, strict=True)][::-1], dtype=torch.float64)
    centres = _centres(large) * factor - shift
    return centres[((centres < 0) | (centres > 1)).any(-1)]


def _whole_grid(where: str, values: Tensor, basis: Basis, grid: Sequence[int]) -> Cells:
    """The grid as a tuple; raises ShapeError if its cells are not the locations of the values."""
    # index() turns a symbolic size of torch.compile into a number, which the operator depends on
    cells = tuple(index(n) for n in grid)
    if len(cells) != basis.dim or math.prod(cells) != values.shape[1] or min(cells) < 1:
        raise _misfit(where, values, basis, cells)
    return cells


def _groups(where: str, values: Tensor, basis: Basis, grid: Tensor) -> list[tuple[Cells, list[int]]]:
    """The different grids of a batch and the examples that have each."""
    check_shape(where, "grid", grid, (values.shape[0], basis.dim), "(B, d)")
    groups: dict[Cells, list[int]] = {}
    for row, cells in enumerate(grid.tolist()):
        groups.setdefault(tuple(cells), []).append(row)
    if any(min(cells) < 1 or math.prod(cells) > values.shape[1] for cells in groups):
        raise _misfit(where, values, basis, grid.tolist())
    return list(groups.items())


def _misfit(where: str, values: Tensor, basis: Basis, grid: object) -> ShapeError:
    return ShapeError(
        f"{where}: expected a grid of {basis.dim} axes whose cells are the {values.shape[1]} locations, got {grid}; "
        "pass (H, W), (N,) on a line, or a tensor (B, d) for examples padded at the end"
    )
