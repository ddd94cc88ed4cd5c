"""The two sums behind a step of EM, each the gradient of the other: a quadratic polynomial in u, and moments of u.

Both are linear in all inputs but the coordinates u, and the backward pass of each calls the other, so that second
derivatives take no further code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foveate.checks import is_tracing


def pairs(d: int) -> list[tuple[int, int]]:
    """The index pairs i ≤ j < d, row by row: the order of the coefficients of u_i u_j and of second moments."""
    return [(i, j) for i in range(d) for j in range(i, d)]


def evaluate_quadratic(
    constant: Tensor,
    slopes: Sequence[Tensor | None],
    squares: Sequence[Tensor],
    means: Sequence[Tensor],
    centred: Sequence[Tensor],
) -> Tensor:
    """`constant + Σ_i slopes_i u_i + Σ_{i≤j} squares_ij u_i u_j` at every point; a slope None is zero.

    The u are `centred`, which hold the values of `x − means` and no gradient; the gradient goes to the means.
    """
    if is_tracing():
        return _Polynomial.forward(constant, *slopes, *squares, *means, *_follow(means, centred))
    run = _Polynomial.apply if any(x.requires_grad for x in (constant, *means)) else _Polynomial.forward
    return run(constant, *slopes, *squares, *means, *centred)


def sum_moments(joint: Tensor, means: Sequence[Tensor], centred: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sums over the points of `joint` times 1, u_i and u_i u_j (i ≤ j), where u is as in `evaluate_quadratic`."""
    if is_tracing():
        return _Moments.forward(joint, *means, *_follow(means, centred))
    run = _Moments.apply if any(x.requires_grad for x in (joint, *means)) else _Moments.forward
    return run(joint, *means, *centred)


def _follow(means: Sequence[Tensor], centred: Sequence[Tensor]) -> list[Tensor]:
    """Centred coordinates with the gradient of the means: compilers and functorch derive the formulas themselves."""
    return [u - (mean - mean.detach()) for u, mean in zip(centred, means, strict=True)]


def _mean_gradient(
    slopes: Sequence[Tensor | None], squares: Sequence[Tensor], moments: Sequence[Tensor]
) -> list[Tensor]:
    """Gradient of `Σ_n joint_n polynomial(u_n)` to the means, from the coefficients and the moments of `joint`."""
    gradients = []
    for i, slope in enumerate(slopes):
        terms = [] if slope is None else [slope * moments[0]]
        for square, (j, k) in zip(squares, pairs(len(slopes)), strict=True):
            if i in (j, k):
                terms.append((2 if j == k else 1) * square * moments[1 + j + k - i])
        gradients.append(-torch.stack(terms).sum(0))
    return gradients


def _sort_inputs(rest: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """Slopes, squares, means and centred coordinates: four tensors on a line, 2 + 3 + 2 + 2 in a plane."""
    d = 1 if len(rest) == 4 else 2
    return rest[:d], rest[d : -2 * d], rest[-2 * d : -d], rest[-d:]


class _Polynomial(torch.autograd.Function):
    """`evaluate_quadratic`: linear in its coefficients, whose gradients are moments of the incoming gradient."""

    @staticmethod
    def forward(constant: Tensor, *rest: Any) -> Tensor:
        slopes, squares, _, centred = _sort_inputs(rest)
        total = constant
        for i, u in enumerate(centred):
            slope = u * squares[2 * i]
            if i + 1 < len(centred):
                slope = torch.addcmul(slope, centred[1], squares[1])
            if slopes[i] is not None:
                slope = slope + slopes[i]
            total = torch.addcmul(total, slope, u)
        return total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        slopes, squares, means, centred = _sort_inputs(ctx.saved_tensors)
        d, moments = len(centred), sum_moments(gradient, means, centred)
        first = [None if slope is None else moment for slope, moment in zip(slopes, moments[1:], strict=False)]
        wanted = any(ctx.needs_input_grad[-2 * d : -d])
        to_means = _mean_gradient(slopes, squares, moments) if wanted else [None] * d
        return moments[0], *first, *moments[1 + d :], *to_means, *([None] * d)


class _Moments(torch.autograd.Function):
    """`sum_moments`: linear in the joint weights, whose gradient is a polynomial in the incoming gradients."""

    @staticmethod
    def forward(joint: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        centred = rest[len(rest) // 2 :]
        first, second = [], []
        for i, u in enumerate(centred):
            weighted = joint * u
            first.append(weighted.sum(-1, keepdim=True))
            second += [torch.linalg.vecdot(weighted, v).unsqueeze(-1) for v in centred[i:]]
        return joint.sum(-1, keepdim=True), *first, *second

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(*inputs[1:], *output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        d = 1 if len(saved) == 5 else 2
        means, centred, moments = saved[:d], saved[d : 2 * d], saved[2 * d :]
        constant, slopes, squares = gradients[0], gradients[1 : 1 + d], gradients[1 + d :]
        wanted = any(ctx.needs_input_grad[1 : 1 + d])
        to_means = _mean_gradient(slopes, squares, moments) if wanted else [None] * d
        return evaluate_quadratic(constant, slopes, squares, means, centred), *to_means, *([None] * d)
