"""Moments of weighted points, and the algebra of small positive definite matrices that every density shares."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from foveate.checks import at_least_float32, check_floating, check_mask, check_ndim, check_number, is_tracing, raise_nan
from foveate.errors import ShapeError, WrongValue
from foveate.ops.grid import cell_variance
from foveate.ops.kernels import mixtures as native

Floor = float | Literal["cell"]

THINNEST = 3e-4  # a half axis below this fraction of a bump's width changes nothing that float64 could show


def match_moments(
    weights: Tensor, positions: Tensor, mask: Tensor | None = None, floor: Floor = "cell", *, where: str
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of points with weights.

    `μ = Σ p t`, `V = Σ p (t − μ)(t − μ)ᵀ + floor`. The points are centred before they are squared: `Σ p ttᵀ − μμᵀ`
    loses all digits of a narrow distribution in float32. (The centre m is a constant for autograd; with
    `δ = Σ p (t − m)` the identities `μ = m + δ` and `V = Σ p (t − m)(t − m)ᵀ − δδᵀ` keep every derivative exact.)

    Args:
        weights: (..., N) non-negative, each row sums to one; half precision is computed in float32.
        positions: (N, d) shared or (..., N, d).
        mask: (..., N) True where a location counts; weights elsewhere are ignored.
        floor: "cell" adds the variance of a point spread over its own cell; a number adds `floor * I`.
        where: name of the caller, for errors.

    Returns:
        Mean (..., d) and covariance (..., d, d). A row whose weights are all zero (nothing to attend to) gets the mean
        1/2 and the covariance I/12 of the whole image, with zero gradient.

    Reference: Farinhas 2021 (thesis), algorithm 2; 1e-6 is the floor of the authors' code.

    >>> mean, covariance = match_moments(torch.tensor([0.5, 0.5]), torch.tensor([[0.25], [0.75]]), where="example")
    >>> mean.tolist(), covariance.mul(48).tolist()  # 1/16 from the points, 1/48 from the width of the cells
    ([0.5], [[4.0]])
    """
    check_floating(where, "weights", weights)
    weights = at_least_float32(weights)
    positions = positions.to(weights)
    check_points(where, weights, positions, mask)
    added = floor_diagonal(where, positions, mask, floor)
    found = native.moments(weights, positions, mask, added)
    if found is not None:
        return found
    if mask is not None:
        weights = torch.where(mask, weights, torch.zeros_like(weights))
    d = positions.shape[-1]
    rough = (weights.detach().unsqueeze(-2) @ positions).squeeze(-2)
    sums = (_centred_features(positions, rough) * weights.unsqueeze(-2)).sum(-1)
    total = weights.sum(-1, keepdim=True)
    check_weights(where, weights, total)
    filled = total > 0
    sums = sums / torch.where(filled, total, torch.ones_like(total))
    shift, spread = sums[..., :d], sums[..., d:].unflatten(-1, (d, d))
    covariance = spread - shift.unsqueeze(-1) * shift.unsqueeze(-2) + torch.diag_embed(added)
    mean = torch.where(filled, rough + shift, torch.full_like(rough, 0.5))
    eye = torch.eye(d, dtype=mean.dtype, device=mean.device)
    return mean, torch.where(filled.unsqueeze(-1), covariance, eye / 12)


def check_weights(where: str, weights: Tensor, total: Tensor) -> None:
    """Raises ValueError if weights are negative or rows sum neither to one nor to zero; not while tracing."""
    if is_tracing() or weights.is_meta:
        return
    if weights.numel() == 0:
        return
    off = torch.where(total == 0, 0, (total - 1).abs())
    if bool(weights.amin() >= 0) and bool(off.amax() <= 1e-2):  # both are false for NaN
        return
    if bool(torch.isnan(weights).any()):
        raise_nan(where, "weights", weights)
    if bool((weights < 0).any()):
        raise WrongValue(
            f"{where}: expected weights >= 0, got {float(weights.min()):.4g}; pass scores through a transform first"
        )
    raise WrongValue(
        f"{where}: expected weights that sum to one over the mask, got {float(total[off > 1e-2][0]):.4g}; "
        "divide by the sum, or pass scores through a transform first"
    )


