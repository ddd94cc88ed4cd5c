"""What a density on the unit interval or square offers, whatever its family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from foveate.checks import Rows, index_examples
from foveate.errors import ShapeError, WrongValue
from foveate.ops.moments import principal_axes
from foveate.ops.values import as_value

if TYPE_CHECKING:
    from foveate.ops.basis import Basis

AnyDensity = TypeVar("AnyDensity", bound="Density")


@as_value
@dataclass(frozen=True)
class Ellipses:
    """Contours of a density, one ellipse per component.

    Attributes:
        centre: (..., K, 2) centres.
        radii: (..., K, 2) half axes, the longer first.
        angle: (..., K) angle of the longer half axis from the x axis, in radians, y down.
        weight: (..., K) fraction of the mass that belongs to the component.
    """

    centre: Tensor
    radii: Tensor
    angle: Tensor
    weight: Tensor

    @classmethod
    def of(cls, where: str, centre: Tensor, matrix: Tensor) -> Ellipses:
        """One ellipse `(t − centre)ᵀ matrix⁻¹ (t − centre) = 1` per example, of weight one."""
        if centre.shape[-1] != 2:
            raise WrongValue(
                f"{where}: expected a density of the plane, got dimension {centre.shape[-1]}; plot its pdf"
            )
        squared, angle = principal_axes(matrix)
        return cls(
            centre.unsqueeze(-2),
            squared.sqrt().unsqueeze(-2),
            angle.unsqueeze(-1),
            torch.ones_like(angle).unsqueeze(-1),
        )


@dataclass(frozen=True, eq=False)
class Density(ABC):
    """A non-negative function on the line or the plane that integrates to one, for every example of a batch.

    Concrete densities are frozen dataclasses of tensors. The batch shape `...` is free: (B,) for one density per
    example, (B, Q) for many queries, (B, K) inside a mixture. d is the dimension: 1 (text, audio) or 2 (images).
    Every concrete density also has `from_weights(weights, positions, mask=None, floor="cell")`.

    Indexing picks examples, the first axis of the batch shape; the axis stays: `density[3]` is `density[3:4]`.

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

    @property
    def batch_shape(self) -> torch.Size:
        """The shape `...` of the batch: one density for each index into it."""
        return self.mean.shape[:-1]

    def _numbers(self) -> str:
        """Where one density is and how wide, for print."""
        mean = self.mean.detach()
        if mean.numel() != mean.shape[-1]:
            return ""
        width = self.covariance.detach().diagonal(dim1=-2, dim2=-1).sqrt()
        at, wide = (", ".join(f"{x:.2f}" for x in part.flatten().tolist()) for part in (mean, width))
        return f"at ({at}), deviations ({wide})"

    def __getitem__(self: AnyDensity, rows: Rows) -> AnyDensity:
        """The densities of some examples: an int, a slice, a sequence or tensor of ints, or a boolean tensor (B,)."""
        name = type(self).__name__
        if not self.batch_shape:
            raise ShapeError(
                f"{name}: expected a density with a batch axis, got one density; there is nothing to index"
            )
        chosen = index_examples(name, rows, self.batch_shape[0])
        return self.map_tensors(lambda part: part[chosen])

    def map_tensors(self: AnyDensity, change: Callable[[Tensor], Tensor]) -> AnyDensity:
        """The density with `change` applied to every tensor in it, those of a mixture's components included.

        Every tensor begins with the batch shape, so that indexing, reshaping or moving all of them alike is sound.
        """
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {
            name: part.map_tensors(change) if isinstance(part, Density) else change(part)
            for name, part in parts.items()
            if isinstance(part, Tensor | Density)
        }
        return replace(self, **changed)

    @abstractmethod
    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""

    @abstractmethod
    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J), with its exact gradient."""

    @abstractmethod
    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; the mass outside the image is left out."""

    @abstractmethod
    def support_area(self) -> Tensor:
        """(...) length or area of the part of the image where the density is above zero."""

    @abstractmethod
    def ellipses(self, level: float) -> Ellipses:
        """Contours that enclose the fraction `level` of each component's mass (level = 1: the edge of the support)."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws."""
