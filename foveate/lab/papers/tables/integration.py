"""Table 4.1 of Farinhas 2021: the time of an integral by five methods, and by ours."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from foveate.ops.basis import GaussianBasis
from foveate.ops.compact import TruncatedParaboloid
from foveate.registry import optional

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Integrand:
    """A truncated paraboloid and a Gaussian in the plane, whose product is integrated (Farinhas 2021, eq. 4.13).

    Attributes:
        mean, scale: μ and Σ of the paraboloid [−λ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ)]₊ with λ = −1 / √(π |Σ|^½).
        centre, covariance: μ_j and Σ_j of the Gaussian, Σ_j diagonal.
    """

    mean: Array
    scale: Array
    centre: Array
    covariance: Array

    @property
    def top(self) -> float:
        """−λ, the value of the paraboloid at its mean."""
        return float(1 / math.sqrt(math.pi * math.sqrt(np.linalg.det(self.scale))))

    @property
    def ellipse(self) -> Array:
        """(2, 2) maps the unit disc onto the support: μ + A s with |s| <= 1."""
        root: Array = np.linalg.cholesky(2 * self.top * self.scale)
        return root

    def at(self, point: Array) -> float:
        """The product at a point of the plane."""
        offset = point - self.mean
        inside = self.top - 0.5 * float(offset @ np.linalg.solve(self.scale, offset))
        return max(inside, 0.0) * self.gaussian(point)

    def gaussian(self, point: Array) -> float:
        """The Gaussian at a point."""
        away = point - self.centre
        weight = math.exp(-0.5 * float(away @ np.linalg.solve(self.covariance, away)))
        return weight / (2 * math.pi * math.sqrt(float(np.linalg.det(self.covariance))))

    def on_disc(self, s: Array) -> float:
        """The product at μ + A s times the area of A: the integrand on the unit disc."""
        inside = self.top * (1 - float(s @ s))
        area = float(np.linalg.det(self.ellipse))
        return max(inside, 0.0) * self.gaussian(self.mean + self.ellipse @ s) * area

    def along(self, angle: float) -> float:
        """The integral over the radius in one direction, in closed form (Farinhas 2021, A.2).

        ∫₀¹ −λ (1 − r²) r N(μ + A r u; μ_j, Σ_j) |A| dr is a Gaussian times a polynomial in r.
        """
        ray = self.ellipse @ np.array([math.cos(angle), math.sin(angle)])
        precision = np.linalg.inv(self.covariance)
        offset = self.mean - self.centre
        a, b, c = (float(x @ precision @ y) for x, y in ((ray, ray), (ray, offset), (offset, offset)))
        outer = (
            self.top * float(np.linalg.det(self.ellipse)) / (2 * math.pi * math.sqrt(np.linalg.det(self.covariance)))
        )
        first, third = _radial_moments(a, b, c)
        return outer * (first - third)


def _radial_moments(a: float, b: float, c: float) -> tuple[float, float]:
    """∫₀¹ rⁿ exp(−½ (a r² + 2 b r + c)) dr for n = 1 and 3, by the recurrence of integration by parts."""
    shift, width = b / a, math.sqrt(a / 2)
    peak = math.exp(-0.5 * (c - b * b / a))
    zero = peak * math.sqrt(math.pi) / (2 * width) * (math.erf(width * (1 + shift)) - math.erf(width * shift))
    start, end = math.exp(-0.5 * c), math.exp(-0.5 * (a + 2 * b + c))
    first = (start - end) / a - shift * zero
    second = -end / a + zero / a - shift * first
    third = -end / a + 2 * first / a - shift * second
    return first, third


def random_integrand(generator: np.random.Generator) -> Integrand:
    """An integrand with random parameters whose support lies inside the box of [−5, 5]²."""

    def covariance(low: float, high: float) -> Array:
        angle, sizes = generator.uniform(0, math.pi), generator.uniform(low, high, 2)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        made: Array = turn @ np.diag(sizes) @ turn.T
        return made

    scale, variance = covariance(0.02, 0.2), np.diag(generator.uniform(0.02, 0.2, 2))
    return Integrand(generator.uniform(0, 1, 2), scale, generator.uniform(0, 1, 2), variance)


def _box(integrate: Any, tolerance: float, one: Integrand) -> float:
    return float(
        integrate.dblquad(lambda y, x: one.at(np.array([x, y])), -5, 5, -5, 5, epsabs=tolerance, epsrel=tolerance)[0]
    )


def _circle(integrate: Any, tolerance: float, one: Integrand) -> float:
    return float(
        integrate.dblquad(lambda y, x: one.on_disc(np.array([x, y])), -1, 1, -1, 1, epsabs=tolerance, epsrel=tolerance)[
            0
        ]
    )


def _polar(integrate: Any, tolerance: float, one: Integrand) -> float:
    def at(radius: float, angle: float) -> float:
        return radius * one.on_disc(radius * np.array([math.cos(angle), math.sin(angle)]))

    return float(integrate.dblquad(at, 0, 2 * math.pi, 0, 1, epsabs=tolerance, epsrel=tolerance)[0])


def _line(integrate: Any, tolerance: float, one: Integrand) -> float:
    return float(integrate.quad(one.along, 0, 2 * math.pi, epsabs=tolerance, epsrel=tolerance)[0])


def _naive(integrate: Any, tolerance: float, one: Integrand) -> float:
    return float(np.mean([one.along(angle) for angle in np.arange(100) * (2 * math.pi / 100)]) * 2 * math.pi)


def _chords(integrate: Any, tolerance: float, one: Integrand) -> float:
    mean, scale, centre, variance = map(
        torch.from_numpy, (one.mean, one.scale, one.centre, one.covariance.diagonal().copy())
    )
    return float(TruncatedParaboloid(mean, scale).expect(GaussianBasis(centre[None], variance)))


METHODS: dict[str, Callable[[Any, float, Integrand], float]] = {
    "2D-Num": _box,
    "2D-Num-Circle": _circle,
    "2D-Num-Polar": _polar,
    "1D-Num": _line,
    "1D-Naive": _naive,
    "chords (ours)": _chords,
}


def measure_integration(
    repetitions: int, tolerance: float = 1.49e-8, methods: tuple[str, ...] = tuple(METHODS)
) -> Mapping[str, Mapping[str, float]]:
    """Seconds per integral, and the mean value, by method.

    Args:
        repetitions: integrals with random parameters; 100 in the thesis.
        tolerance: of SciPy's adaptive integration, its default if absent.
        methods: names in `METHODS`.
    """
    integrate = optional("001-table-4.1", "scipy.integrate", extra="tables")
    generator = np.random.default_rng(0)
    chosen = [random_integrand(generator) for _ in range(repetitions)]
    found = {}
    for name in methods:
        start = time.perf_counter()
        with warnings.catch_warnings():  # the kink at the edge of the support limits the box methods
            warnings.simplefilter("ignore", integrate.IntegrationWarning)
            values = [METHODS[name](integrate, tolerance, one) for one in chosen]
        found[name] = {"seconds": (time.perf_counter() - start) / repetitions, "value": float(np.mean(values))}
    return found
