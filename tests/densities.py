"""Densities to state laws over, and slow references that share no formula with the library."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from scipy.integrate import IntegrationWarning, quad
from torch import Tensor

from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.mixture import Mixture

GAUSS = np.polynomial.legendre.leggauss(120)


def paraboloid(mean: Tensor, covariance: Tensor) -> TruncatedParaboloid:
    """From the covariance, by the printed formulas (4.3) and (4.6)."""
    if mean.shape[-1] == 1:
        return TruncatedParaboloid(mean, 2 / 3 * (5 * covariance) ** 1.5)
    return TruncatedParaboloid(mean, 9 * math.pi * torch.linalg.det(covariance).sqrt()[..., None, None] * covariance)


def beta(alpha: float) -> Callable[[Tensor, Tensor], BetaGaussian]:
    """From the covariance, with the scale found by bisection on the covariance."""

    def make(mean: Tensor, covariance: Tensor) -> BetaGaussian:
        low, high = (torch.full(mean.shape[:-1], v, dtype=torch.float64) for v in (-60.0, 30.0))
        base = covariance.detach() / covariance.detach().diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
        target = covariance.detach()[..., 0, 0]
        for _ in range(200):
            middle = (low + high) / 2
            found = BetaGaussian(mean.detach(), middle.exp()[..., None, None] * base, alpha).covariance[..., 0, 0]
            low, high = torch.where(found < target, middle, low), torch.where(found < target, high, middle)
        return BetaGaussian(mean, middle.exp()[..., None, None] * base, alpha)

    return make


def mixture(
    family: Callable[[Tensor, Tensor], Density], background: float | None = None
) -> Callable[[Tensor, Tensor], Mixture]:
    """Two components of different weight on both sides of the mean, over a background or not."""

    def make(mean: Tensor, covariance: Tensor) -> Mixture:
        shift = torch.linspace(0.05, 0.08, mean.shape[-1], dtype=mean.dtype)
        means = torch.stack([mean - shift, mean + shift], dim=-2)
        weights = (1 - (background or 0)) * torch.tensor([0.3, 0.7], dtype=mean.dtype).expand(*mean.shape[:-1], 2)
        even = None if background is None else torch.full_like(weights[..., 0], background)
        parts = family(means, torch.stack([covariance, covariance / 2], dim=-3))
        return Mixture(parts, weights, background=even)

    return make


FAMILIES: dict[str, Callable[[Tensor, Tensor], Density]] = {
    "gaussian": Gaussian,
    "paraboloid": paraboloid,
    "beta-gaussian 1.5": beta(1.5),
    "beta-gaussian 1.2": beta(1.2),
    "beta-gaussian 2": beta(2.0),
    "mixture of gaussians": mixture(Gaussian),
    "mixture of paraboloids": mixture(paraboloid),
    "mixture of gaussians over a background": mixture(Gaussian, 0.2),
    "mixture of paraboloids over a background": mixture(paraboloid, 0.2),
}


def ellipse(long: float, short: float, angle: float, dtype: torch.dtype = torch.float64) -> Tensor:
    """Covariance with deviations `long` and `short`, the long axis turned by `angle`."""
    c, s = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    return (turn @ torch.diag(torch.tensor([long**2, short**2], dtype=torch.float64)) @ turn.T).to(dtype)


def case(dim: int) -> tuple[Tensor, Tensor]:
    """Three means and covariances inside the image: tilted, round, axis-parallel."""
    mean = torch.tensor([[0.45, 0.55], [0.4, 0.5], [0.55, 0.45]], dtype=torch.float64)
    covariance = torch.stack([ellipse(0.12, 0.03, 0.6), ellipse(0.05, 0.05, 0), ellipse(0.1, 0.02, math.pi / 2)])
    return mean[:, :dim].clone(), covariance[:, :dim, :dim].clone()


def whole_box(dim: int, lower: float = -0.5, upper: float = 1.5, cells: int = 160) -> tuple[Tensor, Tensor]:
    """Points and weights of a composite Gauss rule over a box that holds the densities of `case`: (P, d), (P,)."""
    x, w = np.polynomial.legendre.leggauss(3)
    cells = cells if dim == 2 else 200 * cells
    edges = np.linspace(lower, upper, cells + 1)
    half = (edges[1] - edges[0]) / 2
    line = torch.tensor((edges[:-1, None] + half * (x + 1)).ravel())
    weight = torch.tensor(np.tile(half * w, cells))
    if dim == 1:
        return line[:, None], weight
    points = torch.cartesian_prod(line, line)
    return points, torch.cartesian_prod(weight, weight).prod(-1)


def product_integral(
    mean: np.ndarray,
    covariance: np.ndarray,
    m: float,
    bump: Callable[[float, np.ndarray], np.ndarray],
    reach: Callable[[float], tuple[float, float]],
    span: tuple[float, float],
) -> float:
    """`∫ c |E|^{−1/2} (1 − q)^m bump` in the plane: adaptive along x, 120 Gauss nodes along y, no rotation.

    The bump is negligible outside `span` along x and, given x, outside `reach(x)` along y.
    """
    E = (2 * m + 4) * covariance
    P = np.linalg.inv(E)
    norm = (m + 1) / math.pi / math.sqrt(np.linalg.det(E))

    def column(x: float) -> float:
        dx = x - mean[0]
        # P22 y² + 2 P12 dx y + P11 dx² <= 1
        root = (P[0, 1] * dx) ** 2 - P[1, 1] * (P[0, 0] * dx * dx - 1)
        if root <= 0:
            return 0.0
        low, high = ((-P[0, 1] * dx + s * math.sqrt(root)) / P[1, 1] + mean[1] for s in (-1, 1))
        near, far = reach(x)
        low, high = max(low, min(near, high - (far - near) / 2)), min(high, max(far, low + (far - near) / 2))
        if high <= low:
            return 0.0
        y = (low + high) / 2 + (high - low) / 2 * GAUSS[0]
        dy = y - mean[1]
        q = P[0, 0] * dx * dx + 2 * P[0, 1] * dx * dy + P[1, 1] * dy * dy
        return float((high - low) / 2 * (GAUSS[1] * np.clip(1 - q, 0, None) ** m * bump(x, y)).sum())

    half = math.sqrt(E[0, 0])
    low, high = mean[0] - half, mean[0] + half
    width = span[1] - span[0]
    edges = np.linspace(max(low, min(span[0], high - width)), min(high, max(span[1], low + width)), 9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", IntegrationWarning)  # the last digit of an integral that is nearly zero
        parts = [quad(column, a, b, epsabs=0, epsrel=1e-8, limit=30)[0] for a, b in pairwise(edges)]
    return norm * sum(parts)
