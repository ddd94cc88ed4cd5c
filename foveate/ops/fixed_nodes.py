"""Integrals of a density times a bump by nodes that stay where they are: sums that can be differentiated again.

The fast rules of `ops/quadrature.py` place their nodes by the parameters and know one derivative, by formula. Here the
nodes are constants, and every further derivative falls on a factor that is smooth:

- a density with bounded support is `[1 − |u|²]^m` on the unit ball, `t = μ + A u`: nodes fixed in u, derivatives on ψ;
- a Gaussian density times a bump with bounded support: nodes fixed in the image, derivatives on the Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from foveate.ops.moments import half_axes, inverse_transpose, lower_root, root_determinant, whiten
from foveate.ops.quadrature import ball_nodes
from foveate.ops.radial import bump_width, peak, support_ratio


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
