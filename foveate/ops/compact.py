"""Densities with an elliptic support: the truncated paraboloid, the beta-Gaussian, and its derivative in alpha."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor

from foveate.errors import WrongType, WrongValue
from foveate.ops.basis import Basis, GaussianBasis
from foveate.ops.cells import cell_masses, check_grid, line_masses
from foveate.ops.density import Density, Ellipses
from foveate.ops.moments import Floor, check_dimension, check_parameters, lower_root, match_moments, root_determinant
from foveate.ops.overlap import expect_basis
from foveate.ops.radial import ball_sample, covariance_of_scale, radial_pdf, scale_of_covariance, support_ratio
from foveate.ops.values import as_tree, memo


class CompactDensity(Density):
    """Density `[(−τ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ)) / m]_+^m` with mean μ, scale Σ, exponent m: zero outside an ellipse."""

    scale: Tensor  # (..., d, d), Σ

    if TYPE_CHECKING:

        @property
        def power(self) -> float:
            """The exponent m >= 1."""

    @property
    def covariance(self) -> Tensor:
        """(..., d, d) covariance of the position, a multiple of the scale (theorem 1)."""
        return covariance_of_scale(self.scale, self.power)

    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""
        return radial_pdf(points.to(self.mean) - self.mean.unsqueeze(-2), self.covariance, self.power)

    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J), and its gradient, computed in float64; see `expect_basis`."""
        covariance = covariance_of_scale(self.scale.double(), self.power)
        return expect_basis(f"{type(self).__name__}.expect", self.mean, covariance, self.power, basis)

    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; error below 1e-9 in float64."""
        check_grid(f"{type(self).__name__}.to_map", self.mean.shape[-1], H, W)
        covariance = covariance_of_scale(self.scale.double(), self.power)
        if W is None:
            return line_masses(self.mean, covariance, self.power, H)
        return cell_masses(self.mean, covariance, self.power, H, W)

    def support_area(self) -> Tensor:
        """(...) length or area of the part of the image where the density is above zero."""
        d = self.mean.shape[-1]
        support = support_ratio(self.power, d) * covariance_of_scale(self.scale.double(), self.power)
        # Area of the support times the fraction of it inside the image: the mass there of a uniform density.
        uniform = support / support_ratio(0, d)
        root = root_determinant(lower_root(support))
        if d == 1:
            return (2 * root * line_masses(self.mean.double(), uniform, 0, 1)[..., 0]).to(self.mean.dtype)
        return (math.pi * root * cell_masses(self.mean.double(), uniform, 0, 1, 1)[..., 0, 0]).to(self.mean.dtype)

    def ellipses(self, level: float) -> Ellipses:
        """Contours that contain the fraction `level` in (0, 1] of the mass; level = 1 is the edge of the support."""
        where = f"{type(self).__name__}.ellipses"
        if not 0 < level <= 1:
            raise WrongValue(f"{where}: expected 0 < level <= 1, got {level}; use level=1 for the edge of the support")
        # In the plane, the fraction of the mass outside the relative radius r is (1 − r²)^{m+1}.
        inside = 1 - (1 - level) ** (1 / (self.power + 1))
        support = support_ratio(self.power, self.mean.shape[-1]) * self.covariance
        return Ellipses.of(where, self.mean, inside * support)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws, differentiable in mean and scale."""
        support = support_ratio(self.power, self.mean.shape[-1]) * self.covariance
        u = ball_sample(n, self.power, self.mean, generator)
        return self.mean.unsqueeze(-2) + u @ lower_root(support).transpose(-1, -2)


@as_tree
@dataclass(frozen=True, eq=False)
class TruncatedParaboloid(CompactDensity):
    """Truncated paraboloid, alpha = 2 of the family that entmax continues: zero outside an ellipse.

    `p(t) = [−λ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ)]_+`, `λ = −(Γ(d/2 + 2) / |2πΣ|^{1/2})^{2/(2+d)}`

    Attributes:
        mean: (..., d) the mean μ, d = 1 or 2.
        scale: (..., d, d) the scale Σ; the covariance is `−λ Σ / (d/2 + 2)`.

    Reference: Farinhas 2021 (thesis), §4.1 and §4.2.2.

    >>> import torch
    >>> p = TruncatedParaboloid.from_weights(torch.tensor([0.5, 0.5]), torch.tensor([[0.25], [0.75]]))
    >>> round(p.covariance.item(), 6), round(p.support_area().item(), 6)  # 1/12 and everything
    (0.083333, 1.0)
    """

    mean: Tensor
    scale: Tensor
    power: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_dimension("TruncatedParaboloid", self.mean)
        check_parameters("TruncatedParaboloid", self.mean, self.scale, "scale")

    @classmethod
    def from_weights(
        cls, weights: Tensor, positions: Tensor, mask: Tensor | None = None, floor: Floor = "cell"
    ) -> TruncatedParaboloid:
        """The paraboloid with the mean and covariance of the weighted points; see `match_moments`."""
        mean, covariance = match_moments(weights, positions, mask, floor, where="TruncatedParaboloid.from_weights")
        return cls(mean, scale_of_covariance(covariance.double(), cls.power).to(mean.dtype))


@as_tree
@dataclass(frozen=True, eq=False)
class BetaGaussian(CompactDensity):
    """Beta-Gaussian with entropy index alpha in (1, 2]: zero outside an ellipse, smooth at its edge for alpha < 2.

    `p(t) = [(α − 1) (−τ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ))]_+^{1/(α−1)}`, τ such that it integrates to one

    alpha = 2 is the truncated paraboloid with the same scale; alpha → 1 the Gaussian with covariance Σ.

    Attributes:
        mean: (..., d) the mean μ, d = 1 or 2.
        scale: (..., d, d) the scale Σ.
        alpha: the entropy index.

    Reference: Farinhas 2021 (thesis), §3.2, which stops at alpha = 1 and 2.

    >>> import torch
    >>> p = BetaGaussian(torch.tensor([0.5, 0.5]), 1e-3 * torch.eye(2), alpha=1.5)
    >>> round(p.to_map(1, 1).item(), 6)
    1.0
    """

    mean: Tensor
    scale: Tensor
    alpha: float = 1.5

    def __post_init__(self) -> None:
        _check_alpha("BetaGaussian", self.alpha)
        check_dimension("BetaGaussian", self.mean)
        check_parameters("BetaGaussian", self.mean, self.scale, "scale")

    @property
    def power(self) -> float:
        """The exponent `1 / (α − 1)`."""
        return 1 / (self.alpha - 1)

    @classmethod
    def from_weights(
        cls,
        weights: Tensor,
        positions: Tensor,
        mask: Tensor | None = None,
        floor: Floor = "cell",
        *,
        alpha: float = 1.5,
    ) -> BetaGaussian:
        """The beta-Gaussian with the mean and covariance of the weighted points; see `match_moments`."""
        where = "BetaGaussian.from_weights"
        _check_alpha(where, alpha)
        mean, covariance = match_moments(weights, positions, mask, floor, where=where)
        return cls(mean, scale_of_covariance(covariance.double(), 1 / (alpha - 1)).to(mean.dtype), alpha)


def _check_alpha(where: str, alpha: float) -> None:
    if not 1 < alpha <= 2:
        raise WrongValue(f"{where}: expected 1 < alpha <= 2, got {alpha!r}; alpha = 1 is the Gaussian")


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
        raise WrongType(
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
