"""The Gaussian: what continuous softmax attends with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.errors import WrongValue
from foveate.ops.basis import Basis
from foveate.ops.cells import cell_masses, check_grid, normal_masses
from foveate.ops.density import Density, Ellipses
from foveate.ops.moments import Floor, check_parameters, lower_root, match_moments
from foveate.ops.overlap import expect_basis
from foveate.ops.radial import radial_pdf
from foveate.ops.values import as_tree


@as_tree
@dataclass(frozen=True, eq=False)
class Gaussian(Density):
    """Gaussian density, alpha = 1 of the family that entmax continues.

    `p(t) = |2πΣ|^{−1/2} exp(−½ (t − μ)ᵀ Σ⁻¹ (t − μ))`

    Attributes:
        mean: (..., d) the mean μ, any dimension d.
        covariance: (..., d, d) the covariance Σ, symmetric and positive definite.

    Reference: Farinhas 2021 (thesis), §4.2.1.

    >>> p = Gaussian(torch.tensor([0.5, 0.5]), 0.01 * torch.eye(2))
    >>> round(p.to_map(3, 3)[1, 1].item(), 3)
    0.818
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        check_parameters("Gaussian", self.mean, self.covariance, "covariance")

    @classmethod
    def from_weights(
        cls, weights: Tensor, positions: Tensor, mask: Tensor | None = None, floor: Floor = "cell"
    ) -> Gaussian:
        """The Gaussian with the mean and covariance of the weighted points; see `match_moments`."""
        return cls(*match_moments(weights, positions, mask, floor, where="Gaussian.from_weights"))

    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""
        return radial_pdf(points.to(self.mean) - self.mean.unsqueeze(-2), self.covariance, math.inf)

    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J).

        For Gaussian functions `r_j = N(μ; μ_j, Σ + Σ_j)` (equation 4.10), computed in float64.
        """
        return expect_basis("Gaussian.expect", self.mean, self.covariance, math.inf, basis)

    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; error below 1e-9 in float64."""
        check_grid("Gaussian.to_map", self.mean.shape[-1], H, W)
        if W is None:
            edges = torch.linspace(0, 1, H + 1, dtype=torch.float64, device=self.mean.device)
            z = (edges - self.mean.double()) / self.covariance.double().squeeze(-1).sqrt()
            return normal_masses(z[..., :-1], z[..., 1:]).to(self.mean.dtype)
        return cell_masses(self.mean, self.covariance, math.inf, H, W)

    def support_area(self) -> Tensor:
        """(...) ones: the density is above zero in the whole image."""
        return torch.ones_like(self.mean[..., 0])

    def ellipses(self, level: float) -> Ellipses:
        """Contours that enclose the fraction `level` in (0, 1) of the mass, `r² = −2 log(1 − level)`; d = 2."""
        if not 0 < level < 1:
            raise WrongValue(
                f"Gaussian.ellipses: expected 0 < level < 1, got {level}; a Gaussian has no edge, use level=0.95"
            )
        return Ellipses.of("Gaussian.ellipses", self.mean, -2 * math.log1p(-level) * self.covariance)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws, differentiable in mean and covariance."""
        shape = (*self.mean.shape[:-1], n, self.mean.shape[-1])
        z = torch.randn(shape, dtype=self.mean.dtype, device=self.mean.device, generator=generator)
        return self.mean.unsqueeze(-2) + z @ lower_root(self.covariance).transpose(-1, -2)
