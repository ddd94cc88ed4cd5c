"""Expectation of basis functions under a density: the integral of a product of two bumps, with its gradient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.moments import lower_root, principal_axes, root_determinant, whiten
from foveate.ops.quadrature import ball_moments, chord_moments
from foveate.ops.radial import peak, radial_pdf, support_ratio

# A half axis below this share of the bump's width changes nothing that float64 could show.
THINNEST = 3e-4


def expect_basis(where: str, mean: Tensor, covariance: Tensor, power: float, basis: Basis) -> Tensor:
    """`r_j = ∫ p(t) ψ_j(t) dt` for a density p of the family in `ops/radial.py`.

    | density | basis | how |
    |---|---|---|
    | Gaussian | Gaussian | `N(μ_j; μ, V + V_j)`, any dimension |
    | paraboloid | Gaussian | chords; also Gaussian density and paraboloid basis, with the roles exchanged |
    | the rest | | Gauss's rule along every axis |

    Args:
        where: name of the caller, for errors.
        mean: (..., d) mean of the density.
        covariance: (..., d, d) its covariance.
        power: its exponent, infinite for a Gaussian; d = 1 or 2 unless density and basis are Gaussian.
        basis: J functions of the same dimension.

    Returns:
        (..., J) in the dtype of `mean`, computed in float64: in float32 a difference of erfc loses all digits of a thin
        chord.
    """
    d = mean.shape[-1]
    if basis.dim != d:
        raise ShapeError(f"{where}: expected a basis of dimension {d}, got {basis.dim}; use grid(count, dim={d})")
    centres, variance = (x.to(mean.device, torch.float64) for x in (basis.centres, basis.variance))
    wide, matrix = mean.double(), covariance.double()
    if math.isinf(power) and math.isinf(basis.power):
        wider = matrix + torch.diag(variance)
        if d == 2:
            return _Normal.apply(wide, wider, centres)[0].to(mean.dtype)
        return radial_pdf(centres - wide.unsqueeze(-2), wider, math.inf).to(mean.dtype)
    if d > 2:
        raise ShapeError(f"{where}: expected dimension 1 or 2, got {d}; only Gaussians with a GaussianBasis go further")
    flat_mean, flat_matrix = wide.reshape(-1, d), matrix.reshape(-1, d, d)
    function = _Smoothed if math.isinf(power) else _Supported
    r = function.apply(flat_mean, flat_matrix, centres, variance, power, basis.power)[0]
    return r.reshape(*mean.shape[:-1], len(basis)).to(mean.dtype)


class _Expectation(torch.autograd.Function):
    """Base of the expectations: `forward` returns the value first, then what `backward` needs."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output)
        ctx.options = inputs[4:]


class _Normal(_Expectation):
    """`N(μ_j; μ, V)` in the plane, for means (..., 2), matrices (..., 2, 2) and J centres.

    With `z = L⁻¹ (μ_j − μ)`, `L Lᵀ = V`: `∂r/∂μ = r L⁻ᵀ z`, `∂r/∂V = ½ r L⁻ᵀ (z zᵀ − I) L⁻¹`.
    """

    @staticmethod
    def forward(mean: Tensor, matrix: Tensor, centres: Tensor) -> tuple[Tensor, ...]:
        root = lower_root(matrix)
        x = (centres[:, 0] - mean[..., :1]) / root[..., 0, :1]
        y = (centres[:, 1] - mean[..., 1:] - root[..., 1, :1] * x) / root[..., 1, 1:]
        r = torch.exp(-0.5 * (x * x + y * y)) / (2 * math.pi * root_determinant(root)).unsqueeze(-1)
        return r, x, y, root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor, Tensor, None]:
        r, x, y, root = ctx.saved_tensors
        weight = grad * r
        wx, wy = weight * x, weight * y
        total, xy = weight.sum(-1), (wx * y).sum(-1)
        first = torch.stack([wx.sum(-1), wy.sum(-1)], dim=-1).unsqueeze(-1)
        inner = torch.stack([(wx * x).sum(-1) - total, xy, xy, (wy * y).sum(-1) - total], dim=-1).unflatten(-1, (2, 2))
        inverse = torch.linalg.solve_triangular(root, torch.eye(2, dtype=root.dtype, device=root.device), upper=False)
        up = inverse.transpose(-1, -2)
        return (up @ first).squeeze(-1), 0.5 * (up @ inner @ inverse), None


