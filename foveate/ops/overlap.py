"""Expectation of basis functions under a density: the integral of a product of two bumps, with its gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd.forward_ad import unpack_dual

from foveate.checks import is_tracing
from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.kernels import mixtures as kernels
from foveate.ops.moments import THINNEST, half_axes, inverse_transpose, lower_root, root_determinant, whiten
from foveate.ops.quadrature import CHORD_NODES, ball_moments, ball_nodes, chord_moments, gauss_legendre
from foveate.ops.radial import bump_width, peak, radial_pdf, support_ratio


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
        chord. A kernel that is asked for no gradient takes the erfc of wide ellipses in float32: 3e-7 of the largest.
    """
    d = mean.shape[-1]
    if basis.dim != d:
        raise ShapeError(f"{where}: expected a basis of dimension {d}, got {basis.dim}; use grid(count, dim={d})")
    centres, variance = (x.to(mean.device, torch.float64) for x in (basis.centres, basis.variance))
    both_normal = math.isinf(power) and math.isinf(basis.power)
    native = _expect_natively(mean, covariance, centres, variance, power, basis.power)
    if native is not None:
        return native
    wide, matrix = mean.double(), covariance.double()
    if both_normal:
        wider = matrix + torch.diag(variance)
        if d == 2 and not _needs_formula(wide):
            # one batch axis: inductor (torch 2.13) vectorises the gradient wrongly over several
            r = _normal(wide.reshape(-1, d), wider.reshape(-1, d, d), centres)[0]
            return r.reshape(*mean.shape[:-1], len(basis)).to(mean.dtype)
        return radial_pdf(centres - wide.unsqueeze(-2), wider, math.inf).to(mean.dtype)
    if d > 2:
        raise ShapeError(f"{where}: expected dimension 1 or 2, got {d}; use Gaussian with GaussianBasis beyond two")
    r = _integrate(where, wide.reshape(-1, d), matrix.reshape(-1, d, d), centres, variance, power, basis.power)
    return r.reshape(*mean.shape[:-1], len(basis)).to(mean.dtype)


def _expect_natively(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
) -> Tensor | None:
    """`expect_basis` by a kernel, (..., J); None where there is none, and where a gradient is asked for."""
    if not math.isinf(bump):
        return None
    if math.isinf(power):
        return kernels.normal(mean, covariance, centres, variance)
    if power != 1:
        return None
    rule = gauss_legendre(CHORD_NODES, mean.device)
    return kernels.paraboloid(mean, covariance, centres, variance, rule, THINNEST)


def _integrate(
    where: str, mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
) -> Tensor:
    """`expect_basis` where an integral is not closed, (R, J)."""
    if _needs_formula(mean):
        if math.isinf(power):
            return smoothed_terms(mean, covariance, centres, variance, bump)[0].sum(0)
        if math.isinf(bump):
            return _value(supported_moments(mean, covariance, centres, variance, power, bump)[0])
        if torch.compiler.is_compiling():
            raise NotImplementedError(
                f"{where}: expected a GaussianBasis inside torch.func under torch.compile, got a density and a basis "
                "with bounded support; leave torch.compile out, or use a GaussianBasis"
            )
    if not math.isinf(power) and not is_tracing() and not _has_gradient(mean, covariance):
        moments, factor, _ = _ball(mean, covariance, centres, variance, power, bump)
        return factor.unsqueeze(-1) * _value(moments)
    run: Callable[..., tuple[Tensor, ...]] = (_Smoothed if math.isinf(power) else _Supported).apply
    return run(mean, covariance, centres, variance, power, bump)[0]


def _has_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


