"""EM on tensors: against a loop, against scikit-learn, and the law that the likelihood never falls."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from foveate.ops.em import LEAST_MASS, GaussianMixtures, Points, expectation_maximisation, round_gaussians
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d, cell_variance
from foveate.ops.starts import random_start, split_start, spread_start


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weights(B: int, N: int, seed: int, sharpness: float = 2.0) -> Tensor:
    return torch.softmax(sharpness * torch.randn(B, N, dtype=torch.float64, generator=seeded(seed)), -1)


def grid_points(H: int, W: int, B: int = 2, seed: int = 0, sharpness: float = 2.0) -> Points:
    positions = cell_centres(H, W, dtype=torch.float64)
    return Points(random_weights(B, H * W, seed, sharpness), positions, cell_variance(positions))


def loop_em(w: np.ndarray, x: np.ndarray, floor: np.ndarray, state: GaussianMixtures, iterations: int) -> tuple:
    """EM of one row, written with loops from the equations."""
    d, F = x.shape[1], np.diag(floor)
    pi, mu, cov = (t.numpy().copy() for t in (state.log_weights.exp(), state.mean, state.covariance))

    def terms() -> np.ndarray:
        out = np.zeros((len(x), len(pi)))
        for n in range(len(x)):
            for k in range(len(pi)):
                inverse, u = np.linalg.inv(cov[k]), x[n] - mu[k]
                out[n, k] = pi[k] * np.exp(-0.5 * u @ inverse @ u - 0.5 * np.trace(inverse @ F))
                out[n, k] /= math.sqrt(np.linalg.det(2 * math.pi * cov[k]))
        return out

    for _ in range(iterations):
        gamma = terms() / terms().sum(1, keepdims=True)
        for k in range(len(pi)):
            pi[k] = sum(w[n] * gamma[n, k] for n in range(len(x)))
            mu[k] = sum(w[n] * gamma[n, k] * x[n] for n in range(len(x))) / pi[k]
            outer = [np.outer(x[n] - mu[k], x[n] - mu[k]) for n in range(len(x))]
            cov[k] = sum((w[n] * gamma[n, k] * outer[n] for n in range(len(x))), np.zeros((d, d))) / pi[k] + F
    return pi, mu, cov, float((w * np.log(terms().sum(1))).sum())


@pytest.mark.parametrize("d", [1, 2])
def test_equals_a_loop_with_positions_and_floor_of_each_row(d: int) -> None:
    shapes = [(3, 4), (2, 6)] if d == 2 else [12, 12]
    rows = [
        cell_centres(*s, dtype=torch.float64) if d == 2 else cell_centres_1d(s, dtype=torch.float64) for s in shapes
    ]
    positions = torch.stack(rows)
    points = Points(random_weights(2, 12, 0), positions, cell_variance(positions))
    start = round_gaussians(torch.rand(2, 2, 3, d, dtype=torch.float64, generator=seeded(1)), 0.02)
    state, likelihood = expectation_maximisation(points, start, 3)
    for b in range(2):
        for r in range(2):
            begin = GaussianMixtures(start.log_weights[b, r], start.mean[b, r], start.covariance[b, r])
            pi, mu, cov, value = loop_em(
                points.weights[b].numpy(), positions[b].numpy(), points.floor[b].numpy(), begin, 3
            )
            np.testing.assert_allclose(state.log_weights[b, r].exp(), pi, atol=1e-12)
            np.testing.assert_allclose(state.mean[b, r], mu, atol=1e-12)
            np.testing.assert_allclose(state.covariance[b, r], cov, atol=1e-12)
            assert likelihood[b, r].item() == pytest.approx(value, abs=1e-12)


def sklearn_em(x: np.ndarray, means: np.ndarray, variance: float, floor: float, iterations: int) -> GaussianMixture:
    K, d = means.shape
    model = GaussianMixture(
        K,
        weights_init=np.full(K, 1 / K),
        means_init=means,
        precisions_init=np.broadcast_to(np.eye(d) / variance, (K, d, d)),
        max_iter=iterations,
        tol=0.0,
        reg_covar=floor,
    )
    with pytest.warns(ConvergenceWarning):
        return model.fit(x)


@pytest.mark.parametrize(("floor", "tolerance"), [(0.0, 1e-9), (1e-6, 2e-3)])
def test_equals_scikit_learn_on_unweighted_data(floor: float, tolerance: float) -> None:
    """With a floor the two differ by the trace term: the floor over the smallest variance, here 1e-6 over 1e-3."""
    x = torch.cat([c + 0.05 * torch.randn(60, 2, dtype=torch.float64, generator=seeded(3)) for c in (0.25, 0.6)])
    means = torch.rand(3, 2, dtype=torch.float64, generator=seeded(4))
    points = Points(torch.full((1, 120), 1 / 120, dtype=torch.float64), x, torch.full((2,), floor, dtype=torch.float64))
    state, likelihood = expectation_maximisation(points, round_gaussians(means[None, None], 0.02), 12)
    model = sklearn_em(x.numpy(), means.numpy(), 0.02, floor, 12)
    np.testing.assert_allclose(state.log_weights[0, 0].exp(), model.weights_, atol=tolerance)
    np.testing.assert_allclose(state.mean[0, 0], model.means_, atol=tolerance)
    np.testing.assert_allclose(state.covariance[0, 0], model.covariances_, atol=tolerance)
    assert likelihood.item() == pytest.approx(model.score(x.numpy()), abs=max(tolerance, 1e-9))


def test_a_weight_is_a_number_of_equal_points() -> None:
    x = torch.rand(20, 2, dtype=torch.float64, generator=seeded(5))
    counts = torch.randint(1, 5, (20,), generator=seeded(6))
    means = torch.rand(2, 2, dtype=torch.float64, generator=seeded(7))
    points = Points((counts / counts.sum()).double()[None], x, torch.zeros(2, dtype=torch.float64))
    state, _ = expectation_maximisation(points, round_gaussians(means[None, None], 0.05), 6)
    model = sklearn_em(x.repeat_interleave(counts, 0).numpy(), means.numpy(), 0.05, 0.0, 6)
    np.testing.assert_allclose(state.mean[0, 0], model.means_, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    H=st.integers(1, 7),
    W=st.integers(1, 7),
    K=st.integers(1, 4),
    sharpness=st.floats(0, 12),
    floor=st.sampled_from([None, 1e-6, 1e-3, 0.1]),
    variance=st.sampled_from([1e-3, 0.05, 1.0]),
    seed=st.integers(0, 10_000),
)
def test_the_likelihood_never_falls(
    H: int, W: int, K: int, sharpness: float, floor: float | None, variance: float, seed: int
) -> None:
    points = grid_points(H, W, B=4, seed=seed, sharpness=sharpness)
    if floor is not None:
        points = Points(points.weights, points.positions, torch.full((2,), floor, dtype=torch.float64))
    start = round_gaussians(torch.rand(4, 3, K, 2, dtype=torch.float64, generator=seeded(seed)), variance)
    state, before = expectation_maximisation(points, start, 0)
    for _ in range(12):
        state, after = expectation_maximisation(points, state, 1)
        assert torch.isfinite(after).all()
        assert (after - before).min() >= -1e-6
        before = after


@pytest.mark.parametrize("d", [1, 2])
def test_the_likelihood_of_one_component_is_the_mean_over_the_cells(d: int) -> None:
    centres = cell_centres(3, 4, dtype=torch.float64) if d == 2 else cell_centres_1d(12, dtype=torch.float64)
    width = (12 * cell_variance(centres)).sqrt()
    w = random_weights(1, 12, 0)
    covariance = torch.tensor([[0.03, 0.01], [0.01, 0.02]], dtype=torch.float64)[:d, :d]
    mean = torch.tensor([0.3, 0.6], dtype=torch.float64)[:d]
    start = GaussianMixtures(torch.zeros(1, 1, 1).double(), mean.view(1, 1, 1, d), covariance.view(1, 1, 1, d, d))
    _, likelihood = expectation_maximisation(Points(w, centres, cell_variance(centres)), start, 0)
    fine = cell_centres(200, 200, dtype=torch.float64) if d == 2 else cell_centres_1d(2000, dtype=torch.float64)
    spread = centres[:, None] + (fine - 0.5) * width
    inside = Gaussian(mean, covariance).pdf(spread.flatten(0, 1)).log().view(12, -1).mean(-1)
    assert likelihood.item() == pytest.approx((w[0] * inside).sum().item(), abs=1e-5)


def test_one_component_is_moment_matching() -> None:
    points = grid_points(5, 6)
    state, likelihood = expectation_maximisation(points, random_start(points, 1, 1, seeded(0)), 2)
    matched = Gaussian.from_weights(points.weights, points.positions)
    torch.testing.assert_close(state.mean[:, 0, 0], matched.mean)
    torch.testing.assert_close(state.covariance[:, 0, 0], matched.covariance)
    expected = -0.5 * torch.logdet(2 * math.pi * matched.covariance) - 1
    torch.testing.assert_close(likelihood[:, 0], expected)


@pytest.mark.parametrize("d", [1, 2])
def test_gradients_of_first_and_second_order(d: int) -> None:
    positions = cell_centres(2, 4, dtype=torch.float64) if d == 2 else cell_centres_1d(6, dtype=torch.float64)
    scores = torch.randn(2, len(positions), dtype=torch.float64, generator=seeded(0)).requires_grad_()
    means = torch.rand(2, 1, 2, d, dtype=torch.float64, generator=seeded(1)).requires_grad_()

    def fit(scores: Tensor, means: Tensor) -> tuple[Tensor, ...]:
        points = Points(torch.softmax(scores, -1), positions, cell_variance(positions))
        state, likelihood = expectation_maximisation(points, round_gaussians(means, 0.02), 3)
        return state.log_weights, state.mean, state.covariance, likelihood

    assert torch.autograd.gradcheck(fit, (scores, means))
    assert torch.autograd.gradgradcheck(fit, (scores, means))


def mean_after(scores: Tensor, means: Tensor) -> Tensor:
    positions = cell_centres(3, 4, dtype=torch.float64)
    points = Points(torch.softmax(scores, -1), positions, cell_variance(positions))
    return expectation_maximisation(points, round_gaussians(means, 0.02), 3)[0].mean


def test_functorch_derives_the_same_gradients() -> None:
    scores = torch.randn(2, 12, dtype=torch.float64, generator=seeded(0))
    means = torch.rand(2, 1, 2, 2, dtype=torch.float64, generator=seeded(1))
    expected = torch.autograd.functional.jacobian(mean_after, (scores, means))
    for ours, theirs in zip(torch.func.jacrev(mean_after, (0, 1))(scores, means), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    batched = torch.vmap(mean_after)(scores[:, None], means[:, None])
    torch.testing.assert_close(batched.squeeze(1), mean_after(scores, means))


@pytest.mark.slow
def test_a_compiler_derives_the_same_gradients() -> None:
    scores = torch.randn(2, 12, dtype=torch.float64, generator=seeded(0)).requires_grad_()
    means = torch.rand(2, 1, 2, 2, dtype=torch.float64, generator=seeded(1))
    compiled = torch.compile(mean_after, backend="aot_eager", fullgraph=True)
    (ours,) = torch.autograd.grad(compiled(scores, means).square().sum(), scores)
    (theirs,) = torch.autograd.grad(mean_after(scores, means).square().sum(), scores)
    torch.testing.assert_close(ours, theirs)


def test_a_dead_component_keeps_its_place_and_has_no_weight() -> None:
    positions = cell_centres(6, 6, dtype=torch.float64)
    scores = (-300 * (positions - 0.2).square().sum(-1))[None].requires_grad_()
    start = round_gaussians(torch.tensor([[[[0.2, 0.2], [0.95, 0.95]]]], dtype=torch.float64), 1e-3)
    points = Points(torch.softmax(scores, -1), positions, cell_variance(positions))
    state, likelihood = expectation_maximisation(points, start, 5)
    assert state.log_weights[0, 0, 1] == -math.inf
    torch.testing.assert_close(state.mean[0, 0, 1], start.mean[0, 0, 1])
    torch.testing.assert_close(state.covariance[0, 0, 1], start.covariance[0, 0, 1])
    (likelihood.sum() + state.mean.sum() + state.covariance.sum()).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    alone = GaussianMixtures(start.log_weights[..., :1], start.mean[:, :, :1], start.covariance[:, :, :1])
    torch.testing.assert_close(likelihood, expectation_maximisation(points, alone, 5)[1], atol=1e-9, rtol=0)


def test_a_component_above_the_least_mass_lives() -> None:
    positions = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    start = round_gaussians(torch.tensor([[[[0.0], [1.0]]]], dtype=torch.float64), 1e-3)
    for share, lives in ((LEAST_MASS * 2, True), (LEAST_MASS / 2, False)):
        weights = torch.tensor([[1 - share, share]], dtype=torch.float64)
        state, _ = expectation_maximisation(Points(weights, positions, torch.tensor([1e-3]).double()), start, 2)
        assert bool(state.log_weights[0, 0, 1] > -math.inf) == lives


def test_mixing_replaces_the_weights() -> None:
    points = grid_points(4, 4)
    start = random_start(points, 3, 2, seeded(0))
    even, _ = expectation_maximisation(points, start, 4, mixing=lambda mass: torch.full_like(mass, 1 / 3))
    torch.testing.assert_close(even.log_weights.exp(), torch.full((2, 2, 3), 1 / 3).double())
    first, _ = expectation_maximisation(points, start, 4, mixing=lambda mass: (mass == mass.amax(-1, True)).double())
    assert ((first.log_weights > -math.inf).sum(-1) == 1).all()


@pytest.mark.parametrize("floor", [None, 1e-6])
def test_float32_follows_float64(floor: float | None) -> None:
    """A floor of 1e-6 lets components shrink onto one cell, where raw moments would lose one digit in fifty."""
    points = grid_points(14, 14, B=16, sharpness=5.0)
    if floor is not None:
        points = Points(points.weights, points.positions, torch.full((2,), floor, dtype=torch.float64))
    start = spread_start(points, 4, 1, seeded(0))
    single = Points(points.weights.float(), points.positions.float(), points.floor.float())
    begin = GaussianMixtures(start.log_weights.float(), start.mean.float(), start.covariance.float())
    wide, value = expectation_maximisation(points, start, 5)
    narrow, approximate = expectation_maximisation(single, begin, 5)
    assert (approximate - value).abs().max() < 1e-4
    assert (narrow.mean - wide.mean).abs().max() < 1e-4
    scale = wide.covariance.diagonal(dim1=-2, dim2=-1).amax(-1)[..., None, None]
    assert ((narrow.covariance - wide.covariance).abs() / scale).max() < 2e-3


def test_random_start_is_the_papers_and_the_same_for_all_rows() -> None:
    points = grid_points(4, 4, B=3)
    state = random_start(points, 3, 2, seeded(0))
    assert state.mean.shape == (3, 2, 3, 2)
    assert (state.mean == state.mean[:1]).all()
    assert 0 <= state.mean.min() <= state.mean.max() <= 1
    torch.testing.assert_close(state.log_weights.exp(), torch.full((3, 2, 3), 1 / 3).double())
    torch.testing.assert_close(state.covariance, (1e-3 * torch.eye(2).double()).expand(3, 2, 3, 2, 2))
    assert (random_start(points, 3, 4, seeded(0)).mean[:, :2] == state.mean).all()
    assert (random_start(points, 3, 2, seeded(1)).mean != state.mean).all()


def test_spread_start_draws_by_weight_and_squared_distance() -> None:
    positions = torch.tensor([[0.1], [0.2], [0.6]], dtype=torch.float64)
    points = Points(torch.tensor([[0.2, 0.3, 0.5]], dtype=torch.float64), positions, torch.ones(1).double())
    drawn = spread_start(points, 2, 20_000, seeded(0)).mean[0, :, :, 0]
    first = [(drawn[:, 0] == p).double().mean().item() for p in positions]
    assert first == pytest.approx([0.2, 0.3, 0.5], abs=0.015)
    after_first = drawn[drawn[:, 0] == 0.1, 1]
    far = 0.5 * 0.5**2
    assert (after_first == 0.6).double().mean().item() == pytest.approx(far / (far + 0.3 * 0.1**2), abs=0.015)
    assert (after_first != 0.1).all()


def test_spread_start_takes_only_locations_with_weight() -> None:
    points = grid_points(5, 5, B=4, sharpness=4)
    weights = torch.where(torch.arange(25) % 3 == 0, points.weights, 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    state = spread_start(Points(weights, points.positions, points.floor), 4, 50, seeded(0))
    at = (state.mean[..., None, :] - points.positions).square().sum(-1).argmin(-1)
    assert (weights.gather(1, at.flatten(1)) > 0).all()


def test_spread_start_ignores_the_order_of_the_locations() -> None:
    points = grid_points(5, 4)
    order = torch.randperm(20, generator=seeded(2))
    shuffled = Points(points.weights[:, order], points.positions[order], points.floor)
    torch.testing.assert_close(spread_start(shuffled, 4, 3, seeded(0)).mean, spread_start(points, 4, 3, seeded(0)).mean)


def part_moments(points: Points, inside: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mass, mean and covariance of the first row's locations for which `inside` holds."""
    w, x = points.weights[0][inside], points.positions[inside]
    mean = (w[:, None] * x).sum(0) / w.sum()
    return w.sum(), mean, torch.cov(x.T, correction=0, aweights=w).view(2, 2) + torch.diag(points.floor)