class _Supported(_Expectation):
    """Density with bounded support, any basis.

    With `E = L R semi² Rᵀ Lᵀ` (L the widths of the bump, R a rotation), `Q = L⁻ᵀ R semi⁻¹` and the integrals M of
    `1, u, u uᵀ` times `[1 − |u|²]^{m−1} ψ_j`: `r = K (M_1 − tr M_uu)`, `∂r/∂μ = 2 m K Q M_u`,
    `∂r/∂E = K Q (m M_uu − ½ (M_1 − tr M_uu) I) Qᵀ`, `K = c |E|^{−1/2}`.
    """

    @staticmethod
    def forward(
        mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
    ) -> tuple[Tensor, ...]:
        d = mean.shape[-1]
        width = (variance * (2 if math.isinf(bump) else support_ratio(bump, d))).sqrt()
        semi, axes = _frame(support_ratio(power, d) * covariance / (width.unsqueeze(-1) * width))
        centre = ((centres - mean.unsqueeze(-2)) / width) @ axes
        moments = _moments(semi, centre, power, bump)
        factor = peak(power, d) / (semi.prod(-1) * width.prod())
        r = factor.unsqueeze(-1) * _value(moments)
        return r, moments, axes / width.unsqueeze(-1) / semi.unsqueeze(-2), factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        _r, moments, Q, factor = ctx.saved_tensors
        m = ctx.options[0]
        total = (grad.unsqueeze(-2) @ moments).squeeze(-2) * factor.unsqueeze(-1)
        first, second = _unpack(total)
        eye = torch.eye(first.shape[-1], dtype=grad.dtype, device=grad.device)
        inner = m * second - 0.5 * _value(total)[..., None, None] * eye
        mean_grad = (2 * m * Q @ first.unsqueeze(-1)).squeeze(-1)
        ratio = support_ratio(m, first.shape[-1])
        return mean_grad, ratio * (Q @ inner @ Q.transpose(-1, -2)), None, None, None, None


class _Smoothed(_Expectation):
    """Gaussian density, basis with bounded support: the same integral as `_Supported` with the roles exchanged.

    The support is now the basis function's, and the derivative is wanted in the Gaussian. In coordinates in which the
    Gaussian is `exp(−|z|²)`, `∂r/∂c = −2 m K M_u / semi`; scaling the plane scales r, which gives
    `∂r/∂V = −2 m K ∫ (z − c) (u / semi)ᵀ`.
    """

    @staticmethod
    def forward(
        mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
    ) -> tuple[Tensor, ...]:
        d = mean.shape[-1]
        support = support_ratio(bump, d) * variance
        root = lower_root(2 * covariance)
        bumps = whiten(torch.diag(support.sqrt()).expand_as(root), root).transpose(-1, -2)
        semi, axes = _frame(bumps @ bumps.transpose(-1, -2))
        centre = whiten(mean.unsqueeze(-2) - centres, root) @ axes
        moments = _moments(semi, centre, bump, power)
        inverse = whiten(torch.eye(d, dtype=mean.dtype, device=mean.device).expand_as(root), root)
        factor = peak(bump, d) / support.prod().sqrt()
        return factor * _value(moments), moments, inverse @ axes, semi, centre, factor

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        _r, moments, Q, semi, centre, factor = ctx.saved_tensors
        pull = 2 * ctx.options[1] * factor
        first, second = _unpack((grad.unsqueeze(-2) @ moments).squeeze(-2))
        torque = centre.transpose(-1, -2) @ _unpack(moments * grad.unsqueeze(-1))[0]
        inner = -pull * (semi.unsqueeze(-1) * second - torque) / semi.unsqueeze(-2)
        mean_grad = -pull * (Q @ (first / semi).unsqueeze(-1)).squeeze(-1)
        return mean_grad, Q @ inner @ Q.transpose(-1, -2), None, None, None, None


def _frame(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Half axes (R, d), the longer first, and directions (R, d, d), one a column, of `zᵀ matrix⁻¹ z = 1`."""
    if matrix.shape[-1] == 1:
        return matrix.squeeze(-1).sqrt().clamp(min=THINNEST), torch.ones_like(matrix)
    squared, angle = principal_axes(matrix)
    cos, sin = angle.cos(), angle.sin()
    return squared.sqrt().clamp(min=THINNEST), torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))


def _moments(semi: Tensor, centre: Tensor, power: float, bump: float) -> Tensor:
    if power == 1 and math.isinf(bump) and semi.shape[-1] == 2:
        return chord_moments(semi, centre)
    return ball_moments(semi, centre, power, bump)


def _value(moments: Tensor) -> Tensor:
    """`M_1 − tr M_uu`: the integral of `[1 − |u|²]^m ψ`."""
    if moments.shape[-1] == 3:
        return moments[..., 0] - moments[..., 2]
    return moments[..., 0] - moments[..., 3] - moments[..., 5]


def _unpack(moments: Tensor) -> tuple[Tensor, Tensor]:
    """M_u (..., d) and M_uu (..., d, d)."""
    if moments.shape[-1] == 3:
        return moments[..., 1:2], moments[..., 2:].unsqueeze(-1)
    return moments[..., 1:3], moments[..., [3, 4, 4, 5]].unflatten(-1, (2, 2))
