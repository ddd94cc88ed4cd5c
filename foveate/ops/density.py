"""What a density on the unit interval or square offers, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

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


class Density(ABC):
    """A non-negative function on the line or the plane that integrates to one, for every example of a batch.

    Concrete densities are frozen dataclasses of tensors. The batch shape `...` is free: (B,) for one density an
    example, (B, Q) for many queries, (B, K) inside a mixture. d is the dimension: 1 (text, audio) or 2 (pictures).
    """

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """(..., d) expected position."""

    @property
    @abstractmethod
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
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; what lies outside the picture is not counted."""

    @abstractmethod
    def support_area(self) -> Tensor:
        """(...) length or area of the part of the picture where the density is above zero."""

    @abstractmethod
    def ellipses(self, level: float) -> Ellipses:
        """Contours that hold the share `level` of each component's mass (level = 1: the edge of the support)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws."""