def check_parameters(where: str, mean: Tensor, matrix: Tensor, name: str) -> None:
    """Raises an error if shapes do not match, values are not finite or the matrix is not positive definite.

    The values are not checked while tracing or on the meta device.
    """
    check_floating(where, "mean", mean)
    check_floating(where, name, matrix)
    check_ndim(where, "mean", mean, 1, "(..., d)")
    expected = (*mean.shape, mean.shape[-1])
    if matrix.shape != expected:
        raise ShapeError(
            f"{where}: expected {name} (..., d, d) of shape {expected} beside mean {tuple(mean.shape)}, "
            f"got {tuple(matrix.shape)}; pass one d x d matrix per mean"
        )
    if is_tracing() or mean.is_meta or mean.numel() == 0 or native.is_sound(mean, matrix):
        return
    if bool(torch.isfinite(mean).all() & _is_positive_definite(matrix.detach())):
        return
    for label, x in (("mean", mean), (name, matrix)):
        if bool(torch.isnan(x).any()):
            raise_nan(where, label, x)
        if not bool(torch.isfinite(x).all()):
            raise WrongValue(f"{where}: expected finite {label}, got infinity; check for an overflow before this call")
    smallest = float(torch.linalg.eigvalsh(matrix.detach().double()).min())
    raise WrongValue(
        f"{where}: expected a symmetric, positive definite {name}, got smallest eigenvalue {smallest:.3g}; "
        "add a floor to its diagonal"
    )


def check_dimension(where: str, mean: Tensor) -> None:
    """Raises ShapeError if the mean has more than two coordinates."""
    if mean.ndim and mean.shape[-1] not in (1, 2):
        raise ShapeError(
            f"{where}: expected mean (..., 1) or (..., 2), got {tuple(mean.shape)}; use Gaussian beyond two"
        )


def lower_root(matrix: Tensor) -> Tensor:
    """Lower Cholesky factor L, `L Lᵀ = matrix` (..., d, d), in closed form for d = 1 and 2.

    Only the symmetric part of the matrix counts, so that its gradient is symmetric.

    >>> lower_root(torch.tensor([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    d = matrix.shape[-1]
    if d == 1:
        return matrix.sqrt()
    if d > 2:
        root: Tensor = torch.linalg.cholesky((matrix + matrix.transpose(-1, -2)) / 2)
        return root
    first = matrix[..., 0, 0].sqrt()
    below = 0.5 * (matrix[..., 0, 1] + matrix[..., 1, 0]) / first
    second = (matrix[..., 1, 1] - below.square()).sqrt()
    zero = torch.zeros_like(first)
    return torch.stack([first, zero, below, second], dim=-1).reshape(*first.shape, 2, 2)


def whiten(difference: Tensor, root: Tensor) -> Tensor:
    """`root⁻¹ difference` for every difference (..., P, d) and lower triangular root (..., d, d)."""
    d = root.shape[-1]
    if d == 1:
        return difference / root
    if d > 2:
        lower = root.expand(*difference.shape[:-2], d, d)
        solved: Tensor = torch.linalg.solve_triangular(lower, difference.transpose(-1, -2), upper=False)
        return solved.transpose(-1, -2)
    return torch.stack(_whitened_pair(difference, root), dim=-1)


def squared_distance(difference: Tensor, root: Tensor) -> Tensor:
    """`|root⁻¹ difference|²`, (..., P, d) and (..., d, d) -> (..., P)."""
    if root.shape[-1] != 2:
        return whiten(difference, root).square().sum(-1)
    x, y = _whitened_pair(difference, root)
    return x * x + y * y


def root_determinant(root: Tensor) -> Tensor:
    """Determinant of a triangular root, (..., d, d) -> (...)."""
    return root.diagonal(dim1=-2, dim2=-1).prod(-1)


def principal_axes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of symmetric 2 x 2 matrices, the larger first, and the angle of the first eigenvector.

    Args:
        matrix: (..., 2, 2) positive definite.

    Returns:
        Eigenvalues (..., 2) and angle (...) in (−π/2, π/2]. The smaller eigenvalue is taken from the determinant: a
        difference would lose the digits of a thin ellipse. Not differentiable where the eigenvalues are equal.

    >>> values, angle = principal_axes(torch.tensor([[1.0, 0.0], [0.0, 4.0]]))
    >>> values.tolist(), round(angle.item(), 4)
    ([4.0, 1.0], 1.5708)
    """
    a, c = matrix[..., 0, 0], matrix[..., 1, 1]
    b = 0.5 * (matrix[..., 0, 1] + matrix[..., 1, 0])
    larger = 0.5 * (a + c) + torch.hypot(0.5 * (a - c), b)
    smaller = (a * c - b * b) / larger
    return torch.stack([larger, smaller], dim=-1), 0.5 * torch.atan2(2 * b, a - c)


