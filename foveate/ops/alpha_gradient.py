"""The derivative of an expectation in the alpha of its density, which makes that of continuous-entmax learnable."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from foveate.ops.basis import Basis, GaussianBasis
from foveate.ops.memo import memo
from foveate.ops.moments import lower_root

REACH = 8.0  # nodes per circle for one deviation of a bump: the circumference of the largest ellipse in an image


def alpha_change(mean: Tensor, covariance: Tensor, alpha: Tensor, basis: Basis) -> Tensor:
    """Zeros, whose derivatives in alpha are those of `E_p[ψ_j]` for the beta-Gaussian p of this mean and covariance.

    `Q(μ, V, α) − Q(μ, V, α₀)` at `α₀ = α`, with `Q = ∫₀¹ dw ψ_j(μ + E^{1/2} u(w))`,  `E = (d + 2 m + 2) V`,
    `m = 1 / (α − 1)`; in the plane `|u|² = 1 − w^{1/(m+1)}`, w being the mass outside u

    Nothing in the domain of the integral depends on alpha, so that autograd differentiates the quadrature to any
    order. Added to the exact expectation with alpha as a number, it leaves the value and the derivatives in mean and
    covariance as they are, and adds those in alpha, mixed ones too.

    Args:
        mean: (..., d), d = 1 or 2.
        covariance: (..., d, d), which does not depend on alpha.
        alpha: a scalar in (1, 2].
        basis: J Gaussian functions of the same dimension; TypeError for others.

    Returns:
        (..., J) zeros in the dtype of the mean.

    >>> from foveate.ops.basis import GaussianBasis
    >>> alpha = torch.tensor(1.5, requires_grad=True)
    >>> change = alpha_change(torch.full((2,), 0.5), 0.01 * torch.eye(2), alpha, GaussianBasis.grid(4))
    >>> change.tolist(), torch.autograd.grad(change[0], alpha)[0].item() < 0
    ([0.0, 0.0, 0.0, 0.0], True)
    """
    if not isinstance(basis, GaussianBasis):
        # The quadrature of a bump with an edge is good to a few per cent only.
        raise TypeError(
            f"continuous-entmax: expected a GaussianBasis beside a learnable alpha, got {type(basis).__name__}; pass "
            "alpha as a number, or another basis"
        )
    wide, matrix, number = mean.double(), covariance.double(), alpha.double()
    change = _quadrature(wide, matrix, number, basis) - _quadrature(wide, matrix, number.detach(), basis)
    return change.to(mean.dtype)


def _quadrature(mean: Tensor, covariance: Tensor, alpha: Tensor, basis: Basis) -> Tensor:
    """`E_p[ψ_j]`, (..., J), by nodes of fixed mass."""
    d, m = mean.shape[-1], 1 / (alpha - 1)
    angles = 32 * min(max(math.ceil(REACH / 32 / float(basis.variance.min().sqrt())), 2), 16)
    log_mass, weight, direction = (x.to(mean.device) for x in _nodes(d, angles))
    # A density on the line is the shadow of one in the plane with m − ½ in place of m.
    squared = -torch.expm1(log_mass / (m + (1 if d == 2 else 0.5)))
    u = (squared.sqrt()[:, None, None] * direction).flatten(0, 1)
    root = lower_root(covariance) * (d + 2 * m + 2).sqrt()
    points = mean.unsqueeze(-2) + u @ root.transpose(-1, -2)
    return _integrate(points, weight.repeat_interleave(len(direction)), basis)


def _integrate(points: Tensor, weight: Tensor, basis: Basis) -> Tensor:
    """`Σ_n w_n ψ_j(t_n)`, (..., J), for points (..., n, d)."""
    if basis.dim == 1:
        return (basis(points) * weight.unsqueeze(-1)).sum(-2)
    # Bumps are products of one along each axis, and centres of a grid share their coordinates: n (Jx + Jy) bumps in
    # place of n J.
    along, places = [], []
    for axis, variance in enumerate(basis.variance.to(points)):
        centres, place = torch.unique(basis.centres[:, axis].to(points), return_inverse=True)
        z = points[..., axis].unsqueeze(-1) - centres
        along.append(torch.exp(-0.5 * z.square() / variance) / (2 * math.pi * variance).sqrt())
        places.append(place)
    table: Tensor = (along[0] * weight.unsqueeze(-1)).transpose(-1, -2) @ along[1]
    return table[..., places[0], places[1]]


@memo(maxsize=16)
def _nodes(dim: int, angles: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of the mass outside of the radii, weights of the nodes at each radius, directions (angles, dim)."""
    x, w = np.polynomial.legendre.leggauss(angles // 4)
    v = torch.from_numpy((x + 1) / 2)
    # Mass v³: near the edge of the support, where it is zero, the integrand is not smooth in it.
    weight = torch.from_numpy(w / 2) * 3 * v.square() / angles
    angle = 2 * math.pi * (torch.arange(angles, dtype=torch.float64) + 0.5) / angles
    return 3 * v.log(), weight, torch.stack([angle.cos(), angle.sin()][:dim], -1)
