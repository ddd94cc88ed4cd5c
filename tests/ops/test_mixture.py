"""Mixtures: the density, its fit by EM, and the choice of the number of components."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.errors import ShapeError, UnknownName
from foveate.ops.basis import GaussianBasis
from foveate.ops.beta_gaussian import BetaGaussian
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d, cell_variance
from foveate.ops.mixture import Mixture, fit_mixture, select_mixture
from foveate.ops.paraboloid import TruncatedParaboloid
from foveate.ops.simplex import sparsemax


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weights(*shape: int, seed: int = 0, sharpness: float = 2.0) -> Tensor:
    return torch.softmax(sharpness * torch.randn(shape, dtype=torch.float64, generator=seeded(seed)), -1)


def bumps(positions: Tensor, centres: Tensor, deviation: float) -> Tensor:
    """Weights from equal round bumps at `centres` (..., K, 2)."""
    distance2 = (positions - centres.to(positions)[..., None, :]).square().sum(-1)
    return torch.softmax(-0.5 * distance2 / deviation**2, -1).mean(-2)


def planted_maps(count: int, K: int, seed: int, noise: float = 0.3) -> Tensor:
    """14 x 14 maps of K separate blobs of random place, size, shape and mass; each cell is off by a random factor."""
    g, positions, maps = seeded(seed), cell_centres(14, 14, dtype=torch.float64), []
    while len(maps) < count:
        centres = 0.1 + 0.8 * torch.rand(K, 2, dtype=torch.float64, generator=g)
        if K > 1 and torch.pdist(centres).min() < 0.4:
            continue
        deviations = 0.04 + 0.04 * torch.rand(K, 1, 2, dtype=torch.float64, generator=g)
        masses = 0.5 + 0.5 * torch.rand(K, 1, dtype=torch.float64, generator=g)
        blobs = torch.exp(-0.5 * ((positions - centres[:, None]) / deviations).square().sum(-1))
        blob = (masses * blobs / blobs.sum(-1, keepdim=True)).sum(0)
        blob = blob * torch.exp(noise * torch.randn(196, dtype=torch.float64, generator=g))
        maps.append(blob / blob.sum())
    return torch.stack(maps)


def everything(fit: Mixture) -> list[Tensor]:
    parts = fit.components
    return [fit.weights, parts.mean, parts.covariance, fit.log_likelihood]


def assert_same(first: Mixture, second: Mixture, tolerance: float = 1e-9) -> None:
    for a, b in zip(everything(first), everything(second), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def differ(first: Mixture, second: Mixture) -> bool:
    return any((a - b).abs().max() > 1e-6 for a, b in zip(everything(first), everything(second), strict=True))


# ------------------------------------------------------------------------------------------------- the density

FAMILIES = [Gaussian, TruncatedParaboloid, partial(BetaGaussian, alpha=1.5)]


def example(family: Any = Gaussian, scale: float = 1e-3) -> Mixture:
    mean = torch.tensor([[[0.3, 0.4], [0.7, 0.6], [0.5, 0.5]], [[0.2, 0.7], [0.6, 0.2], [0.8, 0.8]]]).double()
    matrix = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double() * scale
    weights = torch.tensor([[0.5, 0.3, 0.2], [0.6, 0.4, 0.0]]).double()
    return Mixture(family(mean, matrix.expand(2, 3, 2, 2)), weights)


@pytest.mark.parametrize("family", FAMILIES)
def test_integrates_to_one_and_its_map_follows_the_pdf(family: Any) -> None:
    mixture = example(family, 1e-3 if family is Gaussian else 1e-6)
    coarse = mixture.to_map(8, 8)
    fine = mixture.pdf(cell_centres(512, 512, dtype=torch.float64)).view(2, 8, 64, 8, 64).mean((2, 4)) / 64
    torch.testing.assert_close(coarse.sum((-2, -1)), torch.ones(2).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(coarse, fine, atol=1e-3, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_mean_and_covariance_are_those_of_the_pdf(family: Any) -> None:
    mixture = example(family, 1e-3 if family is Gaussian else 1e-6)
    points = cell_centres(400, 400, dtype=torch.float64)
    weights = mixture.pdf(points) / len(points)
    mean = weights @ points
    apart = points - mean[:, None]
    torch.testing.assert_close(mixture.mean, mean, atol=3e-4, rtol=0)
    torch.testing.assert_close(
        mixture.covariance, torch.einsum("bn,bni,bnj->bij", weights, apart, apart), atol=1e-4, rtol=0
    )


def test_expectation_is_the_weighted_sum_of_the_components() -> None:
    mixture, basis = example(), GaussianBasis.grid(9, dim=2, variance=0.01)
    each = mixture.components.expect(basis)
    torch.testing.assert_close(mixture.expect(basis), torch.einsum("bk,bkj->bj", mixture.weights, each))
    assert mixture.expect(basis).shape == (2, 9)


def test_points_shared_or_of_each_example() -> None:
    mixture, points = example(), torch.rand(5, 2, generator=seeded(0)).double()
    torch.testing.assert_close(mixture.pdf(points.expand(2, 5, 2)), mixture.pdf(points))
    own = torch.stack([points, points.flip(0)])
    torch.testing.assert_close(mixture.pdf(own)[1], mixture.pdf(points)[1].flip(0))


def test_an_absent_component_adds_nothing() -> None:
    mean = torch.tensor([[0.5, 0.5], [0.2, 0.2]], requires_grad=True)
    covariance = torch.stack([0.01 * torch.eye(2), 0.02 * torch.eye(2)]).requires_grad_()
    weights = torch.tensor([1.0, 0.0], requires_grad=True)
    mixture, alone = Mixture(Gaussian(mean, covariance), weights), Gaussian(mean[0], covariance[0])
    points = torch.tensor([[0.5, 0.5], [0.2, 0.2]])
    torch.testing.assert_close(mixture.pdf(points), alone.pdf(points))
    torch.testing.assert_close(mixture.to_map(2, 3), alone.to_map(2, 3))
    value = mixture.pdf(points).sum() + mixture.mean.sum() + mixture.covariance.sum() + mixture.to_map(2, 2).sum()
    gradients = torch.autograd.grad(value, (mean, covariance, weights))
    assert gradients[0][1].abs().max() == gradients[1][1].abs().max() == gradients[2][1] == 0
    assert mixture.components_used == 1


def test_an_absent_component_of_infinite_density_adds_nothing() -> None:
    parts = Gaussian(torch.tensor([[0.5, 0.5], [0.2, 0.2]]), torch.stack([0.01 * torch.eye(2), 1e-42 * torch.eye(2)]))
    points = torch.tensor([[0.5, 0.5], [0.2, 0.2]])
    assert torch.isinf(parts.pdf(points)[1, 1])
    density = Mixture(parts, torch.tensor([1.0, 0.0])).pdf(points)
    torch.testing.assert_close(density, parts.pdf(points)[0])


def test_a_row_without_weight_is_zero_everywhere() -> None:
    mixture = example()
    mixture = Mixture(mixture.components, torch.zeros_like(mixture.weights))
    assert mixture.pdf(torch.rand(4, 2)).abs().max() == 0
    assert mixture.to_map(3, 3).abs().max() == mixture.support_area().abs().max() == 0
    assert torch.isfinite(mixture.sample(3)).all()


def test_support_of_gaussians_is_the_picture() -> None:
    assert example().support_area().tolist() == [1.0, 1.0]


def paraboloids(centres: list[list[float]], radius: float) -> TruncatedParaboloid:
    """Round paraboloids whose supports have the given radius; the variance is radius² / (d + 4)."""
    mean = torch.tensor(centres, dtype=torch.float64)
    d = mean.shape[-1]
    variance = radius**2 / (d + 4)
    scale = 9 * math.pi * variance**2 if d == 2 else 2 / 3 * (5 * variance) ** 1.5
    return TruncatedParaboloid(mean, (scale * torch.eye(d).double()).expand(*mean.shape, d))


def test_support_of_paraboloids_apart_is_the_sum() -> None:
    pair = paraboloids([[0.25, 0.5], [0.75, 0.5]], 0.2)
    area = Mixture(pair, torch.tensor([0.5, 0.5]).double()).support_area()
    assert area.item() == pytest.approx(2 * math.pi * 0.04, abs=1e-9)
    alone = Mixture(pair, torch.tensor([1.0, 0.0]).double()).support_area()
    assert alone.item() == pytest.approx(math.pi * 0.04, abs=1e-9)


def test_support_of_paraboloids_that_overlap_is_the_union() -> None:
    r, distance = 0.2, 0.25
    lens = 2 * r**2 * math.acos(distance / (2 * r)) - 0.5 * distance * math.sqrt(4 * r**2 - distance**2)
    pair = paraboloids([[0.375, 0.5], [0.625, 0.5]], r)
    area = Mixture(pair, torch.tensor([0.5, 0.5]).double()).support_area()
    assert area.item() == pytest.approx(2 * math.pi * r**2 - lens, abs=1e-3)


def test_support_on_a_line() -> None:
    pair = paraboloids([[0.4], [0.6]], 0.15)
    area = Mixture(pair, torch.tensor([0.5, 0.5]).double()).support_area()
    assert area.item() == pytest.approx(0.5, abs=1e-3)


def test_ellipses_carry_the_weights() -> None:
    mixture = example()
    drawn, each = mixture.ellipses(0.5), mixture.components.ellipses(0.5)
    assert drawn.centre.shape == drawn.radii.shape == (2, 3, 2)
    assert drawn.angle.shape == (2, 3)
    torch.testing.assert_close(drawn.weight, mixture.weights)
    torch.testing.assert_close(drawn.centre, mixture.components.mean)
    torch.testing.assert_close(drawn.radii, each.radii[..., 0, :])


def test_samples_have_the_moments_of_the_mixture() -> None:
    mixture = example()
    draws = mixture.sample(20_000, seeded(0))
    assert draws.shape == (2, 20_000, 2)
    torch.testing.assert_close(draws.mean(1), mixture.mean, atol=5e-3, rtol=0)
    for b in range(2):
        torch.testing.assert_close(torch.cov(draws[b].T), mixture.covariance[b], atol=2e-3, rtol=0)
    single = Mixture(Gaussian(mixture.components.mean[0], mixture.components.covariance[0]), mixture.weights[0])
    assert single.sample(7).shape == (7, 2)
    assert (mixture.sample(4, seeded(1)) == mixture.sample(4, seeded(1))).all()


def test_from_weights_is_the_selected_mixture() -> None:
    positions, weights = cell_centres(7, 7, dtype=torch.float64), random_weights(2, 49)
    direct = Mixture.from_weights(weights, positions, floor=1e-3)
    torch.testing.assert_close(direct.weights, select_mixture(weights, positions, floor=1e-3).weights)


def test_mixture_refuses_weights_that_do_not_fit() -> None:
    parts = example().components
    with pytest.raises(
        ShapeError, match=r"Mixture: expected weights .* \(2, 3\), got \(3,\); give every component one"
    ):
        Mixture(parts, torch.ones(3).double())
    with pytest.raises(ShapeError, match="give every component one weight"):
        Mixture(Gaussian(torch.zeros(2), torch.eye(2)), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"Mixture: expected weights >= 0, got -0\.5"):
        Mixture(parts, torch.tensor([[1.0, 0.5, -0.5], [1, 0, 0]]).double())
    with pytest.raises(ValueError, match="Mixture: expected weights that sum to one"):
        Mixture(parts, torch.ones(2, 3).double())
    with pytest.raises(TypeError, match="Mixture: expected floating-point weights"):
        Mixture(parts, torch.ones(2, 3, dtype=torch.long))


# ------------------------------------------------------------------------------------------------- the fit


@pytest.mark.parametrize("start", ["spread", "split"])
def test_recovers_a_planted_mixture(start: str) -> None:
    positions = cell_centres(40, 40, dtype=torch.float64)
    mean = torch.tensor([[0.3, 0.25], [0.65, 0.7]]).double()
    covariance = torch.tensor([[[0.006, 0.002], [0.002, 0.004]], [[0.004, -0.003], [-0.003, 0.008]]]).double()
    truth = Mixture(Gaussian(mean, covariance), torch.tensor([0.7, 0.3]).double())
    fit = fit_mixture(truth.to_map(40, 40).flatten(), positions, 2, iterations=60, restarts=3, start=start, floor=1e-6)
    order = fit.weights.argsort(descending=True)
    torch.testing.assert_close(fit.weights[order], truth.weights, atol=2e-3, rtol=0)
    torch.testing.assert_close(fit.components.mean[order], mean, atol=2e-3, rtol=0)
    torch.testing.assert_close(fit.components.covariance[order], covariance, atol=2e-4, rtol=0)


def test_weights_are_a_distribution_over_components() -> None:
    fit = fit_mixture(random_weights(6, 196), cell_centres(14, 14, dtype=torch.float64), 4)
    torch.testing.assert_close(fit.weights.sum(-1), torch.ones(6).double(), atol=1e-9, rtol=0)
    assert fit.criterion is None


def test_more_iterations_and_restarts_fit_better() -> None:
    weights, positions = random_weights(8, 64, sharpness=4), cell_centres(8, 8, dtype=torch.float64)
    short = fit_mixture(weights, positions, 3, iterations=2).log_likelihood
    longer = fit_mixture(weights, positions, 3, iterations=9).log_likelihood
    assert (longer > short).all()
    best = fit_mixture(weights, positions, 3, iterations=9, restarts=5).log_likelihood
    assert (best >= longer - 1e-12).all()
    assert (best > longer + 1e-6).any()


def test_starts_and_generators_change_the_fit() -> None:
    weights, positions = random_weights(4, 64), cell_centres(8, 8, dtype=torch.float64)
    fits = [fit_mixture(weights, positions, 3, start=s) for s in ("random", "spread", "split")]
    fits.append(fit_mixture(weights, positions, 3, generator=seeded(5)))
    for i, first in enumerate(fits):
        for second in fits[:i]:
            assert differ(first, second)
    assert_same(fit_mixture(weights, positions, 3), fits[0], 0)
    assert_same(fit_mixture(weights, positions, 3, generator=seeded(0)), fits[0], 0)


def test_the_floor_is_the_least_variance() -> None:
    positions = cell_centres(4, 6, dtype=torch.float64)
    weights = torch.zeros(24, dtype=torch.float64)
    weights[9] = 1
    for floor, expected in (("cell", cell_variance(positions)), (0.02, torch.full((2,), 0.02).double())):
        fit = fit_mixture(weights, positions, 1, floor=floor)  # type: ignore[arg-type]
        torch.testing.assert_close(fit.mean, positions[9])
        torch.testing.assert_close(fit.covariance, torch.diag(expected))


def run_fit(weights: Tensor, positions: Tensor, **options: Any) -> Mixture:
    return fit_mixture(weights, positions, 3, restarts=2, start="spread", **options)


RUNS = [run_fit, select_mixture]


@pytest.mark.parametrize("run", RUNS)
def test_the_rest_of_the_batch_does_not_matter(run: Any) -> None:
    weights, positions = planted_maps(6, 2, seed=3), cell_centres(14, 14, dtype=torch.float64)
    weights = torch.cat([weights, random_weights(3, 196), planted_maps(3, 3, seed=4)])
    together = run(weights, positions)
    for b in range(len(weights)):
        alone = run(weights[b : b + 1], positions)
        for a, t in zip(everything(alone), everything(together), strict=True):
            torch.testing.assert_close(a[0], t[b], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("run", RUNS)
def test_the_order_of_the_locations_does_not_matter(run: Any) -> None:
    weights, positions = random_weights(3, 30, sharpness=4), cell_centres(5, 6, dtype=torch.float64)
    order = torch.randperm(30, generator=seeded(0))
    first, second = run(weights[:, order], positions[order]), run(weights, positions)
    # not component by component: two starts may end in one mixture, and rounding decides which comes first
    torch.testing.assert_close(first.log_likelihood, second.log_likelihood)
    torch.testing.assert_close(first.pdf(positions), second.pdf(positions))


@pytest.mark.parametrize("run", RUNS)
def test_a_mask_takes_locations_out(run: Any) -> None:
    weights, positions = random_weights(2, 30), cell_centres(5, 6, dtype=torch.float64)
    mask = torch.arange(30) % 6 < 4
    kept = weights[:, mask] / weights[:, mask].sum(-1, keepdim=True)
    masked = torch.where(mask, weights, 0.0) / weights[:, mask].sum(-1, keepdim=True)
    noisy = torch.where(mask, masked, torch.rand(30).double())
    expected = run(kept, positions[mask])
    assert_same(run(noisy, positions, mask=mask), expected)
    assert differ(run(weights, positions), expected)


@pytest.mark.parametrize("run", RUNS)
def test_grids_of_different_shapes_share_a_batch(run: Any) -> None:
    grids = [cell_centres(4, 6, dtype=torch.float64), cell_centres(3, 5, dtype=torch.float64)]
    weights = [random_weights(24), random_weights(15, seed=1)]
    positions = torch.stack([grids[0], torch.cat([grids[1], torch.zeros(9, 2).double()])])
    padded = torch.stack([weights[0], torch.cat([weights[1], torch.zeros(9).double()])])
    together = run(padded, positions, mask=padded > 0)
    for b in range(2):
        for a, t in zip(everything(run(weights[b], grids[b])), everything(together), strict=True):
            torch.testing.assert_close(a, t[b], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("run", RUNS)
def test_any_batch_shape(run: Any) -> None:
    weights, positions = random_weights(2, 3, 20), cell_centres(4, 5, dtype=torch.float64)
    flat, shaped = run(weights.flatten(0, 1), positions), run(weights, positions)
    own = run(weights, positions.expand(2, 1, 20, 2), mask=torch.ones(1, 3, 20, dtype=torch.bool))
    for a, b, c in zip(everything(flat), everything(shaped), everything(own), strict=True):
        torch.testing.assert_close(a, b.flatten(0, 1))
        torch.testing.assert_close(b, c)
    assert shaped.components_used.shape == (2, 3)
    assert run(weights[0, 0], positions).mean.shape == (2,)
    assert run(weights[:0], positions).mean.shape == (0, 3, 2)


@pytest.mark.parametrize("run", RUNS)
def test_one_dimension(run: Any) -> None:
    positions = cell_centres_1d(40, dtype=torch.float64)
    weights = torch.softmax(-200 * (positions[:, 0] - torch.tensor([[0.25], [0.75]]).double()).square(), -1).mean(0)
    fit = run(weights, positions, floor=1e-3)
    near = (fit.components.mean[:, 0] < 0.5).double()
    assert (fit.weights * near).sum().item() == pytest.approx(0.5, abs=1e-3)
    assert fit.mean.item() == pytest.approx(0.5, abs=1e-6)
    assert fit.covariance.item() == pytest.approx(0.0625 + 0.0025 + 0.001, abs=1e-4)


@pytest.mark.parametrize("run", RUNS)
def test_nothing_to_attend_to(run: Any) -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    scores = torch.randn(3, 16, dtype=torch.float64, generator=seeded(0)).requires_grad_()
    weights = torch.softmax(scores, -1) * torch.tensor([1.0, 0.0, 1.0]).double()[:, None]
    mask = torch.ones(3, 16, dtype=torch.bool)
    mask[2] = False
    fit = run(weights, positions, mask=mask)
    assert fit.components_used.tolist()[1:] == [0, 0]
    assert fit.weights[1:].abs().max() == fit.log_likelihood[1:].abs().max() == 0
    assert all(torch.isfinite(t).all() for t in everything(fit))
    sum(t.sum() for t in everything(fit)).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1:].abs().max() == 0
    assert scores.grad[0].abs().max() > 0


@pytest.mark.parametrize("run", RUNS)
def test_all_weight_on_one_cell(run: Any) -> None:
    positions = cell_centres(5, 5)
    weights = torch.zeros(2, 25)
    weights[0, 7] = weights[1, 24] = 1
    weights.requires_grad_()
    fit = run(weights, positions)
    torch.testing.assert_close(fit.mean, positions[[7, 24]])
    torch.testing.assert_close(fit.covariance, (torch.eye(2) / 300).expand(2, 2, 2))
    sum(t.sum() for t in everything(fit)).backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad).all()


@pytest.mark.parametrize("start", ["random", "spread", "split"])
@pytest.mark.parametrize("N", [1, 2])
def test_more_components_than_locations(start: str, N: int) -> None:
    positions = cell_centres(1, N, dtype=torch.float64)
    fit = fit_mixture(torch.full((N,), 1 / N, dtype=torch.float64), positions, 5, start=start)
    assert all(torch.isfinite(t).all() for t in everything(fit))
    torch.testing.assert_close(fit.mean, positions.mean(0))
    chosen = select_mixture(torch.full((N,), 1 / N, dtype=torch.float64), positions, start=start)
    torch.testing.assert_close(chosen.mean, positions.mean(0))


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_follows_float64(run: Any, dtype: torch.dtype) -> None:
    positions, weights = cell_centres(14, 14, dtype=torch.float64), planted_maps(4, 2, seed=1)
    fit, wide = run(weights.to(dtype), positions), run(weights, positions)
    assert fit.weights.dtype == torch.float32
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(fit.mean.double(), wide.mean, atol=tolerance, rtol=0)
    torch.testing.assert_close(fit.log_likelihood.double(), wide.log_likelihood, atol=tolerance, rtol=0)


def test_the_input_is_left_alone_and_two_calls_keep_their_gradients_apart() -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    weights = random_weights(2, 16).requires_grad_()
    before = weights.detach().clone()
    first, second = (fit_mixture(weights, positions, 2, start=s) for s in ("spread", "split"))
    (expected,) = torch.autograd.grad(fit_mixture(weights, positions, 2, start="spread").log_likelihood.sum(), weights)
    (gradient,) = torch.autograd.grad(first.log_likelihood.sum(), weights)
    assert second.log_likelihood.requires_grad
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(weights.detach(), before, atol=0, rtol=0)


@pytest.mark.parametrize("options", [{}, {"sparse_components": True}, {"family": TruncatedParaboloid}, {"restarts": 3}])
def test_gradient_of_the_fit(options: dict[str, Any]) -> None:
    positions = cell_centres(3, 4, dtype=torch.float64)
    scores = torch.randn(2, 12, dtype=torch.float64, generator=seeded(0)).requires_grad_()

    def fit(scores: Tensor) -> tuple[Tensor, ...]:
        result = fit_mixture(torch.softmax(scores, -1), positions, 2, iterations=3, **options)
        return tuple(everything(result))

    assert torch.autograd.gradcheck(fit, scores)


# ------------------------------------------------------------------------------------------------- other families


def test_paraboloids_have_the_moments_of_the_gaussians_and_separate_supports() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = bumps(positions, torch.tensor([[0.25, 0.3], [0.75, 0.7]]), 0.07)
    gaussians = fit_mixture(weights, positions, 2, start="split")
    sparse = fit_mixture(weights, positions, 2, start="split", family=TruncatedParaboloid)
    assert isinstance(sparse.components, TruncatedParaboloid)
    assert_same(sparse, gaussians)
    parts = sparse.components.support_area()
    assert sparse.support_area().item() == pytest.approx(parts.sum().item(), abs=1e-9)
    assert parts.sum() < 0.5
    between = sparse.pdf(torch.tensor([[0.5, 0.5]]))
    assert between == 0 < gaussians.pdf(torch.tensor([[0.5, 0.5]]))


def test_options_of_a_family_are_set_by_partial() -> None:
    weights, positions = random_weights(2, 20), cell_centres(4, 5, dtype=torch.float64)
    fit = select_mixture(weights, positions, family=partial(BetaGaussian, alpha=1.25))
    assert isinstance(fit.components, BetaGaussian)
    assert fit.components.alpha == 1.25
    assert_same(fit, select_mixture(weights, positions))


# ------------------------------------------------------------------------------------------------- sparse mixing


def test_sparse_components_are_the_sparsemax_of_the_masses() -> None:
    """Far apart, responsibilities are 0 or 1: the masses are those of the bumps, whatever the mixing weights."""
    positions = cell_centres(20, 20, dtype=torch.float64)
    masses = torch.tensor([0.5, 0.3, 0.2]).double()
    centres = torch.tensor([[[0.15, 0.15]], [[0.85, 0.15]], [[0.5, 0.85]]])
    weights = (masses[:, None] * bumps(positions, centres, 0.04)).sum(0)
    fit = fit_mixture(weights, positions, 3, start="spread", restarts=3, sparse_components=True)
    expected = sparsemax(1.5 * masses)
    torch.testing.assert_close(fit.weights.sort(descending=True).values, expected, atol=1e-6, rtol=0)
    plain = fit_mixture(weights, positions, 3, start="spread", restarts=3)
    torch.testing.assert_close(plain.weights.sort(descending=True).values, masses, atol=1e-6, rtol=0)


def test_sparse_components_vary_in_number() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    for K in (1, 2, 3):
        maps = planted_maps(50, K, seed=7)
        fit = fit_mixture(maps, positions, 4, start="spread", restarts=3, sparse_components=True)
        assert (fit.components_used == K).double().mean() >= 0.8
        full = fit_mixture(maps, positions, 4, start="spread", restarts=3)
        assert (full.components_used == 4).all()


# ------------------------------------------------------------------------------------------------- the choice of K


@pytest.mark.parametrize("K", [1, 2, 3])
def test_the_planted_number_of_blobs_is_chosen(K: int) -> None:
    positions = cell_centres(14, 14)
    fit = select_mixture(planted_maps(200, K, seed=11).float(), positions)
    assert (fit.components_used == K).float().mean() >= 0.95


def test_one_blob_has_one_component() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    for deviation in (0.02, 0.05, 0.1, 0.2):
        weights = bumps(positions, torch.tensor([[[0.4, 0.6]], [[0.5, 0.5]]]), deviation)
        assert select_mixture(weights, positions).components_used.tolist() == [1, 1]


def test_the_papers_floor_does_not_find_the_number() -> None:
    """What the cell floor is for; if this fails, the warning in the docstring can go."""
    maps, positions = planted_maps(50, 1, seed=2), cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(maps, positions, floor=1e-6, penalty=0.05)
    cell = select_mixture(maps, positions, penalty=0.05)
    assert (fit.components_used == 1).double().mean() < 0.5 < (cell.components_used == 1).double().mean()


def test_criterion_is_the_penalised_likelihood_of_each_number() -> None:
    weights, positions = planted_maps(5, 2, seed=0), cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(weights, positions, penalty=0.7, max_components=3)
    assert fit.criterion is not None
    assert fit.criterion.shape == (5, 3)
    chosen = fit.criterion.argmin(-1) + 1
    assert (chosen == fit.components_used).all()
    torch.testing.assert_close(fit.criterion.amin(-1), -2 * fit.log_likelihood + 0.7 * chosen)
    one = fit_mixture(weights, positions, 1)
    torch.testing.assert_close(fit.criterion[:, 0], -2 * one.log_likelihood + 0.7)
    again = select_mixture(weights, positions, penalty=0.2, max_components=3)
    assert again.criterion is not None
    torch.testing.assert_close(fit.criterion - again.criterion, 0.5 * torch.arange(1, 4).expand(5, 3).double())


def test_options_of_the_choice() -> None:
    weights, positions = random_weights(6, 196, sharpness=4), cell_centres(14, 14, dtype=torch.float64)
    base = select_mixture(weights, positions, penalty=0.1)
    assert base.components_used.max() > 1
    assert select_mixture(weights, positions, penalty=50.0).components_used.tolist() == [1] * 6
    assert select_mixture(weights, positions, penalty=0.0, max_components=2).components_used.tolist() == [2] * 6
    for changed in ({"restarts": 1}, {"iterations": 2}, {"start": "random"}, {"floor": 0.01}, {"generator": seeded(9)}):
        other = select_mixture(weights, positions, penalty=0.1, **changed)  # type: ignore[arg-type]
        assert other.criterion is not None
        assert base.criterion is not None
        assert (other.criterion - base.criterion).abs().max() > 1e-6


def test_absent_components_of_the_choice_have_weight_zero() -> None:
    weights = torch.cat([planted_maps(3, K, seed=K) for K in (1, 2, 3)])
    fit = select_mixture(weights, cell_centres(14, 14, dtype=torch.float64))
    for row, used in zip(fit.weights, fit.components_used.tolist(), strict=True):
        assert (row[used:] == 0).all()
        assert row.sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("start", ["spread", "split"])
def test_the_choice_with_a_gradient_is_the_choice_without(start: str) -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = torch.cat([planted_maps(3, K, seed=K) for K in (1, 2, 3)])
    plain = select_mixture(weights, positions, start=start)
    followed = select_mixture(weights.clone().requires_grad_(), positions, start=start)
    assert followed.mean.requires_grad
    assert_same(followed, plain)
    with torch.no_grad():
        assert not select_mixture(weights.clone().requires_grad_(), positions).mean.requires_grad


@pytest.mark.parametrize("start", ["spread", "split"])
def test_gradient_of_the_choice(start: str) -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    scores = torch.stack([-30 * (positions - 0.3).square().sum(-1), 8 * (positions - 0.5).square().sum(-1)])
    scores = (scores + 0.1 * torch.randn(2, 16, generator=seeded(0)).double()).requires_grad_()
    used = select_mixture(torch.softmax(scores, -1), positions, penalty=0.05, start=start).components_used
    assert used[0] < used[1]

    def fit(scores: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"penalty": 0.05, "iterations": 3, "start": start}
        return tuple(everything(select_mixture(torch.softmax(scores, -1), positions, **options)))

    assert torch.autograd.gradcheck(fit, scores)


# ------------------------------------------------------------------------------------------------- bad input

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"weights": torch.full((4,), 0.5)}, ValueError, "expected weights that sum to one.*got 2; divide by the sum"),
    ({"weights": torch.tensor([1.5, -0.5, 0, 0])}, ValueError, "expected weights >= 0, got -0.5; pass scores"),
    ({"weights": torch.tensor([math.nan, 1, 0, 0])}, ValueError, "expected weights without NaN"),
    ({"weights": torch.ones(4, dtype=torch.long)}, TypeError, "expected floating-point weights"),
    ({"weights": torch.tensor(1.0)}, ShapeError, r"expected weights \(..., N\)"),
    ({"weights": torch.ones(3) / 3}, ShapeError, "expected one position a weight, 3, got 4"),
    ({"weights": torch.ones(2, 0), "positions": torch.ones(0, 2)}, ShapeError, "expected at least one location"),
    (
        {"positions": torch.rand(4, 3)},
        ShapeError,
        r"expected positions \(..., N, 1\) or .* got \(4, 3\); use one or two axes",
    ),
    ({"positions": torch.rand(4)}, ShapeError, r"expected positions \(N, d\)"),
    ({"mask": torch.ones(4)}, TypeError, "expected a boolean mask"),
    ({"mask": torch.ones(3, dtype=torch.bool)}, ShapeError, "expected a mask that broadcasts"),
    ({"floor": "cells"}, ValueError, "expected floor 'cell' or a number > 0, got 'cells'"),
    ({"floor": -1.0}, ValueError, "expected floor > 0, got -1.0"),
    ({"iterations": 0}, ValueError, "expected iterations as a whole number >= 1, got 0; ask for at least one"),
    ({"restarts": 1.5}, ValueError, "expected restarts as a whole number >= 1, got 1.5"),
    ({"start": "splitt"}, UnknownName, "start: expected a known name, got 'splitt'; did you mean 'split'?"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_bad_input_is_explained(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    good = {"weights": torch.ones(4) / 4, "positions": cell_centres(2, 2)}
    with pytest.raises(error, match=message) as raised:
        fit_mixture(**(good | {"components": 2} | wrong))
    assert str(raised.value).startswith("fit_mixture")
    with pytest.raises(error, match=message) as raised:
        select_mixture(**(good | wrong))
    assert str(raised.value).startswith("select_mixture")


def test_bad_numbers_are_explained() -> None:
    weights, positions = torch.ones(4) / 4, cell_centres(2, 2)
    with pytest.raises(ValueError, match="fit_mixture: expected components as a whole number >= 1, got 0"):
        fit_mixture(weights, positions, 0)
    with pytest.raises(ValueError, match="select_mixture: expected max_components as a whole number >= 1, got -2"):
        select_mixture(weights, positions, max_components=-2)
    with pytest.raises(ValueError, match=r"select_mixture: expected penalty >= 0, got -1; 0\.3 suits floor='cell'"):
        select_mixture(weights, positions, penalty=-1)
