"""Kernels in the plane: the choice of a mixture and its gradient, and densities, which have none."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.kernels import is_direct, is_direct_mask, is_wide, native

Plan = list[tuple[int, int]]  # components and restarts of every kind of start

MOST_COMPONENTS = 8
_REGISTER = 16  # shares of the points are padded to at most this many


def can_mix(weights: Tensor, positions: Tensor, floor: Tensor, components: int) -> bool:
    """True where EM of weights (B, N) at positions (N, 2) or (B, N, 2), floor (2,) or (B, 2), can go to a kernel."""
    return (
        components <= MOST_COMPONENTS
        and positions.shape[-1] == 2
        and weights.numel() > 0
        and all(is_direct(x) and x.dtype == weights.dtype for x in (weights, positions, floor))
    )


def em(
    weights: Tensor, positions: Tensor, floor: Tensor, start: Tensor, iterations: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """EM from starts (B, R, K, 6): log weight, mean (2), covariance (xx, xy, yy), infinite for the background.

    The floor is (4,) or (B, 4): F in the M step, and F in the likelihood.

    Returns:
        the states in float64, the log-likelihoods (B, R), and the points' shares. With `keep` the states are those of
        all steps, (B, R, iterations + 1, K, 6), as the gradient needs; otherwise the last, (B, R, K, 6), and no shares.
    """
    weights, positions, floor, start = (
        x.detach().resolve_neg().contiguous() for x in (weights, positions, floor, start)
    )
    (B, R, K, _), N = start.shape, weights.shape[-1]
    shape = (B, R, iterations + 1, K, 6) if keep else (B, R, K, 6)
    states = torch.empty(shape, dtype=torch.float64)
    padded = -(-N // _REGISTER) * _REGISTER
    shares = weights.new_empty(B * R * max(iterations, 1) * K * padded) if keep else None
    likelihood = weights.new_empty(B, R)
    native().em_forward(
        is_wide(weights),
        _cells(weights, positions, floor),
        start.data_ptr(),
        states.data_ptr(),
        0 if shares is None else shares.data_ptr(),
        likelihood.data_ptr(),
        B,
        R,
        K,
        N,
        iterations,
        torch.get_num_threads(),
    )
    return states, likelihood, shares


def em_gradient(
    weights: Tensor,
    positions: Tensor,
    floor: Tensor,
    states: Tensor,
    shares: Tensor,
    to_last: Tensor,
    to_likelihood: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of `em` to the weights (B, N) and to the start (B, R, K, 6)."""
    weights, positions, floor = weights.contiguous(), positions.contiguous(), floor.contiguous()
    to_last, to_likelihood = (x.resolve_neg().contiguous() for x in (to_last, to_likelihood))
    B, R, steps, K, _ = states.shape
    to_weights, to_start = torch.empty_like(weights), torch.empty_like(to_last)
    native().em_backward(
        is_wide(weights),
        _cells(weights, positions, floor),
        states.data_ptr(),
        shares.data_ptr(),
        to_last.data_ptr(),
        to_likelihood.data_ptr(),
        to_weights.data_ptr(),
        to_start.data_ptr(),
        B,
        R,
        K,
        weights.shape[-1],
        steps - 1,
        torch.get_num_threads(),
    )
    return to_weights, to_start


def _cells(weights: Tensor, positions: Tensor, floor: Tensor) -> tuple[int, int, int, int, int]:
    """Addresses, and how far apart the positions and floors of two rows are; 0 where all rows share them."""
    apart = 2 * weights.shape[-1] if positions.ndim == 3 else 0
    return weights.data_ptr(), positions.data_ptr(), floor.data_ptr(), apart, 4 if floor.ndim == 2 else 0


def spread_means(weights: Tensor, positions: Tensor, draws: Tensor, plan: Plan) -> tuple[Tensor, bool]:
    """Means (B, S, 2) of the spread starts of all kinds, of S components in all, from S uniform numbers.

    Also returns whether the mean of a row lies on an axis or a diagonal of the image.
    """
    weights, positions = weights.detach().contiguous(), positions.detach().contiguous()
    B, N = weights.shape
    means = weights.new_empty(B, len(draws), 2)
    mirrored = native().spread_starts(
        is_wide(weights),
        weights.data_ptr(),
        positions.data_ptr(),
        2 * N if positions.ndim == 3 else 0,
        draws.data_ptr(),
        plan,
        means.data_ptr(),
        B,
        N,
        torch.get_num_threads(),
    )
    return means, mirrored


def choose(
    weights: Tensor,
    positions: Tensor,
    floor: Tensor,
    means: Tensor,
    plan: Plan,
    variance: float,
    background: float,
    penalty: float,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """EM from round Gaussians at means (B or 1, S, 2), kinds of 1, 2, ... components, and the kind of least criterion.

    Returns:
        where the best start of the chosen kind begins and ends, (B, 1, K, 6) with absent components, and a background
        of weight above zero last; the criterion (B, kinds); the log-likelihood (B, 1) of the chosen kind.
    """
    weights, positions, floor, means = (x.detach().contiguous() for x in (weights, positions, floor, means))
    (B, N), kinds = weights.shape, len(plan)
    begin = weights.new_empty(B, 1, kinds + (background > 0), 6)
    end, criterion, likelihood = torch.empty_like(begin), weights.new_empty(B, kinds), weights.new_empty(B, 1)
    native().em_choose(
        is_wide(weights),
        _cells(weights, positions, floor),
        means.data_ptr(),
        means[0].numel() if len(means) == B else 0,
        plan,
        variance,
        background,
        penalty,
        begin.data_ptr(),
        end.data_ptr(),
        criterion.data_ptr(),
        likelihood.data_ptr(),
        B,
        N,
        iterations,
        torch.get_num_threads(),
    )
    return begin, end, criterion, likelihood


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
