"""The base class of densities with an elliptic support."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foveate.ops.basis import Basis
from foveate.ops.cells import cell_masses, check_grid, line_masses
from foveate.ops.density import Density, Ellipses
from foveate.ops.moments import lower_root, root_determinant
from foveate.ops.overlap import expect_basis
from foveate.ops.radial import ball_sample, covariance_of_scale, radial_pdf, support_ratio


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
            raise ValueError(f"{where}: expected 0 < level <= 1, got {level}; use level=1 for the edge of the support")
        # In the plane, the fraction of the mass outside the relative radius r is (1 − r²)^{m+1}.
        inside = 1 - (1 - level) ** (1 / (self.power + 1))
        support = support_ratio(self.power, self.mean.shape[-1]) * self.covariance
        return Ellipses.of(where, self.mean, inside * support)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws, differentiable in mean and scale."""
        support = support_ratio(self.power, self.mean.shape[-1]) * self.covariance
        u = ball_sample(n, self.power, self.mean, generator)
        return self.mean.unsqueeze(-2) + u @ lower_root(support).transpose(-1, -2)
