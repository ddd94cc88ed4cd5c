"""Continuous sparsemax: value and Jacobian against adaptive quadrature, wherever attention can go."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from foveate.errors import ShapeError
from foveate.ops.basis import Basis, GaussianBasis, TruncatedParaboloidBasis
from foveate.ops.compact import TruncatedParaboloid
from tests.densities import ellipse, paraboloid, product_integral

SHAPES = {
    "round and wide": (0.3, 0.3, 0.0),
    "round": (0.1, 0.1, 0.0),
    "nearly round": (0.3, 0.25, 0.4),
    "30:1 flat": (0.3, 0.01, 0.0),
    "30:1 upright": (0.3, 0.01, math.pi / 2),
    "30:1 tilted": (0.3, 0.01, 0.7),
    "30:1 short": (0.06, 0.002, 2.5),
    "one cell": (1e-3, 1e-3, 0.0),
}
MEANS = {"inside": (0.43, 0.58), "near a corner": (0.04, 0.03), "outside": (1.2, -0.1)}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def reference(mean: np.ndarray, covariance: np.ndarray, basis: Basis, m: float = 1.0) -> np.ndarray:
    """Every expectation by adaptive quadrature."""
    sx, sy = basis.variance.sqrt().tolist()
    values = []
    for cx, cy in basis.centres.tolist():
        if math.isinf(basis.power):

            def bump(x, y, cx=cx, cy=cy):
                return np.exp(-0.5 * (((x - cx) / sx) ** 2 + ((y - cy) / sy) ** 2)) / (2 * math.pi * sx * sy)

            def reach(x, cy=cy):
                return cy - 9 * sy, cy + 9 * sy

            span = (cx - 27 * sx, cx + 27 * sx)
        else:

            def bump(x, y, cx=cx, cy=cy):
                q = ((x - cx) / sx) ** 2 / 6 + ((y - cy) / sy) ** 2 / 6
                return np.clip(1 - q, 0, None) / (3 * math.pi * sx * sy)

            def reach(x, cx=cx, cy=cy):
                half = sy * math.sqrt(max(6 - ((x - cx) / sx) ** 2, 0))
                return cy - half, cy + half

            span = (cx - math.sqrt(6) * sx, cx + math.sqrt(6) * sx)
        values.append(product_integral(mean, covariance, m, bump, reach, span))
    return np.array(values)


def exact_covariance(density: TruncatedParaboloid) -> np.ndarray:
    """Covariance by (4.4) in float64 from the parameters as stored."""
    scale = density.scale.double().numpy()
    return scale / (3 * math.sqrt(math.pi) * np.linalg.det(scale) ** 0.25)


@every_shape
@pytest.mark.parametrize("variance", [1e-4, 1e-3, 1e-2, 0.1])
def test_equals_adaptive_quadrature(shape, variance):
    basis = GaussianBasis.grid(9, variance=variance)
    density = paraboloid(torch.tensor(MEANS["inside"], dtype=torch.float64), ellipse(*shape))
    expected = reference(density.mean.numpy(), exact_covariance(density), basis)
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 1e-6


@every_shape
@pytest.mark.parametrize("variance", [2e-3, 0.1])
def test_equals_adaptive_quadrature_in_float32(shape, variance):
    """From the parameters as float32 stores them."""
    basis = GaussianBasis.grid(9, variance=variance)
    density = paraboloid(torch.tensor(MEANS["inside"]), ellipse(*shape, dtype=torch.float32))
    expected = reference(density.mean.double().numpy(), exact_covariance(density), basis)
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 1e-5


@pytest.mark.parametrize("mean", MEANS.values(), ids=MEANS)
@pytest.mark.parametrize("shape", [SHAPES["round and wide"], SHAPES["30:1 tilted"], SHAPES["one cell"]])
def test_equals_adaptive_quadrature_everywhere(mean, shape):
    basis = GaussianBasis.grid(16, variance=1e-3)
    density = paraboloid(torch.tensor(mean, dtype=torch.float64), ellipse(*shape))
    expected = reference(np.array(mean), exact_covariance(density), basis)
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 1e-6


def test_far_from_every_function():
    """Four narrow functions in the corners and a wide disc that comes no nearer than 20 deviations to any of them."""
    basis = GaussianBasis.grid(4, variance=1e-4)
    density = paraboloid(torch.tensor([0.5, 0.5], dtype=torch.float64), ellipse(0.2, 0.2, 0))
    expected = reference(np.array([0.5, 0.5]), exact_covariance(density), basis)
    assert 0 < expected.max() < 1e-40
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 1e-6


@pytest.mark.parametrize("shape", [SHAPES["round"], SHAPES["30:1 tilted"], (0.02, 0.01, 1.0)])
@pytest.mark.parametrize("variance", [1e-3, 1e-2])
def test_jacobian_equals_differences_of_the_reference(shape, variance):
    basis = GaussianBasis.grid(4, variance=variance)
    centres = torch.tensor([[0.45, 0.5], [0.4, 0.62], [0.55, 0.7], [0.2, 0.4]], dtype=torch.float64)
    basis = GaussianBasis(centres, basis.variance)
    mean, covariance = torch.tensor([0.43, 0.58], dtype=torch.float64), ellipse(*shape)
    jacobian = torch.autograd.functional.jacobian(lambda m, c: paraboloid(m, c).expect(basis), (mean, covariance))
    directions = [(torch.eye(2)[i].double(), torch.zeros(2, 2).double()) for i in range(2)]
    for i, j in ((0, 0), (0, 1), (1, 1)):
        step = torch.zeros(2, 2, dtype=torch.float64)
        step[i, j] = step[j, i] = 1
        directions.append((torch.zeros(2).double(), step))
    size = min(shape[:2])
    for dm, dc in directions:
        h = 1e-3 * (size if dm.any() else size**2)
        steps = [reference((mean + s * h * dm).numpy(), (covariance + s * h * dc).numpy(), basis) for s in (-1, 1)]
        expected = (steps[1] - steps[0]) / (2 * h)
        actual = (jacobian[0] @ dm + (jacobian[1] * dc).sum((-1, -2))).numpy()
        assert np.abs(actual - expected).max() / np.abs(expected).max() <= 1e-4


@pytest.mark.parametrize("shape", [(0.12, 0.03, 0.6), (0.05, 0.05, 0.0), (0.3, 0.2, 1.0)])
def test_paraboloid_basis(shape):
    basis = TruncatedParaboloidBasis.grid(4, variance=0.06)
    density = paraboloid(torch.tensor([0.43, 0.58], dtype=torch.float64), ellipse(*shape))
    expected = reference(density.mean.numpy(), exact_covariance(density), basis)
    assert np.abs(density.expect(basis).numpy() - expected).max() / expected.max() <= 1e-5


def test_the_formulas_of_the_thesis():
    """λ of (A.14), the area (A.27), the peak of the density and the moments of theorem 1."""
    scale = ellipse(0.3, 0.1, 0.5)
    density = TruncatedParaboloid(torch.tensor([0.5, 0.5], dtype=torch.float64), scale)
    lam = -((1 / (math.pi * torch.linalg.det(scale).sqrt())) ** 0.5)
    torch.testing.assert_close(density.pdf(density.mean[None])[0], -lam)
    torch.testing.assert_close(density.covariance, -lam * scale / 3)
    edge = density.ellipses(1.0)
    area = math.pi / torch.linalg.det(torch.linalg.inv(scale) / (-2 * lam)).sqrt()
    torch.testing.assert_close(math.pi * edge.radii.prod(), area)
    line = TruncatedParaboloid(torch.zeros(1).double(), torch.tensor([[0.2]]).double())
    torch.testing.assert_close(line.covariance[0, 0], torch.tensor((3 * 0.2 / 2) ** (2 / 3) / 5).double())


def test_zero_outside_its_support():
    density = TruncatedParaboloid(torch.tensor([0.5, 0.5]), 1e-4 * torch.eye(2))
    masses = density.to_map(9, 9)
    assert (masses == 0).sum() > 40
    torch.testing.assert_close(masses.sum(), torch.tensor(1.0))
    radius = density.ellipses(1.0).radii[0, 0]
    torch.testing.assert_close(density.support_area(), math.pi * radius**2)


def test_wide_support_covers_the_image():
    torch.testing.assert_close(
        TruncatedParaboloid(torch.tensor([0.5, 0.5]), 10 * torch.eye(2)).support_area(), torch.tensor(1.0)
    )


def test_smaller_than_anything_measurable_stays_finite():
    scale = (1e-12 * torch.eye(2, dtype=torch.float64)).requires_grad_()
    density = TruncatedParaboloid(torch.tensor([0.5, 0.5], dtype=torch.float64), scale)
    basis = GaussianBasis.grid(9, variance=0.1)
    r = density.expect(basis)
    torch.testing.assert_close(r, basis(density.mean), rtol=1e-5, atol=0)
    r.sum().backward()
    assert torch.isfinite(scale.grad).all()


def test_three_dimensions_raise():
    with pytest.raises(ShapeError, match=r"expected mean \(..., 1\) or \(..., 2\)"):
        TruncatedParaboloid(torch.zeros(3), torch.eye(3))