class _Expectation(torch.autograd.Function):
    """Base of the expectations: `forward` returns the value first, then what a fast `backward` needs.

    The extra outputs are constants for autograd. So that a second derivative is right, `backward` computes what it
    needs anew from the inputs, by formulas that can be differentiated, whenever its own result will be differentiated.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)), *output)
        ctx.options = [x for x in inputs if not isinstance(x, Tensor)]


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
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        inputs, parts = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        r, x, y, root = _Normal.forward(*inputs) if _is_differentiated() else parts
        weight = grad * r
        wx, wy = weight * x, weight * y
        total, xy = weight.sum(-1), (wx * y).sum(-1)
        first = torch.stack([wx.sum(-1), wy.sum(-1)], dim=-1)
        inner = torch.stack([(wx * x).sum(-1) - total, xy, xy, (wy * y).sum(-1) - total], dim=-1).unflatten(-1, (2, 2))
        return *_turn_back(first, 0.5 * inner, inverse_transpose(root)), None


_normal: Callable[..., tuple[Tensor, ...]] = _Normal.apply


class _Supported(_Expectation):
    """Density with bounded support, any basis.

    With `E = A Aᵀ` and the integrals M of `1, u, u uᵀ` times `[1 − |u|²]^{m−1} ψ_j(μ + A u)` over the unit ball:
    `r = c (M_1 − tr M_uu)`, `∂r/∂μ = 2 m c A⁻ᵀ M_u`, `∂r/∂E = c A⁻ᵀ (m M_uu − ½ (M_1 − tr M_uu) I) A⁻¹`.

    Here `A = L R semi`, L the widths of the bump and R a rotation: the axes of the ball are those of the support in
    units of the bump.
    """

    @staticmethod
    def forward(
        mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
    ) -> tuple[Tensor, ...]:
        moments, factor, turn = _ball(mean, covariance, centres, variance, power, bump)
        total = factor[..., None, None] * moments
        return _value(total), total, turn

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        m = ctx.options[0]
        inputs, (_r, moments, turn) = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        if _is_differentiated():
            moments, turn = supported_moments(*inputs, *ctx.options)
        total = (grad.unsqueeze(-2) @ moments).squeeze(-2)
        first, second = _unpack(total)
        eye = torch.eye(first.shape[-1], dtype=grad.dtype, device=grad.device)
        inner = m * second - 0.5 * _value(total)[..., None, None] * eye
        to_mean, to_support = _turn_back(2 * m * first, inner, turn)
        return to_mean, support_ratio(m, first.shape[-1]) * to_support, None, None, None, None


def _ball(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The integrals M (R, J, 6), the factor c (R,) and `A⁻ᵀ` (R, d, d) of `_Supported`."""
    d = mean.shape[-1]
    width = bump_width(variance, bump)
    semi, axes = half_axes(support_ratio(power, d) * covariance / (width.unsqueeze(-1) * width))
    centre = ((centres - mean.unsqueeze(-2)) / width) @ axes
    moments = _moments(semi, centre, power, bump)
    factor = peak(power, d) / (semi.prod(-1) * width.prod())
    return moments, factor, axes / width.unsqueeze(-1) / semi.unsqueeze(-2)


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
        semi, axes, centre, root = smoothed_frame(mean, covariance, centres, variance, bump)
        moments = _moments(semi, centre, bump, power)
        factor = peak(bump, d) / bump_width(variance, bump).prod()
        return factor * _value(moments), moments, inverse_transpose(root) @ axes, semi, centre, factor

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        mean, covariance, centres, variance, _r, moments, turn, semi, centre, factor = ctx.saved_tensors
        if _is_differentiated():
            terms, z, up = smoothed_terms(mean, covariance, centres, variance, ctx.options[1])
            return *_pull(grad * terms, z, up), None, None, None, None
        pull = 2 * ctx.options[1] * factor
        first, second = _unpack((grad.unsqueeze(-2) @ moments).squeeze(-2))
        torque = centre.transpose(-1, -2) @ _unpack(moments * grad.unsqueeze(-1))[0]
        inner = -pull * (semi.unsqueeze(-1) * second - torque) / semi.unsqueeze(-2)
        return *_turn_back(-pull * (first / semi), inner, turn), None, None, None, None


def _is_differentiated() -> bool:
    """Whether autograd records what a backward does: with create_graph=True, and under torch.func."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def _needs_formula(mean: Tensor) -> bool:
    """Whether derivatives must go through the operations of the value, because a Function knows too little of them.

    It has no forward mode, and torch.func under torch.compile takes its backward for a constant. Otherwise the Function
    is better: its gradient is exact where that of fixed nodes is off by 1e-6.
    """
    transforms = _transforms()
    if torch.compiler.is_compiling():
        return bool(transforms)
    return TransformType.Jvp in transforms or unpack_dual(mean).tangent is not None


def _transforms() -> list[TransformType]:
    """The transforms of torch.func around this call."""
    return [level.key() for level in get_interpreter_stack() or ()]


# torch.compile asks while it traces, when the transforms around the call are there, and guards on them itself
vars(_transforms)["_dynamo_marked_constant"] = True


def _pull(weight: Tensor, z: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `Σ weight` to mean and covariance of the Gaussian in it, with the terms' `z = L⁻¹ (t − μ)`."""
    pulled = weight.unsqueeze(-1) * z
    eye = torch.eye(z.shape[-1], dtype=z.dtype, device=z.device)
    inner = torch.einsum("nrji,nrjk->rik", pulled, z) - weight.sum((0, 2))[:, None, None] * eye
    return _turn_back(pulled.sum((0, 2)), 0.5 * inner, up)


