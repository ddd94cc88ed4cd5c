"""The beta-Gaussian: what continuous alpha-entmax attends with, between the Gaussian and the truncated paraboloid."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from foveate.ops.compact import CompactDensity
from foveate.ops.moments import Floor, check_dimension, check_parameters, match_moments
from foveate.ops.radial import scale_of_covariance
from foveate.ops.trees import as_tree


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
        raise ValueError(f"{where}: expected 1 < alpha <= 2, got {alpha!r}; alpha = 1 is the Gaussian")
