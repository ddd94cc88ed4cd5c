"""Basis functions of the value function: bumps that integrate to one, centred on an even grid over the picture."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from foveate.checks import check_floating, check_ndim, check_number, check_shape, is_tracing
from foveate.errors import ShapeError
from foveate.ops.grid import linspace_centres
from foveate.ops.radial import radial_pdf

AnyBasis = TypeVar("AnyBasis", bound="Basis")


@dataclass(frozen=True, eq=False)
class Basis(ABC):
    """J functions of one shape, `ψ_j(t) = ψ(t − μ_j)`, that integrate to one.

    Two bases are equal, and may serve as the same key, when their kind, centres and variances are.

    Attributes:
        centres: (J, d) the centres μ_j.
        variance: (d,) variance of the bump along each axis.
        power: exponent of the family in `ops/radial.py`, infinite for Gaussian bumps.
    """

    centres: Tensor
    variance: Tensor
    power: ClassVar[float]

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_floating(name, "centres", self.centres)
        check_ndim(name, "centres", self.centres, 2, "(J, d)")
        check_shape(name, "variance", self.variance, (self.centres.shape[-1],), "(d,)")
        if not is_tracing() and not bool((self.variance > 0).all()):
            raise ValueError(f"{name}: expected variance > 0, got {self.variance.tolist()}; the papers use 0.001")

    @classmethod
    def grid(
        cls: type[AnyBasis],
        count: int = 100,
        dim: int = 2,
        variance: float = 0.001,
        *,
        dtype: torch.dtype | None = None,
    ) -> AnyBasis:
        """`count` functions with centres spaced evenly over the unit interval or square, ends included.

        Args:
            count: number of functions J; a perfect square in two dimensions.
            dim: 1 or 2.
            variance: of every function along every axis.
            dtype: of the centres; float64 when absent, so that nothing is lost.

        Reference: Farinhas 2021 (thesis), §6.2: count = 100 or 49, variance = 0.001.

        >>> GaussianBasis.grid(4).centres.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
        """
        where = f"{cls.__name__}.grid"
        if dim not in (1, 2):
            raise ValueError(f"{where}: expected dim 1 or 2, got {dim}; build other dimensions from their centres")
        check_number(where, "variance", variance, above=0, advice="the papers use 0.001")
        side = count if dim == 1 else math.isqrt(max(count, 0))
        if count < 1 or side**dim != count:
            near = max(1, round(math.sqrt(max(count, 1)))) ** 2 if dim == 2 else 1
            what = "a perfect square as count in two dimensions" if dim == 2 else "count >= 1"
            raise ValueError(f"{where}: expected {what}, got {count}; use {near}")
        centres = linspace_centres(side, dim, dtype=dtype or torch.float64)
        return cls(centres, torch.full((dim,), variance, dtype=centres.dtype))

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return type(self), tuple(self.variance.tolist()), tuple(map(tuple, self.centres.tolist()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basis) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def dim(self) -> int:
        """Dimension d of the points."""
        return self.centres.shape[-1]

    def __len__(self) -> int:
        return self.centres.shape[0]

    def to(self: AnyBasis, device: torch.device | str) -> AnyBasis:
        """The same basis on another device."""
        return type(self)(self.centres.to(device), self.variance.to(device))

    def __call__(self, points: Tensor) -> Tensor:
        """Value of every function at `points`, (..., P, d) -> (..., P, J)."""
        if points.shape[-1] != self.dim:
            raise ShapeError(
                f"{type(self).__name__}: expected points (..., P, {self.dim}), got {tuple(points.shape)}; "
                "points carry one coordinate an axis of the basis"
            )
        difference = points.unsqueeze(-2) - self.centres.to(points)
        return radial_pdf(difference, torch.diag(self.variance.to(points)), self.power)


@dataclass(frozen=True, eq=False)
class GaussianBasis(Basis):
    """Normalised Gaussian functions, `ψ_j(t) = N(t; μ_j, diag(variance))`.

    Reference: Farinhas 2021 (thesis), chapter 4.

    >>> basis = GaussianBasis.grid(100)
    >>> basis(torch.rand(5, 2)).shape
    torch.Size([5, 100])
    """

    power: ClassVar[float] = math.inf


@dataclass(frozen=True, eq=False)
class TruncatedParaboloidBasis(Basis):
    """Normalised truncated paraboloids: bumps that are zero outside an ellipse.

    `ψ_j(t) = c [1 − Σ_i (t_i − μ_ji)² / ((d + 4) variance_i)]_+`, with c such that it integrates to one.

    Named as future work in Farinhas 2021 (thesis, §7.2).

    >>> basis = TruncatedParaboloidBasis.grid(100, variance=0.01)
    >>> (basis(torch.tensor([[0.0, 0.0]])) > 0).sum().item()
    6
    """

    power: ClassVar[float] = 1.0