def _turn_back(first: Tensor, second: Tensor, turn: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to a mean (..., d) and a matrix (..., d, d) from those in the coordinates `turn⁻ᵀ`."""
    return (turn @ first.unsqueeze(-1)).squeeze(-1), turn @ second @ turn.transpose(-1, -2)


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


def supported_moments(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, power: float, bump: float
) -> tuple[Tensor, Tensor]:
    """Integrals `c M` of `1, u, u uᵀ` times `[1 − |u|²]^{m−1} ψ_j(μ + A u)`, and `A⁻ᵀ`, for a bounded density.

    A is the Cholesky factor of the support, which is differentiable for round densities too; their axes are not.

    Args:
        mean: (R, d) means.
        covariance: (R, d, d) covariances.
        centres, variance: (J, d) and (d,) of the bumps.
        power, bump: exponents of the density, finite, and of the bumps.

    Returns:
        (R, J, 3 or 6) integrals, as `ball_moments` orders them, and (R, d, d).
    """
    d, width = mean.shape[-1], bump_width(variance, bump)
    support = support_ratio(power, d) * covariance
    root = lower_root(support)
    up = inverse_transpose(root)
    u, weight = _nodes_in_ball(mean.detach(), support.detach(), up.detach(), centres, width, power, bump)
    z = (mean[:, None] - centres + (root[:, None] @ u.unsqueeze(-1)).squeeze(-1)) / width
    distance2 = z.square().sum(-1)
    if math.isinf(bump):
        shape, height = torch.exp(-distance2), math.pi ** (-d / 2)
    else:
        shape, height = _hat(1 - distance2).pow(bump), peak(bump, d)
    weight = weight * shape * (peak(power, d) * height / width.prod())
    x, y = u[..., 0], u[..., -1]
    features = [x, x * x] if d == 1 else [x, y, x * x, x * y, y * y]
    return torch.stack([weight.sum(0), *((weight * f).sum(0) for f in features)], dim=-1), up


@torch.no_grad()
def _nodes_in_ball(
    mean: Tensor, support: Tensor, up: Tensor, centres: Tensor, width: Tensor, power: float, bump: float
) -> tuple[Tensor, Tensor]:
    """Nodes u (n, R, J, d) in the frame of the Cholesky factor, and weights times `[1 − |u|²]^{m−1}` (n, R, J)."""
    unit = support / (width.unsqueeze(-1) * width)
    semi, axes = half_axes(unit)
    u, weight = ball_nodes(semi, ((centres - mean.unsqueeze(-2)) / width) @ axes, power, bump)
    # half_axes has a least length: the matrix that turns its frame is orthogonal with the true lengths only
    exact = (axes.transpose(-1, -2) @ unit @ axes).diagonal(dim1=-2, dim2=-1).sqrt()
    turn = up.transpose(-1, -2) @ (width.unsqueeze(-1) * axes * exact.unsqueeze(-2))
    u = (turn[:, None] @ u.unsqueeze(-1)).squeeze(-1)
    if power != 1:
        weight = weight * (1 - u.square().sum(-1)).clamp(min=0).pow(power - 1)
    return u, weight


def smoothed_terms(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, bump: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The terms of `r_j = Σ_n ψ_j(t_n) N(t_n; μ, V) Δ_n`, for a Gaussian density and a bounded bump.

    Args:
        mean, covariance, centres, variance: as in `supported_moments`.
        bump: finite exponent of the bumps.

    Returns:
        (n, R, J) terms, (n, R, J, d) nodes as `z = L⁻¹ (t − μ)`, `L Lᵀ = V`, and `L⁻ᵀ` (R, d, d).
    """
    points, weight = _nodes_in_image(mean.detach(), covariance.detach(), centres, variance, bump)
    root = lower_root(covariance)
    up = inverse_transpose(root)
    z = (up.transpose(-1, -2)[:, None] @ (points - mean[:, None]).unsqueeze(-1)).squeeze(-1)
    height = peak(math.inf, mean.shape[-1]) / root_determinant(root)
    return weight * torch.exp(-0.5 * z.square().sum(-1)) * height.unsqueeze(-1), z, up


@torch.no_grad()
def _nodes_in_image(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, bump: float
) -> tuple[Tensor, Tensor]:
    """Nodes t (n, R, J, d) on the supports of the bumps, and weights times the bump (n, R, J)."""
    semi, axes, centre, root = smoothed_frame(mean, covariance, centres, variance, bump)
    u, weight = ball_nodes(semi, centre, bump, math.inf)
    weight = weight * peak(bump, mean.shape[-1]) * (1 - u.square().sum(-1)).clamp(min=0).pow(bump)
    return centres + ((root @ axes)[:, None] @ (semi.unsqueeze(-2) * u).unsqueeze(-1)).squeeze(-1), weight


def smoothed_frame(
    mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor, bump: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Half axes and directions of a support where the Gaussian is `exp(−|z|²)`; the centre and root of the Gaussian."""
    root = lower_root(2 * covariance)
    bumps = whiten(torch.diag(bump_width(variance, bump)).expand_as(root), root).transpose(-1, -2)
    semi, axes = half_axes(bumps @ bumps.transpose(-1, -2))
    return semi, axes, whiten(mean.unsqueeze(-2) - centres, root) @ axes, root


class _Hat(torch.autograd.Function):
    """`max(x, 0)`, whose first derivative jumps: another derivative under an integral would miss the jump."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.relu()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _step(ctx.saved_tensors[0], grad)


_hat: Callable[..., Tensor] = _Hat.apply


class _Step(torch.autograd.Function):
    """`grad` where x > 0."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, grad: Tensor) -> Tensor:
        return torch.where(x > 0, grad, 0.0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise RuntimeError(
            "expect: expected at most two derivatives of a density with bounded support and a basis with bounded "
            "support, got three; use a GaussianBasis, which has all of them"
        )


_step: Callable[..., Tensor] = _Step.apply
