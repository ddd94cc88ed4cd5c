"""Moments against loops and numpy, and the small matrices against torch.linalg."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.moments import lower_root, match_moments, principal_axes, root_determinant, whiten
from foveate.ops.radial import covariance_of_scale, scale_of_covariance


def spd(d, seed=0, count=5):
    root = torch.randn(count, d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT + 0.05 * torch.eye(d, dtype=torch.float64)


def test_moments_are_numpys():
    positions = cell_centres(3, 4, dtype=torch.float64)
    weights = torch.softmax(torch.randn(2, 3, 12, dtype=torch.float64), -1)
    mean, covariance = match_moments(weights, positions, floor=1e-9, where="test")
    assert mean.shape == (2, 3, 2)
    for w, m, c in zip(weights.reshape(-1, 12), mean.reshape(-1, 2), covariance.reshape(-1, 2, 2), strict=True):
        np.testing.assert_allclose(m, np.average(positions.numpy(), axis=0, weights=w.numpy()))
        np.testing.assert_allclose(c, np.cov(positions.numpy().T, aweights=w.numpy(), ddof=0), atol=1e-8)


def test_the_cell_is_part_of_the_covariance():
    """A uniform map has the covariance of the uniform density on the image, I / 12, whatever the grid."""
    for H, W in ((1, 1), (2, 7), (14, 14)):
        weights = torch.full((H * W,), 1 / (H * W), dtype=torch.float64)
        _, covariance = match_moments(weights, cell_centres(H, W, dtype=torch.float64), where="test")
        torch.testing.assert_close(covariance, torch.eye(2, dtype=torch.float64) / 12)
    _, variance = match_moments(torch.full((5,), 0.2), cell_centres_1d(5), where="test")
    torch.testing.assert_close(variance, torch.tensor([[1 / 12]]))


def test_narrow_weights_keep_their_digits_in_float32():
    """Two neighbouring cells of a fine grid far from the origin: Σ p ttᵀ − μμᵀ would be off by a tenth."""
    positions = torch.tensor([[0.9, 0.9], [0.9002, 0.9]])
    _, covariance = match_moments(torch.tensor([0.5, 0.5]), positions, floor=1e-12, where="test")
    expected = (positions[1, 0].double() - positions[0, 0].double()) ** 2 / 4
    assert abs(covariance[0, 0].double() / expected - 1) < 1e-4


def test_positions_of_each_example():
    positions = torch.rand(3, 6, 2, dtype=torch.float64)
    weights = torch.softmax(torch.randn(3, 6, dtype=torch.float64), -1)
    mean, covariance = match_moments(weights, positions, floor=1e-6, where="test")
    for i in range(3):
        m, c = match_moments(weights[i], positions[i], floor=1e-6, where="test")
        torch.testing.assert_close(mean[i], m)
        torch.testing.assert_close(covariance[i], c)


def test_every_derivative_is_exact():
    """The centre that autograd does not see must not show, in the second derivative either."""
    positions = cell_centres(2, 2, dtype=torch.float64)
    scores = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def moments(s):
        return match_moments(torch.softmax(s, -1), positions, where="test")

    assert torch.autograd.gradcheck(moments, (scores,))
    assert torch.autograd.gradgradcheck(moments, (scores,))


@given(st.integers(0, 10_000), st.floats(0.01, 20.0))
@settings(max_examples=30, deadline=None)
def test_covariance_is_positive_definite_whatever_the_weights(seed, sharpness):
    scores = torch.randn(4, 30, generator=torch.Generator().manual_seed(seed)) * sharpness
    _, covariance = match_moments(torch.softmax(scores, -1), cell_centres(5, 6), floor=1e-6, where="test")
    assert (torch.linalg.eigvalsh(covariance.double()) > 0).all()


@pytest.mark.parametrize("d", [1, 2, 4])
def test_lower_root_is_cholesky(d):
    matrix = spd(d)
    root = lower_root(matrix)
    torch.testing.assert_close(root, torch.linalg.cholesky(matrix))
    torch.testing.assert_close(root_determinant(root).square(), torch.linalg.det(matrix))
    difference = torch.randn(5, 3, d, dtype=torch.float64)
    expected = torch.linalg.solve(root, difference.mT).mT
    torch.testing.assert_close(whiten(difference, root), expected)


def test_principal_axes_are_eigenvectors():
    matrix = spd(2)
    values, angle = principal_axes(matrix)
    torch.testing.assert_close(values, torch.linalg.eigvalsh(matrix).flip(-1))
    direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
    torch.testing.assert_close((matrix @ direction[..., None])[..., 0], values[:, :1] * direction)


def test_principal_axes_of_a_thin_ellipse():
    c, s = math.cos(0.7), math.sin(0.7)
    turn = torch.tensor([[c, -s], [s, c]], dtype=torch.float64)
    matrix = turn @ torch.diag(torch.tensor([1.0, 1e-8], dtype=torch.float64)) @ turn.T
    values, angle = principal_axes(matrix)
    torch.testing.assert_close(values[1], torch.tensor(1e-8, dtype=torch.float64), rtol=1e-7, atol=0)
    torch.testing.assert_close(angle, torch.tensor(0.7, dtype=torch.float64))


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("power", [1.0, 1.3, 2.0, 10.0, 1000.0])
def test_scale_and_covariance_are_inverse(d, power):
    covariance = spd(d)
    torch.testing.assert_close(covariance_of_scale(scale_of_covariance(covariance, power), power), covariance)
