"""Continuous softmax: the closed form, in any dimension."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import multivariate_normal

from foveate.errors import ShapeError
from foveate.ops.basis import GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres
from tests.densities import ellipse


@pytest.mark.parametrize("d", [1, 2, 3, 5])
def test_pdf_and_expectation_in_any_dimension(d):
    g = torch.Generator().manual_seed(d)
    root = torch.randn(4, d, d, generator=g, dtype=torch.float64)
    covariance = root @ root.mT + 0.1 * torch.eye(d, dtype=torch.float64)
    mean, points = (torch.randn(n, d, generator=g, dtype=torch.float64) for n in (4, 7))
    density = Gaussian(mean, covariance)
    variance = torch.rand(d, generator=g, dtype=torch.float64) + 0.1
    r = density.expect(GaussianBasis(points, variance))
    for i in range(4):
        expected = multivariate_normal(mean[i].numpy(), covariance[i].numpy())
        np.testing.assert_allclose(density.pdf(points)[i].numpy(), expected.pdf(points.numpy()), rtol=1e-10)
        wider = multivariate_normal(mean[i].numpy(), (covariance[i] + torch.diag(variance)).numpy())
        np.testing.assert_allclose(r[i].numpy(), wider.pdf(points.numpy()), rtol=1e-10)


def test_gradcheck_in_three_dimensions():
    mean = torch.tensor([[0.1, 0.2, 0.3]], dtype=torch.float64, requires_grad=True)
    covariance = (torch.eye(3, dtype=torch.float64) + 0.2)[None].requires_grad_()
    basis = GaussianBasis(torch.rand(4, 3, dtype=torch.float64), torch.full((3,), 0.3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda m, c: Gaussian(m, c).expect(basis), (mean, covariance))
    assert torch.autograd.gradgradcheck(lambda m, c: Gaussian(m, c).expect(basis), (mean, covariance))


def test_points_of_each_example():
    density = Gaussian(torch.rand(2, 2).double(), torch.eye(2).double().expand(2, 2, 2))
    points = torch.rand(2, 5, 2).double()
    p = density.pdf(points)
    assert p.shape == (2, 5)
    for i in range(2):
        torch.testing.assert_close(p[i], density.pdf(points[i])[i])


@pytest.mark.parametrize("shape", [(0.3, 0.01, 0.7), (0.2, 0.1, 2.0), (1e-3, 1e-3, 0.0)])
def test_float32_expectation(shape):
    """Whole rows to 1e-5 of the largest, from the parameters as float32 stores them."""
    density = Gaussian(torch.tensor([0.43, 0.58]), ellipse(*shape, dtype=torch.float32))
    for variance in (1e-4, 1e-3, 0.1):
        basis = GaussianBasis.grid(100, variance=variance)
        exact = Gaussian(density.mean.double(), density.covariance.double()).expect(basis)
        r = density.expect(basis)
        assert r.dtype == torch.float32
        if exact.max() > 1e-30:
            assert float((r.double() - exact).abs().max() / exact.max()) <= 1e-6


@pytest.mark.parametrize("shape", [(0.3, 0.01, 0.3), (0.2, 0.02, 0.8), (1e-3, 1e-3, 0.0), (0.5, 0.3, 2.0)])
def test_map_to_rounding(shape):
    """Against a composite rule along x with the normal distribution along y."""
    mean, C = np.array([0.41, 0.37]), ellipse(*shape).numpy()
    density = Gaussian(torch.tensor(mean), torch.tensor(C))
    slope, inner = C[0, 1] / C[0, 0], math.sqrt(C[1, 1] - C[0, 1] ** 2 / C[0, 0])
    nodes, weights = np.polynomial.legendre.leggauss(16)
    expected = np.zeros((3, 4))
    edges = np.linspace(0, 1, 1601)
    half = (edges[1] - edges[0]) / 2
    x = edges[:-1, None] + half * (nodes + 1)
    w = half * weights * np.exp(-0.5 * (x - mean[0]) ** 2 / C[0, 0]) / math.sqrt(2 * math.pi * C[0, 0])
    for i in range(3):
        up, down = ((k / 3 - mean[1] - slope * (x - mean[0])) / inner for k in (i + 1, i))
        expected[i] = (w * (ndtr(up) - ndtr(down))).sum(-1).reshape(4, -1).sum(-1)
    np.testing.assert_allclose(density.to_map(3, 4).numpy(), expected, rtol=0, atol=1e-10)
    single = Gaussian(torch.tensor(mean).float(), torch.tensor(C).float()).to_map(3, 4)
    np.testing.assert_allclose(single.numpy(), expected, rtol=0, atol=2e-5)


def test_map_when_the_mean_is_a_corner_of_the_grid():
    mean = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    masses = Gaussian(mean, 0.01 * torch.eye(2, dtype=torch.float64)).to_map(2, 2)
    torch.testing.assert_close(masses, torch.full((2, 2), masses.sum().item() / 4, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(masses[0, 0], mean)
    assert torch.isfinite(gradient).all()
    assert (gradient < 0).all()


def test_map_on_a_line_keeps_the_far_tail():
    mass = Gaussian(torch.zeros(1, dtype=torch.float64), torch.tensor([[0.01]], dtype=torch.float64)).to_map(4)
    expected = quad(lambda t: math.exp(-50 * t * t) * 10 / math.sqrt(2 * math.pi), 0.75, 1, epsabs=0)[0]
    assert math.isclose(mass[3].item(), expected, rel_tol=1e-9)


def test_paraboloid_basis_by_sampling_free_reference():
    """`∫ N ψ_j` with a bounded ψ_j: adaptive over the disc of ψ_j."""
    basis = TruncatedParaboloidBasis.grid(4, variance=0.02)
    density = Gaussian(torch.tensor([0.3, 0.4], dtype=torch.float64), ellipse(0.2, 0.05, 0.6))
    normal = multivariate_normal(density.mean.numpy(), density.covariance.numpy())
    x, w = np.polynomial.legendre.leggauss(200)
    radius, angle = (x + 1) / 2, math.pi * (x + 1)
    offsets = np.stack([radius[:, None] * np.cos(angle), radius[:, None] * np.sin(angle)], -1)
    weight = np.outer(w / 2 * radius * (1 - radius**2) * 2 / math.pi, w * math.pi)
    reach = math.sqrt(6 * 0.02)
    expected = [(weight * normal.pdf(c + reach * offsets)).sum() for c in basis.centres.numpy()]
    np.testing.assert_allclose(density.expect(basis).numpy(), expected, rtol=0, atol=1e-6 * max(expected))


def test_support_and_ellipses():
    density = Gaussian(torch.tensor([0.2, 0.3]), torch.diag(torch.tensor([0.01, 0.04])))
    assert density.support_area() == 1
    shape = density.ellipses(0.95)
    torch.testing.assert_close(shape.radii[0], torch.tensor([0.2, 0.1]) * math.sqrt(-2 * math.log(0.05)))
    torch.testing.assert_close(shape.angle[0], torch.tensor(math.pi / 2))
    with pytest.raises(ValueError, match="a Gaussian has no edge"):
        density.ellipses(1.0)


def test_high_dimension_needs_a_gaussian_basis():
    density = Gaussian(torch.zeros(3), torch.eye(3))
    with pytest.raises(ShapeError, match="expected dimension 1 or 2, got 3"):
        density.expect(TruncatedParaboloidBasis(torch.zeros(2, 3), torch.ones(3)))


@pytest.mark.parametrize("name", ["expect", "to_map"])
def test_results_do_not_depend_on_inference_mode(name):
    """What is kept between calls must serve training after a first call in inference mode."""

    def call(density):
        return density.expect(GaussianBasis.grid(4)) if name == "expect" else density.to_map(3, 5)

    mean = cell_centres(1, 1)[0].requires_grad_()
    with torch.inference_mode():
        first = call(Gaussian(mean, 0.01 * torch.eye(2)))
    second = call(Gaussian(mean, 0.01 * torch.eye(2)))
    torch.testing.assert_close(first.clone(), second.detach())
    second.sum().backward()
