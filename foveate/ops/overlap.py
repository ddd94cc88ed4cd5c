"""Expectation of basis functions under a density: the integral of a product of two bumps."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.radial import radial_pdf


def expect_basis(where: str, mean: Tensor, covariance: Tensor, power: float, basis: Basis) -> Tensor:
    """`r_j = ∫ p(t) ψ_j(t) dt` for a density p of the family in `ops/radial.py`.

    Args:
        where: name of the caller, for errors.
        mean: (..., d) mean of the density.
        covariance: (..., d, d) its covariance.
        power: its exponent, infinite for a Gaussian.
        basis: J functions of the same dimension.

    Returns:
        (..., J) in the dtype of `mean`, computed in float64.
    """
    d = mean.shape[-1]
    if basis.dim != d:
        raise ShapeError(f"{where}: expected a basis of dimension {d}, got {basis.dim}; use grid(count, dim={d})")
    offset = basis.centres.to(mean.device, torch.float64) - mean.double().unsqueeze(-2)
    variance = torch.diag(basis.variance.to(mean.device, torch.float64))
    if math.isinf(power) and math.isinf(basis.power):
        return radial_pdf(offset, covariance.double() + variance, math.inf).to(mean.dtype)
    raise NotImplementedError
