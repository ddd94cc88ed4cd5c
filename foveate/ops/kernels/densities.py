"""Kernels for densities in the plane. They have no gradient: None where one is asked for, and torch does the same."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.kernels import is_direct, is_direct_mask, is_wide, native


def moments(weights: Tensor, positions: Tensor, mask: Tensor | None, floor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean (..., 2) and covariance (..., 2, 2) of weights (..., N) at shared positions (N, 2), floor (2,) or (..., 2).

    None also where weights are not sound, which the caller has to explain.
    """
    given = weights, positions, floor
    if not all(_is_still(x) and x.dtype == weights.dtype for x in given):
        return None
    if positions.shape[1:] != (2,) or weights.numel() == 0:
        return None
    if mask is not None and not is_direct_mask(mask):
        return None
    batch, N = weights.shape[:-1], weights.shape[-1]
    mask = None if mask is None else mask.expand(weights.shape).contiguous()
    # the kernel's floors are those of EM: of the M step, then of the likelihood, which plays no part here
    floors = torch.cat([floor, floor], -1)
    floors = floors.expand(*batch, 4).contiguous() if floors.ndim > 1 else floors
    weights, positions = weights.contiguous(), positions.contiguous()
    mean, covariance = weights.new_empty(*batch, 2), weights.new_empty(*batch, 2, 2)
    sound = native().density_moments(
        is_wide(weights),
        (weights.data_ptr(), positions.data_ptr(), floors.data_ptr(), 0, 4 if floors.ndim > 1 else 0),
        0 if mask is None else mask.data_ptr(),
        mean.data_ptr(),
        covariance.data_ptr(),
        weights.numel() // N,
        N,
        torch.get_num_threads(),
    )
    return (mean, covariance) if sound else None


def is_sound(mean: Tensor, matrix: Tensor) -> bool:
    """True for finite means (..., 2) with positive definite matrices (..., 2, 2); False where that is not known."""
    if not is_direct(mean) or not is_direct(matrix) or matrix.dtype != mean.dtype or mean.shape[-1] != 2:
        return False
    mean, matrix = mean.contiguous(), matrix.contiguous()
    sound: bool = native().density_sound(is_wide(mean), mean.data_ptr(), matrix.data_ptr(), mean.numel() // 2)
    return sound


def normal(mean: Tensor, covariance: Tensor, centres: Tensor, variance: Tensor) -> Tensor | None:
    """`N(c_j; mean, covariance + diag(variance))`, (..., J), for J centres in float64."""
    same = covariance.dtype == mean.dtype
    return _expect("density_normal", mean, covariance, centres, variance) if same else None


def paraboloid(
    mean: Tensor,
    covariance: Tensor,
    centres: Tensor,
    variance: Tensor,
    rule: tuple[Tensor, Tensor],
    thinnest: float,
) -> Tensor | None:
    """`E[N(t; c_j, diag(variance))]`, (..., J), under truncated paraboloids, for J centres in float64.

    Args:
        mean, covariance: (..., 2) and (..., 2, 2).
        centres, variance: (J, 2) and (2,) in float64.
        rule: nodes and weights of a quadrature across the chords, an even number of them.
        thinnest: half axes are at least this long, in units of √2 deviations.
    """
    if not is_direct(mean):  # tracing: no addresses
        return None
    nodes, weights = rule
    options = nodes.data_ptr(), weights.data_ptr(), len(nodes), thinnest
    return _expect("density_paraboloid", mean, covariance.double(), centres, variance, *options)


def _expect(
    kernel: str,
    mean: Tensor,
    covariance: Tensor,
    centres: Tensor,
    variance: Tensor,
    *options: float,
) -> Tensor | None:
    """What the kernel of this name makes of means, covariances and centres, (..., J)."""
    given = mean, covariance, centres, variance
    if mean.shape[-1] != 2 or mean.numel() == 0 or not all(_is_still(x) for x in given):
        return None
    mean, covariance, centres, variance = (x.contiguous() for x in given)
    found = mean.new_empty(*mean.shape[:-1], len(centres))
    getattr(native(), kernel)(
        is_wide(mean),
        mean.data_ptr(),
        covariance.data_ptr(),
        centres.data_ptr(),
        variance.data_ptr(),
        *options,
        found.data_ptr(),
        mean.numel() // 2,
        len(centres),
        torch.get_num_threads(),
    )
    return found


def _is_still(x: Tensor) -> bool:
    """True for a plain tensor that no gradient is asked of."""
    return is_direct(x) and not (torch.is_grad_enabled() and x.requires_grad)
