"""Kernels for mixtures: starts of EM, EM with its gradient, and the choice of the number of components."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.kernels import is_direct, is_wide, native

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
    even: Tensor | None,
    iterations: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """EM from round Gaussians at means (B or 1, S, 2), kinds of 1, 2, ... components, and the kind of least criterion.

    Args:
        even: (B,) log-likelihood of even weights, None where it is 0, as that of a background alone.

    Returns:
        where the best start of the chosen kind begins and ends, (B, 1, K, 6) with absent components, and a background
        of weight above zero last; the criterion (B, kinds); the log-likelihood (B, 1) of the chosen kind.
    """
    weights, positions, floor, means = (x.detach().contiguous() for x in (weights, positions, floor, means))
    even = None if even is None else even.contiguous()
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
        0 if even is None else even.data_ptr(),
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
