"""Expectation-maximisation for Gaussian mixtures of weighted cells, for a whole batch and all restarts at once.

A weight belongs to a cell, not to a point. With F the covariance of a point spread over its cell (the floor), EM climbs

    ℓ = Σ_n w_n log Σ_k π_k N(x_n; μ_k, Σ_k) exp(−½ tr(Σ_k⁻¹ F)),

the log-likelihood of the spread weights when a component owns the same share of all of a cell: over a cell the mean of
log N(x; μ, Σ) is its value at the centre less ½ tr(Σ⁻¹ F). The M step is the usual one with F added to each covariance.
Adding F without the trace is not EM: the likelihood falls in most runs (by up to 7e-3 on 14 x 14 grids), and a
component that shrinks onto one cell is not charged for it. F = 0 gives equation 7 of Farinhas et al. 2021.

Everything is kept in logarithms, and moments are taken about the previous mean: raw moments lose a narrow component in
float32. In the coordinates u = x − μ centred there, both steps are linear: the E step evaluates a quadratic polynomial
in u, the M step sums moments of u, and each of the two is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveate.checks import is_tracing

LEAST_MASS = 1e-10  # a component with no more mass is dead: weight exactly zero, mean and covariance as they were

Mixing = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Points:
    """Weighted cells.

    Attributes:
        weights: (B, N) non-negative, rows sum to one.
        positions: (N, d) shared or (B, N, d) cell centres, d = 1 or 2; constants of the fit, without a gradient.
        floor: (d,) or (B, d) diagonal of F, the covariance of a point in its cell.
    """

    weights: Tensor
    positions: Tensor
    floor: Tensor


@dataclass(frozen=True, eq=False)
class State:
    """Gaussian mixtures, R for every row of the batch.

    Attributes:
        log_weights: (B, R, K) logarithms of the mixing weights, -inf for a dead component.
        mean: (B, R, K, d).
        covariance: (B, R, K, d, d).
    """

    log_weights: Tensor
    mean: Tensor
    covariance: Tensor


def expectation_maximisation(
    points: Points, start: State, iterations: int, mixing: Mixing | None = None
) -> tuple[State, Tensor]:
    """Run EM for a fixed number of iterations.

    E step: `γ_nk ∝ π_k N(x_n; μ_k, Σ_k) exp(−½ tr(Σ_k⁻¹ F))`. M step: `π_k = Σ_n w_n γ_nk`,
    `μ_k = Σ_n w_n γ_nk x_n / π_k`, `Σ_k = Σ_n w_n γ_nk (x_n − μ_k)(x_n − μ_k)ᵀ / π_k + F`.

    Args:
        points: the weighted cells.
        start: where to begin.
        iterations: how many E and M steps.
        mixing: from the masses (B, R, K) to the mixing weights; the masses themselves when absent.

    Returns:
        The state and its log-likelihood ℓ (B, R). Gradients to the weights and to the start go through every step.

    Reference: Farinhas et al. 2021, equations 7-11.

    >>> points = Points(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([[0.1], [0.5], [0.9]]), torch.tensor([1e-3]))
    >>> start = round_gaussians(torch.tensor([[[[0.2], [0.6]]]]), 1e-3)
    >>> state, log_likelihood = expectation_maximisation(points, start, iterations=5)
    >>> [round(x, 6) for x in state.mean.flatten().tolist()]
    [0.1, 0.9]
    """
    grid, current = _Grid.of(points), _Gaussians.of(start)
    for _ in range(iterations):
        centred = current.centre(grid)
        joint = torch.softmax(_log_joint(current, centred, grid), dim=-2) * grid.weights
        current = _maximise(joint, centred, current, grid, mixing)
    terms = _log_joint(current, current.centre(grid), grid)
    constant = 0.5 * len(current.mean) * math.log(2 * math.pi)
    return current.state(), (torch.logsumexp(terms, dim=-2) * points.weights[:, None]).sum(-1) - constant


def round_gaussians(means: Tensor, variance: float) -> State:
    """Gaussians of equal weight and covariance `variance * I` at `means` (B, R, K, d)."""
    K, d = means.shape[-2:]
    eye = torch.eye(d, dtype=means.dtype, device=means.device)
    return State(means.new_full(means.shape[:-1], -math.log(K)), means, (variance * eye).expand(*means.shape, d))


def match_parts(points: Points, joint: Tensor, otherwise: State) -> State:
    """One M step from given shares of the weights (B, R, K, N); `otherwise` where a component has no mass."""
    grid, previous = _Grid.of(points), _Gaussians.of(otherwise)
    return _maximise(joint, previous.centre(grid), previous, grid, None).state()


class _Grid(NamedTuple):
    """The points, axis by axis, and the upper triangle of F, with the axes of restarts and components."""

    weights: Tensor
    axes: list[Tensor]
    floor: list[Tensor]

    @classmethod
    def of(cls, points: Points) -> _Grid:
        axes = points.positions.detach().unbind(-1)
        diagonal = [floor[..., None, None, None] for floor in points.floor.unbind(-1)]
        return cls(
            points.weights[:, None, None, :],
            [axis.contiguous() if axis.ndim == 1 else axis[:, None, None, :] for axis in axes],
            [diagonal[i] if i == j else torch.zeros_like(diagonal[i]) for i, j in _pairs(len(axes))],
        )


class _Gaussians(NamedTuple):
    """A state taken apart, all of shape (B, R, K, 1): d means and the upper triangle of the covariance, row by row."""

    log_weight: Tensor
    mean: list[Tensor]
    covariance: list[Tensor]

    @classmethod
    def of(cls, state: State) -> _Gaussians:
        covariance = [state.covariance[..., i, j, None] for i, j in _pairs(state.mean.shape[-1])]
        return cls(state.log_weights.unsqueeze(-1), list(state.mean.unsqueeze(-2).unbind(-1)), covariance)

    def state(self) -> State:
        matrix = self.covariance if len(self.mean) == 1 else [self.covariance[i] for i in (0, 1, 1, 2)]
        d = len(self.mean)
        covariance = torch.cat(matrix, dim=-1).unflatten(-1, (d, d))
        return State(self.log_weight.squeeze(-1), torch.cat(self.mean, dim=-1), covariance)

    def centre(self, grid: _Grid) -> list[Tensor]:
        """Coordinates about the means, without a gradient."""
        return [axis - mean.detach() for axis, mean in zip(grid.axes, self.mean, strict=True)]


def _pairs(d: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(d) for j in range(i, d)]


def _log_joint(current: _Gaussians, centred: list[Tensor], grid: _Grid) -> Tensor:
    """Logarithm of every term of ℓ, less the power of 2π, as a polynomial in the centred coordinates (B, R, K, N)."""
    squares, determinant = _negative_half_inverse(current.covariance)
    constant = torch.add(current.log_weight, determinant.log(), alpha=-0.5)
    for n, (i, j) in enumerate(_pairs(len(centred))):
        constant = torch.addcmul(constant, squares[n], grid.floor[n]) if i == j else constant
    return _evaluate(constant, [None] * len(centred), squares, current.mean, centred)


def _maximise(
    joint: Tensor, centred: list[Tensor], previous: _Gaussians, grid: _Grid, mixing: Mixing | None
) -> _Gaussians:
    mass, *moments = _sum_moments(joint, [mean.detach() for mean in previous.mean], centred)
    weight = mass if mixing is None else mixing(mass.squeeze(-1)).unsqueeze(-1)
    dead = (mass if mixing is None else torch.minimum(mass, weight)) <= LEAST_MASS
    inverse = mass.masked_fill(dead, math.inf).reciprocal()
    first = [moment * inverse for moment in moments[: len(centred)]]
    covariance = []
    for n, (i, j) in enumerate(_pairs(len(centred))):
        base = torch.where(dead, previous.covariance[n], grid.floor[n])
        about_mean = torch.addcmul(base, first[i], first[j], value=-1)
        covariance.append(torch.addcmul(about_mean, moments[len(centred) + n], inverse))
    mean = [old.detach() + step for old, step in zip(previous.mean, first, strict=True)]
    log_weight = weight.masked_fill(dead, 1.0).log().masked_fill(dead, -math.inf)
    return _Gaussians(log_weight, mean, covariance)


def _negative_half_inverse(matrix: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """`−½ Σ⁻¹` as the coefficients of u_i u_j (i ≤ j) and the determinant of Σ, d = 1 or 2, by elimination."""
    if len(matrix) == 1:
        return [-0.5 * matrix[0].reciprocal()], matrix[0]
    a, b, c = matrix
    slope = b / a
    rest = torch.addcmul(c, slope, b, value=-1)
    cross = slope / rest
    return [torch.addcmul(-0.5 * a.reciprocal(), slope, cross, value=-0.5), cross, -0.5 * rest.reciprocal()], a * rest


def _evaluate(
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


def _sum_moments(joint: Tensor, means: Sequence[Tensor], centred: Sequence[Tensor]) -> Sequence[Tensor]:
    """Sums over the points of `joint` times 1, u_i and u_i u_j (i ≤ j), where u is as in `_evaluate`."""
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
        for square, (j, k) in zip(squares, _pairs(len(slopes)), strict=True):
            if i in (j, k):
                terms.append((2 if j == k else 1) * square * moments[1 + j + k - i])
        gradients.append(-torch.stack(terms).sum(0))
    return gradients


def _sort_inputs(rest: Sequence[Any]) -> tuple[Sequence[Any], ...]:
    """Slopes, squares, means and centred coordinates: four tensors on a line, 2 + 3 + 2 + 2 in a plane."""
    d = 1 if len(rest) == 4 else 2
    return rest[:d], rest[d : -2 * d], rest[-2 * d : -d], rest[-d:]


class _Polynomial(torch.autograd.Function):
    """`_evaluate`: linear in its coefficients, whose gradients are moments of the incoming gradient."""

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
        d, moments = len(centred), _sum_moments(gradient, means, centred)
        first = [None if slope is None else moment for slope, moment in zip(slopes, moments[1:], strict=False)]
        wanted = any(ctx.needs_input_grad[-2 * d : -d])
        to_means = _mean_gradient(slopes, squares, moments) if wanted else [None] * d
        return moments[0], *first, *moments[1 + d :], *to_means, *([None] * d)


class _Moments(torch.autograd.Function):
    """`_sum_moments`: linear in the joint weights, whose gradient is a polynomial in the incoming gradients."""

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
        return _evaluate(constant, slopes, squares, means, centred), *to_means, *([None] * d)
