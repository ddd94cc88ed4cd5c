"""Fenchel-Young losses of continuous densities: how far a density is from another of its family."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.ops.compact import CompactDensity
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.moments import lower_root, root_determinant, squared_distance, whiten
from foveate.ops.radial import peak


def density_fenchel_young(density: Density, target: Density) -> Tensor:
    """`L(f; q) = Ω(q) + Ω*(f) − E_q[f]` for the density that the quadratic score f predicts; zero where they agree.

    `f(t) = −½ (t − μ)ᵀ Σ⁻¹ (t − μ)`; Ω is the negative entropy for Gaussians, whose loss is the Kullback-Leibler
    divergence KL(q ‖ p), and the Tsallis entropy of α = 1 + 1/m for densities `[(−τ − ½ ‖·‖²_Σ) / m]_+^m`. The
    gradient in the natural parameters is the difference of the moments, E_p[φ] − E_q[φ]: it does not vanish where the
    supports are apart.

    Args:
        density: a Gaussian, TruncatedParaboloid or BetaGaussian, of batch shape (...).
        target: of the same family; `type(density).from_weights(map, positions)` makes one from a human or true map.

    Returns:
        (...) losses, non-negative.

    Reference: Martins et al. 2022, sparse continuous distributions and Fenchel-Young losses, §5.

    >>> p = Gaussian(torch.zeros(2), torch.eye(2))
    >>> q = Gaussian(torch.tensor([1.0, 0.0]), torch.eye(2))
    >>> density_fenchel_young(p, q).item(), density_fenchel_young(p, p).item()
    (0.5, 0.0)
    """
    if (
        not isinstance(density, Gaussian | CompactDensity)
        or type(density) is not type(target)
        or _power(density) != _power(target)
    ):
        single, own = isinstance(density, Gaussian | CompactDensity), type(density).__name__
        advice = f"fit the target with {own}.from_weights" if single else "use attend.loss(scores, target)"
        raise TypeError(
            f"fenchel_young_loss: expected two densities of one family (Gaussian, TruncatedParaboloid or BetaGaussian "
            f"of one alpha), got {own} and {type(target).__name__}; {advice}"
        )
    if density.mean.shape[-1] != target.mean.shape[-1]:
        raise ShapeError(
            f"fenchel_young_loss: expected densities of one dimension, got {density.mean.shape[-1]} and "
            f"{target.mean.shape[-1]}; fit both on the same positions"
        )
    if not isinstance(density, CompactDensity) or not isinstance(target, CompactDensity):
        return _kullback_leibler(density, target)
    m, d = density.power, density.mean.shape[-1]
    expected = -0.5 * _expected_distance(density, target, lower_root(density.scale))
    return _conjugate(density.scale, m, d) + _omega(target.scale, m, d) - expected


def _power(density: Density) -> float:
    """m of `[1 − ρ]_+^m`, infinite for a Gaussian."""
    return density.power if isinstance(density, CompactDensity) else math.inf


def _kullback_leibler(density: Density, target: Density) -> Tensor:
    root = lower_root(density.covariance)
    ratio = 2 * (root_determinant(root).log() - root_determinant(lower_root(target.covariance)).log())
    return 0.5 * (_expected_distance(density, target, root) - density.mean.shape[-1] + ratio)


def _expected_distance(density: Density, target: Density, root: Tensor) -> Tensor:
    """`E_q[(t − μ)ᵀ (L Lᵀ)⁻¹ (t − μ)]` under the target q."""
    apart = squared_distance((target.mean - density.mean).unsqueeze(-2), root).squeeze(-1)
    spread = whiten(lower_root(target.covariance).transpose(-1, -2), root)  # rows: L⁻¹ of the columns of the target's
    return apart + spread.square().sum((-2, -1))


def _squared_radius(scale: Tensor, m: float, d: int) -> Tensor:
    """`R² = −2 τ`, such that the density of this scale integrates to one."""
    logdet = root_determinant(lower_root(scale)).log()
    return torch.exp(2 / (d + 2 * m) * (math.log(peak(m, d)) + m * math.log(2 * m) - logdet))


def _conjugate(scale: Tensor, m: float, d: int) -> Tensor:
    """`Ω*(f) = E_p[f] − Ω(p)`."""
    return -0.5 * d * _squared_radius(scale, m, d) / (d + 2 * m + 2) - _omega(scale, m, d)


def _omega(scale: Tensor, m: float, d: int) -> Tensor:
    """`Ω(p) = (∫ p^α − 1) / (α (α − 1))`, with `∫ p^α = (E_p[f] − τ) / m`."""
    radius2 = _squared_radius(scale, m, d)
    expected = -0.5 * d * radius2 / (d + 2 * m + 2)
    return m * m / (m + 1) * ((expected + 0.5 * radius2) / m - 1)
