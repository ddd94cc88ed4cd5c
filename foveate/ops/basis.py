"""Basis functions of the value function: bumps that integrate to one, centred on a regular grid over the image."""

from __future__ import annotations

import math
from abc import ABC
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from operator import index
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from foveate.checks import check_floating, check_ndim, check_number, check_shape, is_tracing
from foveate.errors import ShapeError, WrongValue
from foveate.ops.cells import cell_masses, line_masses, normal_masses
from foveate.ops.grid import cell_centres, cell_centres_1d, linspace_centres
from foveate.ops.radial import radial_pdf
from foveate.ops.values import memo

AnyBasis = TypeVar("AnyBasis", bound="Basis")


MOST = 100  # functions of a basis made by `for_grid`
Layout = tuple[float, float]  # reach of the centres beyond the image, deviation of a bump; in distances between centres


@dataclass(frozen=True, eq=False)
class Basis(ABC):
    """J functions of one shape, `ψ_j(t) = ψ(t − μ_j)`, that integrate to one.

    Two bases are equal, and hash alike, if their class, centres and variances are equal.

    Attributes:
        centres: (J, d) the centres μ_j.
        variance: (d,) variance of the bump along each axis.
        suits: cells along x (and y) of the grid that `for_grid` chose this basis for; None for any other.
        power: exponent of the family in `ops/radial.py`, infinite for Gaussian bumps.
    """

    centres: Tensor
    variance: Tensor
    suits: tuple[int, ...] | None = None
    power: ClassVar[float]
    layouts: ClassVar[tuple[Layout, ...]]  # what `for_grid` tries
    narrow: ClassVar[tuple[int, tuple[Layout, ...]]]  # functions and layouts for an axis of one or two cells

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_floating(name, "centres", self.centres)
        check_ndim(name, "centres", self.centres, 2, "(J, d)")
        check_shape(name, "variance", self.variance, (self.centres.shape[-1],), "(d,)")
        if not self.variance.is_meta and not is_tracing() and not bool((self.variance > 0).all()):
            raise WrongValue(f"{name}: expected variance > 0, got {self.variance.tolist()}; the papers use 0.001")

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
            dtype: of the centres; float64 by default.

        Reference: Farinhas 2021 (thesis), §6.2: count = 100 or 49, variance = 0.001.

        >>> GaussianBasis.grid(4).centres.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]
        """
        where = f"{cls.__name__}.grid"
        if dim not in (1, 2):
            raise WrongValue(f"{where}: expected dim 1 or 2, got {dim}; build other dimensions from their centres")
        check_number(where, "variance", variance, above=0, advice="the papers use 0.001")
        side = count if dim == 1 else math.isqrt(max(count, 0))
        if count < 1 or side**dim != count:
            near = max(1, round(math.sqrt(max(count, 1)))) ** 2 if dim == 2 else 1
            what = "a perfect square as count in two dimensions" if dim == 2 else "count >= 1"
            raise WrongValue(f"{where}: expected {what}, got {count}; use {near}")
        centres = linspace_centres(side, dim, dtype=dtype or torch.float64)
        return cls(centres, torch.full((dim,), variance, dtype=centres.dtype))

    @classmethod
    def for_grid(cls: type[AnyBasis], H: int, W: int | None = None) -> AnyBasis:
        """At most 100 functions that suit a grid of H x W cells, or of H cells on a line.

        The centres extend slightly beyond the image, and each axis has its own variance. Both are chosen so that the
        ridge regression of a constant (penalty 0.01, no padding) is within 5 % of it everywhere in the image. There is
        about one function per cell, up to 100. (Paraboloids: within 5 % from 4 cells per axis, 20 % below.) With the
        papers' basis, 100 functions of variance 0.001, the constant 1 becomes anything from 0.6 to 3.2 on 7 x 7 cells.

        >>> len(GaussianBasis.for_grid(7, 7)), len(GaussianBasis.for_grid(32, 32)), len(GaussianBasis.for_grid(14))
        (49, 100, 14)
        """
        # index() turns a symbolic size of torch.compile into a number, which the constants below depend on
        cells = (index(H),) if W is None else (index(W), index(H))
        if min(cells) < 1:
            raise WrongValue(f"{cls.__name__}.for_grid: expected at least one cell, got H={H}, W={W}; count the cells")
        if torch.compiler.is_compiling():  # a constant of the graph can be a tensor but not a basis
            return cls(*_suited_tensors(cls, cells), cells)
        return _suited(cls, cells)

    @cached_property
    def _key(self) -> tuple[object, ...]:
        return type(self), tuple(self.variance.tolist()), tuple(map(tuple, self.centres.tolist()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basis) and self._key == other._key

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    @property
    def dim(self) -> int:
        """Dimension d of the points."""
        return self.centres.shape[-1]

    def __len__(self) -> int:
        return self.centres.shape[0]

    def to(self: AnyBasis, device: torch.device | str) -> AnyBasis:
        """The same basis on another device."""
        return type(self)(self.centres.to(device), self.variance.to(device), self.suits)

    def mass_in_image(self) -> Tensor:
        """(J,) integral of every function over the unit interval or square: its expectation under a uniform density.

        Kept between calls: do not write to it.
        """
        return self._mass_in_image() if is_tracing() else _mass_in_image(self)

    def _mass_in_image(self) -> Tensor:
        spread = torch.diag(self.variance).expand(len(self), self.dim, self.dim)
        if not math.isinf(self.power):
            if self.dim == 1:
                return line_masses(self.centres, spread, self.power, 1)[:, 0]
            return cell_masses(self.centres, spread, self.power, 1, 1)[:, 0, 0]
        width = self.variance.sqrt()
        return normal_masses(-self.centres / width, (1 - self.centres) / width).prod(-1)

    def __call__(self, points: Tensor) -> Tensor:
        """Value of every function at `points`, (..., P, d) -> (..., P, J)."""
        if points.shape[-1] != self.dim:
            raise ShapeError(
                f"{type(self).__name__}: expected points (..., P, {self.dim}), got {tuple(points.shape)}; "
                "pass one coordinate per axis of the basis"
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
    layouts: ClassVar[tuple[Layout, ...]] = ((1, 0.6), (0.75, 0.6), (0.75, 0.7), (0.25, 0.52), (0.2, 0.5), (0.1, 0.48))
    narrow: ClassVar[tuple[int, tuple[Layout, ...]]] = (2, ((0, 0.45), (0.05, 0.46)))


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
    layouts: ClassVar[tuple[Layout, ...]] = ((1, 0.8), (0.75, 1.2), (0.75, 0.8), (0.5, 0.52), (0.5, 0.55), (1, 0.55))
    narrow: ClassVar[tuple[int, tuple[Layout, ...]]] = (3, ((0.5, 1.2), (0.25, 1.2)))


@memo(maxsize=256)
def _suited(kind: type[AnyBasis], cells: tuple[int, ...]) -> AnyBasis:
    """The basis of `for_grid`: fewer and fewer functions until a layout reproduces a constant within 5 %."""
    found: list[tuple[float, AnyBasis]] = []
    for tenths in range(10, 0, -1):
        found += [(_constant_error(basis, cells), basis) for basis in _layouts(kind, cells, tenths / 10)]
        if found and min(error for error, _ in found) <= 0.05:
            break
    return replace(min(found, key=lambda pair: pair[0])[1], suits=cells)


@memo(maxsize=256)
def _suited_tensors(kind: type[Basis], cells: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    basis = _suited(kind, cells)
    return basis.centres, basis.variance


def _layouts(kind: type[AnyBasis], cells: tuple[int, ...], per_cell: float) -> Iterator[AnyBasis]:
    """Bases with about `per_cell` functions per cell along each axis, at most MOST in total."""
    least, narrow = kind.narrow
    sides = [least if n <= 2 else max(3, round(per_cell * n)) for n in cells]
    # take functions from the longest axis, which loses the least detail
    while math.prod(sides) > MOST:
        sides[sides.index(max(sides))] -= 1
    for wide, small in product(kind.layouts, narrow if min(cells) <= 2 else narrow[:1]):
        chosen = [small if n <= 2 else wide for n in cells]
        steps = [side - 1 - 2 * reach for side, (reach, _) in zip(sides, chosen, strict=True)]
        if min(steps) < 0.3:
            continue
        lines = [
            (linspace_centres(side, 1, dtype=torch.float64)[:, 0] - 0.5) * (side - 1) / step + 0.5
            for side, step in zip(sides, steps, strict=True)
        ]
        centres = torch.cartesian_prod(*reversed(lines)).reshape(-1, len(lines)).flip(-1)
        widths = [width / step for step, (_, width) in zip(steps, chosen, strict=True)]
        yield kind(centres, torch.tensor(widths, dtype=torch.float64).square())


def _constant_error(basis: Basis, cells: tuple[int, ...], penalty: float = 0.01) -> float:
    """Largest error inside the image of the ridge regression of the constant 1."""
    fine = [min(4 * n, 64) for n in cells]
    if len(cells) == 1:
        at, seen = cell_centres_1d(cells[0], dtype=torch.float64), linspace_centres(fine[0] + 1, 1, dtype=torch.float64)
    else:
        at, seen = (
            cell_centres(cells[1], cells[0], dtype=torch.float64),
            linspace_centres(max(fine) + 1, 2, dtype=torch.float64),
        )
    F = basis(at)
    system = F.T @ F + penalty * torch.eye(len(basis), dtype=torch.float64)
    coefficients = torch.cholesky_solve(F.sum(0)[:, None], torch.linalg.cholesky(system))
    return float((basis(seen) @ coefficients - 1).abs().max())


@memo(maxsize=64)
def _mass_in_image(basis: Basis) -> Tensor:
    return basis._mass_in_image()
