"""Kernels for densities in the plane. They have no gradient: None where one is asked for, and torch does the same."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.kernels import is_direct, is_direct_mask, is_wide, native


def moments(weights: Tensor, positions: Tensor, mask: Tensor | None, floor: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean (..., 2) and covariance (..., 2, 2) of weights (..., N) at shared positions (N, 2), floor (2,) or (..., 2).

    None also where weights are not sound, which the caller has to explain.
    """
    if not _all_direct(weights, positions, floor) or positions.shape[1:] != (2,) or weights.numel() == 0:
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
    if not _all_direct(mean, covariance) or mean.shape[-1] != 2 or mean.numel() == 0:
        return None
    if not is_direct(centres) or not is_direct(variance):
        return None
    mean, covariance, centres, variance = (x.contiguous() for x in (mean, covariance, centres, variance))
    found = mean.new_empty(*mean.shape[:-1], len(centres))
    native().density_normal(
        is_wide(mean),
        mean.data_ptr(),
        covariance.data_ptr(),
        centres.data_ptr(),
        variance.data_ptr(),
        found.data_ptr(),
        mean.numel() // 2,
        len(centres),
        torch.get_num_threads(),
    )
    return found


def _all_direct(*tensors: Tensor) -> bool:
    """True for plain tensors of one dtype that no gradient is asked of."""
    followed = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return not followed and all(is_direct(x) and x.dtype == tensors[0].dtype for x in tensors)