def half_axes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Half axes (..., d), the longer first, and directions (..., d, d), one per column, of `zᵀ matrix⁻¹ z = 1`.

    Lengths are in units of a bump; none is below THINNEST.
    """
    if matrix.shape[-1] == 1:
        return matrix.squeeze(-1).sqrt().clamp(min=THINNEST), torch.ones_like(matrix)
    squared, angle = principal_axes(matrix)
    cos, sin = angle.cos(), angle.sin()
    return squared.sqrt().clamp(min=THINNEST), torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))


def inverse_transpose(root: Tensor) -> Tensor:
    """`root⁻ᵀ` of lower triangular roots (..., d, d)."""
    return whiten(torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root), root)


def _whitened_pair(difference: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    x = difference[..., 0] / root[..., 0, 0, None]
    return x, (difference[..., 1] - root[..., 1, 0, None] * x) / root[..., 1, 1, None]


@torch.no_grad()
def _centred_features(positions: Tensor, centre: Tensor) -> Tensor:
    """`t − m` and `(t − m)(t − m)ᵀ` of every position, (..., d + d², N)."""
    centred = positions.transpose(-1, -2).contiguous() - centre.unsqueeze(-1)
    squares = (centred.unsqueeze(-3) * centred.unsqueeze(-2)).flatten(-3, -2)
    return torch.cat([centred, squares], dim=-2)


def floor_diagonal(where: str, positions: Tensor, mask: Tensor | None, floor: Floor) -> Tensor:
    """What a floor adds to the diagonal of a covariance: (d,), or (..., d) where the cells differ between examples."""
    if isinstance(floor, str):
        if floor != "cell":
            raise WrongValue(f"{where}: expected floor 'cell' or a number > 0, got {floor!r}; use floor='cell'")
        return cell_variance(positions, mask)
    check_number(where, "floor", floor, above=0, advice="the papers use 1e-6")
    return positions.new_full(positions.shape[-1:], floor)


def check_points(where: str, weights: Tensor, positions: Tensor, mask: Tensor | None) -> None:
    """Raises an error if positions or mask do not match the weights (..., N)."""
    check_ndim(where, "weights", weights, 1, "(..., N)")
    check_ndim(where, "positions", positions, 2, "(N, d) or (..., N, d)")
    if positions.shape[-2] != weights.shape[-1]:
        raise ShapeError(
            f"{where}: expected one position per weight, {weights.shape[-1]}, got {positions.shape[-2]}; "
            "use the cell centres of the grid the weights belong to"
        )
    if mask is not None:
        check_mask(where, mask, weights.shape)


def _is_positive_definite(matrix: Tensor) -> Tensor:
    transposed = matrix.transpose(-1, -2)
    symmetric = ((matrix - transposed).abs() <= 1e-3 * matrix.abs().amax()).all()
    wide = matrix.double()
    if matrix.shape[-1] > 2:
        info: Tensor = torch.linalg.cholesky_ex(wide).info
        return symmetric & torch.isfinite(wide).all() & (info == 0).all()
    root = lower_root(wide).diagonal(dim1=-2, dim2=-1)
    return symmetric & ((root > 0) & (root < math.inf)).all()
