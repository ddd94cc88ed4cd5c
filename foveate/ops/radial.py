"""The family of densities that depend on the distance from the mean alone: truncated paraboloid to Gaussian.

With power m, dimension d and covariance V,

    p(t) = c |E|^{−1/2} [1 − (t − μ)ᵀ E⁻¹ (t − μ)]_+^m
    E = (d + 2 m + 2) V,    c = Γ(m + 1 + d/2) / (π^{d/2} Γ(m + 1))

m = 1 is the truncated paraboloid, m = 1 / (alpha − 1) the beta-Gaussian of alpha-entmax, m → ∞ the Gaussian, for which
E stands for V itself. Densities and basis functions are both of this family.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.ops.moments import lower_root, root_determinant, whiten


def support_ratio(power: float, dim: int) -> float:
    """E / V: squared half axes of the support over the eigenvalues of the covariance; 1 for the Gaussian.

    >>> support_ratio(1, dim=2)  # the truncated paraboloid of the plane
    6
    """
    return 1 if math.isinf(power) else dim + 2 * power + 2


def peak(power: float, dim: int) -> float:
    """The constant c: density at the mean, times |E|^{1/2}."""
    if math.isinf(power):
        return (2 * math.pi) ** (-dim / 2)
    if dim == 2:
        return (power + 1) / math.pi
    return math.exp(math.lgamma(power + 1 + dim / 2) - math.lgamma(power + 1)) / math.pi ** (dim / 2)


def radial_pdf(difference: Tensor, covariance: Tensor, power: float) -> Tensor:
    """Density at `difference` from the mean, (..., P, d), for covariance (..., d, d) -> (..., P).

    >>> radial_pdf(torch.zeros(1, 2), torch.eye(2), math.inf).mul(2 * math.pi).item()
    1.0
    """
    d = difference.shape[-1]
    root = lower_root(support_ratio(power, d) * covariance)
    rho = whiten(difference, root).square().sum(-1)
    scale = peak(power, d) / root_determinant(root).unsqueeze(-1)
    if math.isinf(power):
        return scale * torch.exp(-0.5 * rho)
    inside = rho < 1
    return scale * torch.where(inside, 1 - rho, torch.zeros_like(rho)).pow(power)


def radial_cdf(rho: Tensor, power: float) -> Tensor:
    """Share of the mass of a density of the plane inside `(t − μ)ᵀ E⁻¹ (t − μ) <= rho`.

    >>> radial_cdf(torch.tensor([0.0, 0.5, 1.0]), 1.0).tolist()
    [0.0, 0.75, 1.0]
    """
    if math.isinf(power):
        return -torch.expm1(-0.5 * rho)
    return -torch.expm1((power + 1) * torch.log1p(-rho))


def radial_reach(power: float, missing: float) -> float:
    """Value of rho up to which the plane's cdf leaves out no more than `missing`: `radial_cdf(reach) = 1 − missing`."""
    if math.isinf(power):
        return -2 * math.log(missing)
    return -math.expm1(math.log(missing) / (power + 1))