def test_split_start_of_two_and_four_parts() -> None:
    points = grid_points(6, 5)
    left, top = points.positions[:, 0] < 0.5, points.positions[:, 1] < 0.5
    for K, parts in ((2, [top, ~top]), (4, [top & left, ~top & left, top & ~left, ~top & ~left])):
        state = split_start(points, K, 1, seeded(0))
        assert state.mean.shape == (2, 1, K, 2)
        for k, inside in enumerate(parts):
            mass, mean, covariance = part_moments(points, inside)
            torch.testing.assert_close(state.log_weights[0, 0, k].exp(), mass)
            torch.testing.assert_close(state.mean[0, 0, k], mean)
            torch.testing.assert_close(state.covariance[0, 0, k], covariance)


def test_split_start_cuts_the_heaviest_part_across_its_longer_side() -> None:
    points = grid_points(8, 8, B=1)
    weights = torch.where((points.positions > 0.5).all(-1), 3 * points.weights, points.weights)
    points = Points(weights / weights.sum(), points.positions, points.floor)
    x, y = points.positions.unbind(-1)
    three = [y < 0.5, (y > 0.5) & (x < 0.5), (y > 0.5) & (x > 0.5)]
    corner = (x > 0.5) & (y > 0.5)
    five = [(x < 0.5) & (y < 0.5), (x < 0.5) & (y > 0.5), (x > 0.5) & (y < 0.5)]
    five += [corner & (y < 0.75), corner & (y > 0.75)]
    for parts in (three, five):
        state = split_start(points, len(parts), 1, seeded(0))
        for k, inside in enumerate(parts):
            torch.testing.assert_close(state.mean[0, 0, k], part_moments(points, inside)[1])


def test_split_start_on_a_line_and_an_empty_part() -> None:
    positions = cell_centres_1d(8, dtype=torch.float64)
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0, 0, 0, 0]], dtype=torch.float64)
    state = split_start(Points(weights, positions, cell_variance(positions)), 4, 1, seeded(0))
    torch.testing.assert_close(state.log_weights[0, 0].exp(), torch.tensor([0.3, 0, 0.7, 0]).double())
    torch.testing.assert_close(state.mean[0, 0, [1, 3], 0], torch.tensor([0.625, 0.875]).double())
    assert torch.isfinite(state.covariance).all()


def test_split_start_passes_the_gradient_of_its_moments() -> None:
    positions = cell_centres(3, 4, dtype=torch.float64)
    scores = torch.randn(1, 12, dtype=torch.float64, generator=seeded(0)).requires_grad_()

    def fit(scores: Tensor) -> tuple[Tensor, ...]:
        points = Points(torch.softmax(scores, -1), positions, cell_variance(positions))
        state, _ = expectation_maximisation(points, split_start(points, 3, 1, seeded(0)), 1)
        return state.log_weights, state.mean, state.covariance

    assert torch.autograd.gradcheck(fit, scores)
