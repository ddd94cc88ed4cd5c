"""Continuous attention: time and error of densities and their expectations, and table 4.1 of Farinhas 2021.

    OMP_NUM_THREADS=1 python benchmarks/continuous.py [--save] [--integrals 20]

Forward and backward from 196 weights through moment matching to 100 expectations, batch size 64, float32, one thread;
microseconds of processor time per example (lower quartile). The error of the expectations is the largest of a row
relative to the largest value of the row, compared with many more nodes in float64. Target: 25 (continuous softmax) and
250 (continuous sparsemax, error 1e-5).

Table 4.1 (Farinhas 2021, thesis): one integral of a truncated paraboloid times a Gaussian function, by adaptive
quadrature of the plane (10 x 10 box, unit disc, polar coordinates), by the reduction of its appendix A.2 to one angle
(adaptive, and a sum over 100 angles as published, which counts the first angle twice), and by chords.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from functools import partial
from time import process_time
from typing import Any

import numpy as np
import torch
from measure import forward_and_backward, machine, save, seconds, show
from scipy.integrate import IntegrationWarning, dblquad, quad
from scipy.special import erf
from torch import Tensor

from foveate.ops import overlap, quadrature
from foveate.ops.basis import Basis, GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.moments import principal_axes
from foveate.ops.ridge import ridge_coefficients

B = 64
Family = Callable[[Tensor, Tensor], Density]


def weights_and_positions(N: int, dim: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    side = math.isqrt(N)
    positions = cell_centres(side, side) if dim == 2 else cell_centres_1d(N)
    return torch.softmax(2 * torch.randn(B, N, generator=generator), -1), positions


def error(family: Family, weights: Tensor, positions: Tensor, basis: Basis) -> float:
    """Largest error of a row relative to its largest value, compared with four times the nodes in float64."""
    found = family(weights, positions)
    exact = _in_float64(found)
    nodes = quadrature.CHORD_NODES, quadrature._ball_nodes
    try:
        quadrature.CHORD_NODES, quadrature._ball_nodes = 128, lambda power, bump: (128, 64)
        few = 4 if "Beta" in type(found).__name__ or not math.isinf(basis.power) else B
        reference = _rows(exact, few).expect(basis)
    finally:
        quadrature.CHORD_NODES, quadrature._ball_nodes = nodes
    r = found.expect(basis).double()[: len(reference)]
    return float(((r - reference).abs().amax(-1) / reference.amax(-1)).max())


def _in_float64(density: Density) -> Density:
    matrix = density.covariance if isinstance(density, Gaussian) else density.scale  # type: ignore[attr-defined]
    rest = (density.alpha,) if isinstance(density, BetaGaussian) else ()
    return type(density)(density.mean.double(), matrix.double(), *rest)  # type: ignore[call-arg]


def _rows(density: Density, count: int) -> Density:
    matrix = density.covariance if isinstance(density, Gaussian) else density.scale  # type: ignore[attr-defined]
    rest = (density.alpha,) if isinstance(density, BetaGaussian) else ()
    return type(density)(density.mean[:count], matrix[:count], *rest)  # type: ignore[call-arg]


def cost(family: Family, N: int, basis: Basis) -> dict[str, float]:
    weights, positions = weights_and_positions(N, basis.dim)
    both = forward_and_backward(lambda w: family(w, positions).expect(basis), weights, torch.ones(B, len(basis)))
    once = seconds(lambda: family(weights, positions).expect(basis), repeat=9)
    return {
        "forward us": once / B * 1e6,
        "both us": seconds(both, repeat=9) / B * 1e6,
        "error": error(family, weights, positions, basis),
    }


def headline_rows() -> list[dict[str, Any]]:
    plane, line = GaussianBasis.grid(100), GaussianBasis.grid(100, dim=1)
    bumps = TruncatedParaboloidBasis.grid(100, variance=0.005)
    entmax = partial(BetaGaussian.from_weights, alpha=1.5)
    work: list[tuple[str, Family, Basis, float | str]] = [
        ("continuous softmax", Gaussian.from_weights, plane, 25),
        ("continuous sparsemax", TruncatedParaboloid.from_weights, plane, 250),
        ("continuous 1.5-entmax", entmax, plane, "-"),
        ("continuous softmax, line", Gaussian.from_weights, line, "-"),
        ("continuous sparsemax, line", TruncatedParaboloid.from_weights, line, "-"),
        ("continuous 1.5-entmax, line", entmax, line, "-"),
        ("softmax, paraboloid basis", Gaussian.from_weights, bumps, "-"),
        ("sparsemax, paraboloid basis", TruncatedParaboloid.from_weights, bumps, "-"),
    ]
    return [{"work": name, **cost(family, 196, basis), "to reach": goal} for name, family, basis, goal in work]


def growth_rows() -> list[dict[str, Any]]:
    sizes = [(N, 100) for N in (49, 196, 576, 1024)] + [(196, J) for J in (25, 49, 196, 400)]
    return [{"N": N, "J": J, **_pair(N, GaussianBasis.grid(J))} for N, J in sizes]


def _pair(N: int, basis: Basis) -> dict[str, float]:
    return {
        "softmax both us": cost(Gaussian.from_weights, N, basis)["both us"],
        "sparsemax both us": cost(TruncatedParaboloid.from_weights, N, basis)["both us"],
    }


def rest_rows() -> list[dict[str, Any]]:
    """The other parts of continuous attention: the value function and the map."""
    weights, positions = weights_and_positions(196)
    basis, values = GaussianBasis.grid(100), torch.randn(B, 196, 512)
    holes = torch.rand(B, 196) > 0.1
    work: list[tuple[str, Callable[[], object]]] = [
        ("ridge, 196 x 512 values", lambda: ridge_coefficients(values, basis, (14, 14))),
        ("ridge, every example with holes", lambda: ridge_coefficients(values, basis, (14, 14), mask=holes)),
    ]
    for family in (Gaussian, TruncatedParaboloid, BetaGaussian):
        density = family.from_weights(weights, positions)
        work.append((f"{family.__name__}.to_map(14, 14)", partial(density.to_map, 14, 14)))
    return [{"work": name, "forward us": seconds(f, repeat=5) / B * 1e6} for name, f in work]


# ---------------------------------------------------------------- table 4.1


class Integral:
    """`∫ [−λ − ½ (t − μ)ᵀ Σ⁻¹ (t − μ)]_+ N(t; μ_j, v I) dt` with random parameters."""

    def __init__(self, random: np.random.Generator) -> None:
        angle, long = random.uniform(0, math.pi), random.uniform(0.05, 0.3)
        c, s = math.cos(angle), math.sin(angle)
        turn = np.array([[c, -s], [s, c]])
        covariance = turn @ np.diag([long**2, (long * random.uniform(0.2, 1)) ** 2]) @ turn.T
        self.scale = 9 * math.pi * math.sqrt(np.linalg.det(covariance)) * covariance
        self.mean, self.variance = random.random(2), 10 ** random.uniform(-3, -1)
        self.centre = self.mean + turn @ (random.uniform(-2, 2, 2) * np.array([long, long / 2]))
        self.lam = -math.sqrt(1 / (math.pi * math.sqrt(np.linalg.det(self.scale))))
        value, vector = np.linalg.eigh(self.scale)
        self.root = vector @ np.diag(np.sqrt(-2 * self.lam * value)) @ vector.T
        inverse = np.linalg.inv(self.root)
        self.precision = np.linalg.inv(self.scale)
        self.far, spread = inverse @ (self.centre - self.mean), self.variance * inverse @ inverse
        self.kernel, self.weight = np.linalg.inv(spread), 1 / (2 * math.pi * math.sqrt(np.linalg.det(spread)))

    def box(self) -> float:
        def f(y: float, x: float) -> float:
            d = np.array([x, y]) - self.mean
            height = max(-self.lam - 0.5 * d @ self.precision @ d, 0.0)
            g = np.array([x, y]) - self.centre
            return height * math.exp(-0.5 * g @ g / self.variance) / (2 * math.pi * self.variance)

        return dblquad(f, -5, 5, -5, 5)[0]

    def disc(self) -> float:
        return -self.lam * dblquad(lambda y, x: max(1 - x * x - y * y, 0) * self._bump(x, y), -1, 1, -1, 1)[0]

    def polar(self) -> float:
        def f(r: float, a: float) -> float:
            return r * (1 - r * r) * self._bump(r * math.cos(a), r * math.sin(a))

        return -self.lam * dblquad(f, 0, 2 * math.pi, 0, 1)[0]

    def angle(self, tolerance: float = 1.49e-8) -> float:
        whole = quad(lambda a: float(self.ray(np.array(a))), 0, 2 * math.pi, epsrel=tolerance, epsabs=0, limit=400)[0]
        return -self.lam * whole

    def naive(self, angles: np.ndarray) -> float:
        return -self.lam * 2 * math.pi * float(self.ray(angles).mean())

    def ray(self, a: np.ndarray) -> np.ndarray:
        """(A.17) and (A.22): what a ray from the mean contributes."""
        u = np.stack([np.cos(a), np.sin(a)], -1)
        variance = 1 / np.einsum("...i,ij,...j->...", u, self.kernel, u)
        sigma, r0 = np.sqrt(variance), variance * (u @ self.kernel @ self.far)
        rest = self.far @ self.kernel @ self.far - r0**2 / variance
        s = self.weight * sigma * math.sqrt(2 * math.pi) * np.exp(-0.5 * rest)
        end, start = (np.exp(-0.5 * (x / sigma) ** 2) / math.sqrt(2 * math.pi) for x in (1 - r0, -r0))
        between = erf((1 - r0) / sigma / math.sqrt(2)) - erf(-r0 / sigma / math.sqrt(2))
        F = (2 * sigma**3 + r0**2 * sigma + r0 * sigma) * end - (2 * sigma**3 + r0**2 * sigma - sigma) * start
        return s * (F - (r0**3 + (3 * variance - 1) * r0) / 2 * between)

    def _bump(self, x: float, y: float) -> float:
        d = np.array([x, y]) - self.far
        return self.weight * math.exp(-0.5 * d @ self.kernel @ d)

    def density(self) -> TruncatedParaboloid:
        return TruncatedParaboloid(torch.tensor(self.mean), torch.tensor(self.scale))

    def chords(self) -> float:
        basis = GaussianBasis(torch.tensor(self.centre)[None], torch.full((2,), self.variance, dtype=torch.float64))
        return float(self.density().expect(basis))


def table_rows(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    integrals = [Integral(random) for _ in range(count)]
    exact = np.array([i.angle(1e-12) for i in integrals])
    published = np.linspace(0, 2 * math.pi, 100)
    methods: list[tuple[str, Callable[[Integral], float], int]] = [
        ("2D-Num", Integral.box, min(3, count)),
        ("2D-Num-Circle", Integral.disc, min(3, count)),
        ("2D-Num-Polar", Integral.polar, count),
        ("1D-Num", Integral.angle, count),
        ("1D-Naive, 100 angles as published", partial(Integral.naive, angles=published), count),
        (
            "1D-Naive, 100 angles, each once",
            partial(Integral.naive, angles=np.arange(100) * (2 * math.pi / 100)),
            count,
        ),
        ("chords, one at a time", Integral.chords, count),
    ]
    rows = []
    for name, method, most in methods:
        start = process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IntegrationWarning)
            values = np.array([method(i) for i in integrals[:most]])
        spent = (process_time() - start) / most
        rows.append(_table_row(name, most, spent, values, exact[:most]))
    rows.append(_table_row("chords, 6400 at once", count, *_batched(integrals), exact))
    return rows


def _table_row(name: str, count: int, spent: float, values: np.ndarray, exact: np.ndarray) -> dict[str, Any]:
    wrong = np.abs(values / exact - 1)
    return {
        "method": name,
        "integrals": count,
        "seconds each": spent,
        "median error": float(np.median(wrong)),
        "worst error": float(wrong.max()),
    }


def _batched(integrals: list[Integral]) -> tuple[float, np.ndarray]:
    """Seconds per integral and the values, by `chord_moments` on all of them together, repeated up to 6400."""
    support = torch.stack([torch.tensor(-2 * i.lam * i.scale / (2 * i.variance)) for i in integrals])
    squared, angle = principal_axes(support)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], -1).unflatten(-1, (2, 2))
    centre = torch.stack([torch.tensor(i.centre - i.mean) / math.sqrt(2 * i.variance) for i in integrals])
    centre = (centre.unsqueeze(-2) @ turn).squeeze(-2)
    times = math.ceil(6400 / len(integrals))
    semi, many = squared.sqrt().repeat(times, 1), centre.repeat(times, 1).unsqueeze(1)
    moments = quadrature.chord_moments(semi, many)[: len(integrals), 0]
    area = math.pi * squared.prod(-1).sqrt() * torch.tensor([2 * i.variance for i in integrals], dtype=torch.float64)
    values = 2 / area * overlap._value(moments)
    spent = seconds(lambda: quadrature.chord_moments(semi, many), repeat=5)
    return spent / len(semi), values.numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results/continuous.json")
    parser.add_argument("--integrals", type=int, default=20, help="integrals of table 4.1")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    tables = {
        "densities": headline_rows(),
        "growth": growth_rows(),
        "rest": rest_rows(),
        "table 4.1": table_rows(arguments.integrals),
    }
    for title, rows in tables.items():
        show(title, rows)
    if arguments.save:
        print(save("continuous", machine(["torch", "scipy", "numpy"]), tables))


if __name__ == "__main__":
    main()
