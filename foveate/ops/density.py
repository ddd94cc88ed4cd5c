"""What a density on the unit interval or square offers, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from foveate.ops.moments import principal_axes

if TYPE_CHECKING:
    from foveate.ops.basis import Basis


@dataclass(frozen=True)
class Ellipses:
    """Contours of a density, one ellipse a component.

    Attributes:
        centre: (..., K, 2) centres.
        radii: (..., K, 2) half axes, the longer first.
        angle: (..., K) angle of the longer half axis from the x axis, in radians, y down.
        weight: (..., K) share of the mass that belongs to the component.
    """

    centre: Tensor
    radii: Tensor
    angle: Tensor
    weight: Tensor

    @classmethod
    def of(cls, where: str, centre: Tensor, matrix: Tensor) -> Ellipses:
        """One ellipse `(t − centre)ᵀ matrix⁻¹ (t − centre) = 1` an example, of weight one."""
        if centre.shape[-1] != 2:
            raise ValueError(
                f"{where}: expected a density of the plane, got dimension {centre.shape[-1]}; draw its pdf"
            )
        squared, angle = principal_axes(matrix)
        return cls(
            centre.unsqueeze(-2),
            squared.sqrt().unsqueeze(-2),
            angle.unsqueeze(-1),
            torch.ones_like(angle).unsqueeze(-1),
        )


class Density(ABC):
    """A non-negative function on the line or the plane that integrates to one, for every example of a batch.

    Concrete densities are frozen dataclasses of tensors. The batch shape `...` is free: (B,) for one density an
    example, (B, Q) for many queries, (B, K) inside a mixture. d is the dimension: 1 (text, audio) or 2 (pictures).
    Every concrete density also has `from_weights(weights, positions, mask=None, floor="cell")`.

    Attributes:
        mean: (..., d) expected position.
        covariance: (..., d, d) covariance of the position.
    """

    # Only declared: a dataclass field of the same name would take an inherited property for its default value.
    if TYPE_CHECKING:

        @property
        def mean(self) -> Tensor:
            """(..., d) expected position."""

        @property
        def covariance(self) -> Tensor:
            """(..., d, d) covariance of the position."""

    @abstractmethod
    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""

    @abstractmethod
    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J), with its exact gradient."""

    @abstractmethod
    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; the mass outside the picture is left out."""

    @abstractmethod
    def support_area(self) -> Tensor:
        """(...) length or area of the part of the picture where the density is above zero."""

    @abstractmethod
    def ellipses(self, level: float) -> Ellipses:
        """Contours that hold the share `level` of each component's mass (level = 1: the edge of the support)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws."""
