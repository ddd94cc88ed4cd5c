"""The family of densities that depend only on the distance from the mean: truncated paraboloid to Gaussian.

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

from foveate.ops.moments import lower_root, root_determinant, squared_distance


def support_ratio(power: float, dim: int) -> float:
    """E / V: squared half axes of the support over the eigenvalues of the covariance; 1 for the Gaussian.

    >>> support_ratio(1, dim=2)  # the truncated paraboloid of the plane
    6
    """
    return 1 if math.isinf(power) else dim + 2 * power + 2


def bump_width(variance: Tensor, bump: float) -> Tensor:
    """(d,) the lengths in units of which a bump is `exp(−|z|²)` or `[1 − |z|²]_+^bump`, up to its height."""
    return (variance * (2 if math.isinf(bump) else support_ratio(bump, variance.shape[-1]))).sqrt()


def peak(power: float, dim: int) -> float:
    """The constant c: density at the mean, times |E|^{1/2}."""
    if math.isinf(power):
        return math.pow(2 * math.pi, -dim / 2)
    if dim == 2:
        return (power + 1) / math.pi
    return math.exp(math.lgamma(power + 1 + dim / 2) - math.lgamma(power + 1)) / math.pow(math.pi, dim / 2)


def radial_pdf(difference: Tensor, covariance: Tensor, power: float) -> Tensor:
    """Density at `difference` from the mean, (..., P, d), for covariance (..., d, d) -> (..., P).

    >>> radial_pdf(torch.zeros(1, 2), torch.eye(2), math.inf).mul(2 * math.pi).item()
    1.0
    """
    d = difference.shape[-1]
    root = lower_root(support_ratio(power, d) * covariance)
    rho = squared_distance(difference, root)
    scale = peak(power, d) / root_determinant(root).unsqueeze(-1)
    if math.isinf(power):
        return scale * torch.exp(-0.5 * rho)
    inside = rho < 1
    return scale * torch.where(inside, 1 - rho, torch.zeros_like(rho)).pow(power)


def radial_cdf(rho: Tensor, power: float) -> Tensor:
    """Fraction of the mass of a density of the plane inside `(t − μ)ᵀ E⁻¹ (t − μ) <= rho`.

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


def covariance_of_scale(scale: Tensor, power: float) -> Tensor:
    """Covariance V of the density `[(−τ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ)) / m]_+^m` from its scale Σ, (..., d, d).

    `V = R² Σ / (d + 2 m + 2)`, `R² = −2 τ = (c (2 m)^m |Σ|^{−1/2})^{2 / (d + 2 m)}` such that it integrates to one.

    Reference: Farinhas 2021 (thesis), theorem 1 (m = 1, λ = τ); (4.4) for d = 2.

    >>> round(covariance_of_scale(torch.eye(2), 1.0)[0, 0].item() * 3 * math.sqrt(math.pi), 6)
    1.0
    """
    d = scale.shape[-1]
    logdet = root_determinant(lower_root(scale)).log()
    log_radius2 = 2 / (d + 2 * power) * (math.log(peak(power, d)) + power * math.log(2 * power) - logdet)
    return torch.exp(log_radius2)[..., None, None] * scale / support_ratio(power, d)


def scale_of_covariance(covariance: Tensor, power: float) -> Tensor:
    """Scale Σ from the covariance, the inverse of `covariance_of_scale`.

    `Σ = E (|E|^{1/2} / c)^{1/m} / (2 m)`; for the paraboloid `9π |V|^{1/2} V` (d = 2), `⅔ (5 V)^{3/2}` (d = 1).

    Reference: Farinhas 2021 (thesis), (4.3) and (4.6).

    >>> round(scale_of_covariance(torch.eye(2), 1.0)[0, 0].item() / math.pi, 5)
    9.0
    """
    d = covariance.shape[-1]
    support = support_ratio(power, d) * covariance
    ratio = (root_determinant(lower_root(support)) / peak(power, d)) ** (1 / power)
    return ratio[..., None, None] * support / (2 * power)


def ball_sample(n: int, power: float, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """n draws from `c [1 − |u|²]_+^m` for every row of `like` (..., d), d = 1 or 2, as (..., n, d).

    In the plane `|u|² = 1 − U^{1/(m+1)}`; on the line, the shadow of a draw in the plane with m − ½ in place of m.
    """
    d = like.shape[-1]
    draw = torch.rand(2, *like.shape[:-1], n, dtype=like.dtype, device=like.device, generator=generator)
    m = power if d == 2 else power - 0.5
    radius = torch.sqrt(-torch.expm1(torch.log1p(-draw[0]) / (m + 1)))
    angle = 2 * math.pi * draw[1]
    return torch.stack([radius * angle.cos(), radius * angle.sin()][:d], dim=-1)
