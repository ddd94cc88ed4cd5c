"""Continuous alpha-entmax: value against adaptive quadrature, the density against its definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from foveate.ops.basis import GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.compact import BetaGaussian
from tests.densities import ellipse
from tests.ops.test_paraboloid import reference


@pytest.mark.parametrize("alpha", [1.95, 1.7, 1.5, 1.25, 1.05])
@pytest.mark.parametrize("shape", [(0.15, 0.15, 0.0), (0.15, 0.005, 0.7), (1e-3, 1e-3, 0.0)])
@pytest.mark.parametrize("variance", [1e-3, 1e-2])
def test_equals_adaptive_quadrature(alpha, shape, variance):
    basis = GaussianBasis.grid(9, variance=variance)
    centres = torch.cat([basis.centres, torch.tensor([[0.45, 0.55]], dtype=torch.float64)])
    basis = GaussianBasis(centres, basis.variance)
    density = BetaGaussian(torch.tensor([0.43, 0.58], dtype=torch.float64), ellipse(*shape), alpha)
    expected = reference(density.mean.numpy(), density.covariance.numpy(), basis, m=1 / (alpha - 1))
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 2e-5)):
        same = BetaGaussian(density.mean.to(dtype), density.scale.to(dtype), alpha)
        if dtype == torch.float32 and shape[0] > 20 * shape[1]:
            continue  # rounding the entries of so thin a scale already moves the result by more
        assert np.abs(same.expect(basis).double().numpy() - expected).max() / expected.max() <= tolerance


@pytest.mark.parametrize("alpha", [1.7, 1.3])
def test_paraboloid_basis(alpha):
    basis = TruncatedParaboloidBasis.grid(4, variance=0.06)
    density = BetaGaussian(torch.tensor([0.43, 0.58], dtype=torch.float64), ellipse(0.1, 0.04, 0.7), alpha)
    expected = reference(density.mean.numpy(), density.covariance.numpy(), basis, m=1 / (alpha - 1))
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 3e-4


@pytest.mark.parametrize("alpha", [2.0, 1.5, 1.2])
def test_density_is_the_definition(alpha):
    """`[(α − 1)(−τ − ½ z²)]_+^{1/(α−1)}` for one τ (the contract checks that it integrates to one)."""
    scale = ellipse(0.3, 0.1, 0.5)
    density = BetaGaussian(torch.tensor([0.2, 0.1], dtype=torch.float64), scale, alpha)
    points = density.sample(50, torch.Generator().manual_seed(0))
    z = points - density.mean
    half = 0.5 * torch.einsum("pi,ij,pj->p", z, torch.linalg.inv(scale), z)
    tau = -(density.pdf(points) ** (alpha - 1) / (alpha - 1) + half)
    torch.testing.assert_close(tau, tau[0].expand_as(tau))


def test_support_grows_as_alpha_falls():
    """At the same covariance."""
    weights, positions = torch.full((4,), 0.25), torch.tensor([[0.4, 0.4], [0.6, 0.4], [0.4, 0.6], [0.6, 0.6]])
    areas = [BetaGaussian.from_weights(weights, positions, alpha=a).support_area().item() for a in (2.0, 1.7, 1.5)]
    assert areas == sorted(areas)


def test_alpha_is_used_by_from_weights():
    positions = torch.tensor([[0.2, 0.2], [0.8, 0.6]])
    low, high = (BetaGaussian.from_weights(torch.tensor([0.5, 0.5]), positions, alpha=a) for a in (1.2, 2.0))
    assert (low.alpha, high.alpha) == (1.2, 2.0)
    torch.testing.assert_close(low.covariance, high.covariance)
    assert low.pdf(low.mean[None]) > high.pdf(high.mean[None])
    assert math.isclose(low.power, 5)
