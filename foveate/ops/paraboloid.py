"""The truncated paraboloid: what continuous sparsemax attends with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from foveate.ops.compact import CompactDensity
from foveate.ops.moments import Floor, check_dimension, check_parameters, match_moments
from foveate.ops.radial import scale_of_covariance
from foveate.ops.trees import as_tree


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
