"""Expectation-maximisation for Gaussian mixtures of weighted cells, for a whole batch and all restarts at once.

A weight belongs to a cell, not to a point. With F the covariance of a point spread over its cell (the floor), EM climbs

    ℓ = Σ_n w_n log Σ_k π_k N(x_n; μ_k, Σ_k) exp(−½ tr(Σ_k⁻¹ F)),

the log-likelihood of the spread weights when responsibilities are constant within a cell: over a cell the mean of
log N(x; μ, Σ) is its value at the centre minus ½ tr(Σ⁻¹ F). The M step is the usual one with F added to each
covariance. Adding F without the trace term is not EM: the likelihood falls in most runs (by up to 7e-3 on 14 x 14
grids), and a component pays nothing for shrinking onto one cell. Without the trace term, and with F = 0 or a small
number for stability, ℓ is equation 7 of Farinhas et al. 2021, for points at the cell centres: `Points.spread = False`.

A mixture may have a background, one more component that is uniform on the unit interval or square: its density there is
1, so that its term is its weight π_0. It takes the weight that no Gaussian explains better.

Everything is kept in logarithms, and moments are taken about the previous mean: raw moments lose a narrow component in
float32. In the coordinates u = x − μ centred there, both steps are linear: the E step evaluates a quadratic polynomial
in u, the M step sums moments of u, and each of the two is the other's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.ops.kernels import mixtures as native

LEAST_MASS = 1e-10  # a component with no more mass is dead: weight exactly zero, mean and covariance as they were

Mixing = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Points:
    """Weighted cells.

    Attributes:
        weights: (B, N) non-negative, rows sum to one.
        positions: (N, d) shared or (B, N, d) cell centres, d = 1 or 2; constants of the fit, without a gradient.
        floor: (d,) or (B, d) diagonal of F, the covariance of a point in its cell.
        spread: whether ℓ is that of weights spread over their cells (with the trace of F) or of points.
    """

    weights: Tensor
    positions: Tensor
    floor: Tensor
    spread: bool = True


@dataclass(frozen=True, eq=False)
class GaussianMixtures:
    """Gaussian mixtures, R for every row of the batch.

    Attributes:
        log_weights: (B, R, K) logarithms of the mixing weights, -inf for a dead component.
        mean: (B, R, K, d).
        covariance: (B, R, K, d, d).
        log_background: (B, R) logarithm of the weight of the background, -inf for a dead one; None without background.
    """

    log_weights: Tensor
    mean: Tensor
    covariance: Tensor
    log_background: Tensor | None = None

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> GaussianMixtures:
        """The mixtures with `change` applied to every tensor; all begin with the axes (B, R)."""
        background = None if self.log_background is None else change(self.log_background)
        return GaussianMixtures(change(self.log_weights), change(self.mean), change(self.covariance), background)


def expectation_maximisation(
    points: Points, start: GaussianMixtures, iterations: int, mixing: Mixing | None = None
) -> tuple[GaussianMixtures, Tensor]:
    """Run EM for a fixed number of iterations.

    E step: `γ_nk ∝ π_k N(x_n; μ_k, Σ_k) exp(−½ tr(Σ_k⁻¹ F))`, `γ_n0 ∝ π_0` for the background. M step:
    `π_k = Σ_n w_n γ_nk`, `μ_k = Σ_n w_n γ_nk x_n / π_k`, `Σ_k = Σ_n w_n γ_nk (x_n − μ_k)(x_n − μ_k)ᵀ / π_k + F`.

    Args:
        points: the weighted cells.
        start: where to begin, with or without a background.
        iterations: how many E and M steps.
        mixing: from the masses (B, R, K), as fractions of what is not background, to mixing weights that sum to one;
            the masses themselves when absent.

    Returns:
        The mixtures and their log-likelihood ℓ (B, R). Gradients to the weights and to the start go through every step.

    Reference: Farinhas et al. 2021, equations 7-11.

    >>> points = Points(torch.tensor([[0.5, 0.0, 0.5]]), torch.tensor([[0.1], [0.5], [0.9]]), torch.tensor([1e-3]))
    >>> start = round_gaussians(torch.tensor([[[[0.2], [0.6]]]]), 1e-3)
    >>> state, log_likelihood = expectation_maximisation(points, start, iterations=5)
    >>> [round(x, 6) for x in state.mean.flatten().tolist()]
    [0.1, 0.9]
    """
    components = start.mean.shape[2] + (start.log_background is not None)
    if mixing is None and native.can_mix(points.weights, points.positions, points.floor, components):
        last, found = _run_native(points, _pack(start), iterations)
        return unpack(last, start.log_background is not None), found
    return _run_torch(points, start, iterations, mixing)


def _run_torch(
    points: Points, start: GaussianMixtures, iterations: int, mixing: Mixing | None
) -> tuple[GaussianMixtures, Tensor]:
    grid, current = _Grid.of(points), _Gaussians.of(start)
    for _ in range(iterations):
        centred = current.centre(grid)
        joint = torch.softmax(_log_terms(current, centred, grid), dim=-2) * grid.weights
        current = _maximise(joint, centred, current, grid, mixing)
    return current.mixtures(), log_likelihood(points, current.mixtures())


def log_likelihood(points: Points, mixtures: GaussianMixtures) -> Tensor:
    """ℓ (B, R) of mixtures that may have been fitted to other points."""
    grid, current = _Grid.of(points), _Gaussians.of(mixtures)
    terms = _log_terms(current, current.centre(grid), grid)
    return (torch.logsumexp(terms, dim=-2) * points.weights[:, None]).sum(-1) - _log_height(current)


def _pack(mixtures: GaussianMixtures) -> Tensor:
    """Log weight, mean, upper triangle of the covariance (B, R, K, 6); a background comes last, infinitely wide."""
    first, second = mixtures.covariance[..., 0, :], mixtures.covariance[..., 1, 1:]
    packed = torch.cat([mixtures.log_weights.unsqueeze(-1), mixtures.mean, first, second], dim=-1)
    if mixtures.log_background is None:
        return packed
    wide = packed.new_tensor([0.0, 0.0, math.inf, 0.0, math.inf]).expand(*packed.shape[:2], 5)
    return torch.cat([packed, torch.cat([mixtures.log_background.unsqueeze(-1), wide], -1).unsqueeze(2)], dim=2)


def unpack(packed: Tensor, background: bool) -> GaussianMixtures:
    """The mixtures of `_pack`."""
    log_background = packed[:, :, -1, 0] if background else None
    packed = packed[:, :, :-1] if background else packed
    covariance = torch.cat([packed[..., 3:5], packed[..., 4:6]], dim=-1).unflatten(-1, (2, 2))
    return GaussianMixtures(packed[..., 0], packed[..., 1:3], covariance, log_background)


def both_floors(points: Points) -> Tensor:
    """F as the kernels want it, (4,) or (B, 4): of the M step, then of the likelihood."""
    floor = points.floor.detach()
    return torch.cat([floor, floor if points.spread else torch.zeros_like(floor)], -1)


def _run_native(points: Points, start: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """The last mixtures, packed, and their log-likelihood."""
    cells = points.positions.detach(), both_floors(points)
    if torch.is_grad_enabled() and (points.weights.requires_grad or start.requires_grad):
        last, found = _run(points.weights, start, *cells, iterations, points)
        return last, found
    last, found, _ = native.em(points.weights, *cells, start, iterations, keep=False)
    return last.to(start.dtype), found


class _Run(torch.autograd.Function):
    """All iterations by a kernel; a second derivative goes through the torch code."""

    @staticmethod
    def forward(
        ctx: Any, weights: Tensor, start: Tensor, positions: Tensor, floor: Tensor, iterations: int, points: Points
    ) -> tuple[Tensor, Tensor]:
        states, found, shares = native.em(weights, positions, floor, start, iterations, keep=True)
        ctx.save_for_backward(weights, start, positions, floor, states, shares)
        ctx.iterations, ctx.spread = iterations, points.spread
        return states[:, :, -1].to(start.dtype, copy=True), found

    @staticmethod
    def backward(ctx: Any, to_last: Tensor, to_likelihood: Tensor) -> tuple[Tensor | None, ...]:
        weights, start, positions, floor, states, shares = ctx.saved_tensors
        if not torch.is_grad_enabled():
            found = native.em_gradient(weights, positions, floor, states, shares, to_last, to_likelihood)
            return *found, None, None, None, None
        # aliases: a start that was made from the weights must not count in the gradient to the weights
        weights, start = weights.view_as(weights), start.view_as(start)
        background = bool(torch.isinf(start[0, 0, -1, 3]))
        points = Points(weights, positions, floor[..., :2], ctx.spread)
        mixtures, likelihood = _run_torch(points, unpack(start, background), ctx.iterations, None)
        wanted = [x for x in (weights, start) if x.requires_grad]
        outputs, gradients = (_pack(mixtures), likelihood), (to_last, to_likelihood)
        each = iter(torch.autograd.grad(outputs, wanted, gradients, create_graph=True, allow_unused=True))
        return *(next(each) if x.requires_grad else None for x in (weights, start)), None, None, None, None


_run: Callable[..., tuple[Tensor, Tensor]] = _Run.apply


def round_gaussians(means: Tensor, variance: float) -> GaussianMixtures:
    """Gaussians of equal weight and covariance `variance * I` at `means` (B, R, K, d)."""
    K, d = means.shape[-2:]
    eye = torch.eye(d, dtype=means.dtype, device=means.device)
    covariance = (variance * eye).expand(*means.shape, d)
    return GaussianMixtures(means.new_full(means.shape[:-1], -math.log(K)), means, covariance)


def with_background(mixtures: GaussianMixtures, weight: float) -> GaussianMixtures:
    """The same mixtures with a background of the given weight; the components share the rest as before."""
    background = torch.full_like(mixtures.log_weights[..., 0], math.log(weight))
    return replace(mixtures, log_weights=mixtures.log_weights + math.log1p(-weight), log_background=background)


def match_parts(points: Points, joint: Tensor, otherwise: GaussianMixtures) -> GaussianMixtures:
    """One M step from given parts of the weights (B, R, K, N); `otherwise` where a component has no mass."""
    grid, previous = _Grid.of(points), _Gaussians.of(otherwise)
    return _maximise(joint, previous.centre(grid), previous, grid, None).mixtures()


class _Grid(NamedTuple):
    """The points, axis by axis, and the upper triangle of F, with the axes of restarts and components."""

    weights: Tensor
    axes: list[Tensor]
    floor: list[Tensor]
    spread: bool

    @classmethod
    def of(cls, points: Points) -> _Grid:
        axes = points.positions.detach().unbind(-1)
        diagonal = [floor[..., None, None, None] for floor in points.floor.unbind(-1)]
        return cls(
            points.weights[:, None, None, :],
            [axis.contiguous() if axis.ndim == 1 else axis[:, None, None, :] for axis in axes],
            [diagonal[i] if i == j else torch.zeros_like(diagonal[i]) for i, j in pairs(len(axes))],
            points.spread,
        )


class _Gaussians(NamedTuple):
    """Mixtures taken apart, all of shape (B, R, K, 1): d means and the upper triangle of the covariance, row by row.

    The logarithm of the background's weight is (B, R, 1, 1).
    """

    log_weight: Tensor
    mean: list[Tensor]
    covariance: list[Tensor]
    log_background: Tensor | None

    @classmethod
    def of(cls, mixtures: GaussianMixtures) -> _Gaussians:
        covariance = [mixtures.covariance[..., i, j, None] for i, j in pairs(mixtures.mean.shape[-1])]
        background = mixtures.log_background
        return cls(
            mixtures.log_weights.unsqueeze(-1),
            list(mixtures.mean.unsqueeze(-2).unbind(-1)),
            covariance,
            None if background is None else background[..., None, None],
        )

    def mixtures(self) -> GaussianMixtures:
        matrix = self.covariance if len(self.mean) == 1 else [self.covariance[i] for i in (0, 1, 1, 2)]
        d = len(self.mean)
        covariance = torch.cat(matrix, dim=-1).unflatten(-1, (d, d))
        background = None if self.log_background is None else self.log_background[..., 0, 0]
        return GaussianMixtures(self.log_weight.squeeze(-1), torch.cat(self.mean, dim=-1), covariance, background)

    def centre(self, grid: _Grid) -> list[Tensor]:
        """Coordinates about the means, without a gradient."""
        return [axis - mean.detach() for axis, mean in zip(grid.axes, self.mean, strict=True)]


def _log_height(current: _Gaussians) -> float:
    """Logarithm of the power of 2π that the terms of ℓ leave out."""
    return 0.5 * len(current.mean) * math.log(2 * math.pi)


def _log_terms(current: _Gaussians, centred: list[Tensor], grid: _Grid) -> Tensor:
    """Logarithm of every term of ℓ, less the power of 2π: (B, R, K, N), or (B, R, K + 1, N) with the background last.

    The terms of the Gaussians are a polynomial in the centred coordinates.
    """
    squares, determinant = _negative_half_inverse(current.covariance)
    constant = torch.add(current.log_weight, determinant.log(), alpha=-0.5)
    for n, (i, j) in enumerate(pairs(len(centred))):
        # the coefficients of the squares are −½ Σ⁻¹: times F, the trace term
        constant = torch.addcmul(constant, squares[n], grid.floor[n]) if i == j and grid.spread else constant
    terms = evaluate_quadratic(constant, [None] * len(centred), squares, current.mean, centred)
    if current.log_background is None:
        return terms
    # the Gaussians leave a power of 2π out, so the background must be higher by it
    even = (current.log_background + _log_height(current)).expand(*terms.shape[:2], 1, terms.shape[-1])
    return torch.cat([terms, even], dim=-2)


def _maximise(
    joint: Tensor, centred: list[Tensor], previous: _Gaussians, grid: _Grid, mixing: Mixing | None
) -> _Gaussians:
    log_background = None
    if previous.log_background is not None:
        joint, even = joint[..., :-1, :], joint[..., -1:, :]
        log_background = _log_alive(even.sum(-1, keepdim=True))
    mass, *moments = sum_moments(joint, [mean.detach() for mean in previous.mean], centred)
    weight = mass if mixing is None else _mix(mixing, mass, log_background)
    dead = (mass if mixing is None else torch.minimum(mass, weight)) <= LEAST_MASS
    # an infinite mass instead of none: its reciprocal is zero, and so are the moments of a dead component
    inverse = mass.masked_fill(dead, math.inf).reciprocal()
    first = [moment * inverse for moment in moments[: len(centred)]]
    covariance = []
    for n, (i, j) in enumerate(pairs(len(centred))):
        base = torch.where(dead, previous.covariance[n], grid.floor[n])
        about_mean = torch.addcmul(base, first[i], first[j], value=-1)
        covariance.append(torch.addcmul(about_mean, moments[len(centred) + n], inverse))
    mean = [old.detach() + step for old, step in zip(previous.mean, first, strict=True)]
    return _Gaussians(_log_alive(weight, dead), mean, covariance, log_background)


def _mix(mixing: Mixing, mass: Tensor, log_background: Tensor | None) -> Tensor:
    """Mixing weights from the masses (B, R, K, 1) by `mixing`, which sees them as fractions of their sum."""
    if log_background is None:
        return mixing(mass.squeeze(-1)).unsqueeze(-1)
    total = mass.sum(-2, keepdim=True).clamp(min=LEAST_MASS)
    return mixing((mass / total).squeeze(-1)).unsqueeze(-1) * total


def _log_alive(weight: Tensor, dead: Tensor | None = None) -> Tensor:
    """Logarithm of weights, -inf without a gradient where dead: the logarithm of zero would have an infinite one."""
    dead = weight <= LEAST_MASS if dead is None else dead
    return weight.masked_fill(dead, 1.0).log().masked_fill(dead, -math.inf)


def _negative_half_inverse(matrix: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """`−½ Σ⁻¹` as the coefficients of u_i u_j (i ≤ j) and the determinant of Σ, d = 1 or 2, by elimination."""
    if len(matrix) == 1:
        return [-0.5 * matrix[0].reciprocal()], matrix[0]
    a, b, c = matrix
    slope = b / a
    rest = torch.addcmul(c, slope, b, value=-1)
    cross = slope / rest
    return [torch.addcmul(-0.5 * a.reciprocal(), slope, cross, value=-0.5), cross, -0.5 * rest.reciprocal()], a * rest


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
