"""Mixtures: the density, with and without a background."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from foveate.errors import ShapeError
from foveate.ops.basis import GaussianBasis
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_fit import select_mixture
from tests.mixtures import random_weights, seeded

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


def test_support_of_gaussians_is_the_image() -> None:
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


def test_weights_that_do_not_match_raise() -> None:
    parts = example().components
    with pytest.raises(
        ShapeError, match=r"Mixture: expected weights .* \(2, 3\), got \(3,\); pass one weight per component"
    ):
        Mixture(parts, torch.ones(3).double())
    with pytest.raises(ShapeError, match="pass one weight per component"):
        Mixture(Gaussian(torch.zeros(2), torch.eye(2)), torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"Mixture: expected weights >= 0, got -0\.5"):
        Mixture(parts, torch.tensor([[1.0, 0.5, -0.5], [1, 0, 0]]).double())
    with pytest.raises(ValueError, match="Mixture: expected weights that sum to one"):
        Mixture(parts, torch.ones(2, 3).double())
    with pytest.raises(TypeError, match="Mixture: expected floating-point weights"):
        Mixture(parts, torch.ones(2, 3, dtype=torch.long))


# ------------------------------------------------------------------------------------------------- the background


def hazy(family: Any = Gaussian, scale: float = 1e-3) -> Mixture:
    """The example at 70 % and 100 % of its weight, with a background of 30 % and 0 %."""
    plain, background = example(family, scale), torch.tensor([0.3, 0.0], dtype=torch.float64)
    return Mixture(plain.components, (1 - background)[:, None] * plain.weights, background=background)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_background_adds_its_weight_times_the_uniform_density(family: Any) -> None:
    scale = 1e-3 if family is Gaussian else 1e-6
    mixture, plain, basis = hazy(family, scale), example(family, scale), GaussianBasis.grid(9, variance=0.01)
    points = torch.tensor([[0.3, 0.4], [0.0, 1.0], [-0.01, 0.5], [0.5, 1.01]]).double()
    inside = torch.tensor([1.0, 1.0, 0.0, 0.0]).double()
    torch.testing.assert_close(mixture.pdf(points)[0], 0.7 * plain.pdf(points)[0] + 0.3 * inside)
    torch.testing.assert_close(mixture.to_map(4, 5)[0], 0.7 * plain.to_map(4, 5)[0] + 0.3 / 20)
    fine = cell_centres(400, 400, dtype=torch.float64)
    torch.testing.assert_close(
        mixture.expect(basis)[0], 0.7 * plain.expect(basis)[0] + 0.3 * basis(fine).mean(0), rtol=0, atol=1e-4
    )
    for name in ("mean", "covariance"):
        torch.testing.assert_close(getattr(mixture, name)[1], getattr(plain, name)[1])
    torch.testing.assert_close(mixture.pdf(points)[1], plain.pdf(points)[1])
    assert mixture.components_used.tolist() == [3, 2]
    assert mixture.support_area()[0] == 1
    assert mixture.support_area()[1] == plain.support_area()[1]


def test_a_background_is_no_ellipse_and_goes_with_its_example() -> None:
    mixture = hazy()
    torch.testing.assert_close(mixture.ellipses(0.5).weight, mixture.weights)
    assert mixture[0].background.tolist() == [0.3]
    assert mixture[torch.tensor([1, 0])].background.tolist() == [0.0, 0.3]
    queries = mixture.map_tensors(lambda part: part[:, None])
    both = Mixture.average(queries, torch.tensor([[1.0], [0.0]]).double())
    assert both.background.tolist() == [0.3, 0.0]


def test_a_background_has_a_gradient_and_draws() -> None:
    plain = example()
    background = torch.tensor([0.3, 0.0], dtype=torch.float64, requires_grad=True)
    weights = plain.weights * torch.tensor([[0.7], [1.0]])
    mixture = Mixture(plain.components, weights, background=background)
    mixture.to_map(2, 2).sum((-2, -1)).sum().backward()
    assert background.grad is not None
    torch.testing.assert_close(background.grad, torch.ones(2).double())
    draws = mixture.sample(20_000, seeded(0))
    apart = mixture.components.pdf(draws[0][None])[0].amax(0) < 1e-3
    assert apart.double().mean().item() == pytest.approx(0.3 * 0.9, abs=0.05)
    assert ((draws[0][apart] >= 0) & (draws[0][apart] <= 1)).all()
    assert Mixture(plain.components, 0 * weights, background=torch.ones(2).double()).sample(5).shape == (2, 5, 2)


def test_a_background_that_does_not_match_raises() -> None:
    parts, weights = example().components, example().weights
    with pytest.raises(
        ShapeError, match=r"expected background \(...\) of shape \(2,\), got \(3,\); pass one weight per"
    ):
        Mixture(parts, weights, background=torch.zeros(3).double())
    with pytest.raises(ValueError, match="Mixture: expected weights that sum to one"):
        Mixture(parts, weights, background=torch.full((2,), 0.3).double())
    with pytest.raises(ValueError, match=r"Mixture: expected weights >= 0, got -0\.1"):
        Mixture(parts, 1.1 * weights, background=torch.full((2,), -0.1).double())
    with pytest.raises(TypeError, match="Mixture: expected floating-point background"):
        Mixture(parts, weights, background=torch.zeros(2, dtype=torch.long))
