"""Masses in cells: where the edges of a support and of a grid meet in awkward ways."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.ops.cells import cell_masses, line_masses
from tests.densities import ellipse


@given(
    st.floats(-0.3, 1.3),
    st.floats(-0.3, 1.3),
    st.floats(0.01, 0.5),
    st.floats(1, 30),
    st.floats(0, math.pi),
    st.sampled_from([0.0, 1.0, 2.5, 40.0, math.inf]),
)
@settings(max_examples=60, deadline=None)
def test_fine_cells_add_up_to_coarse_ones(x, y, long, ratio, angle, power):
    mean, covariance = torch.tensor([x, y], dtype=torch.float64), ellipse(long, long / ratio, angle)
    coarse, fine = cell_masses(mean, covariance, power, 2, 3), cell_masses(mean, covariance, power, 6, 12)
    summed = fine.reshape(2, 3, 3, 4).sum((1, 3))
    torch.testing.assert_close(summed, coarse, rtol=0, atol=1e-8)
    assert (fine >= 0).all()
    assert fine.sum() <= 1 + 1e-12


def test_uniform_disc_is_area():
    """A quarter of a disc of radius 0.4 around a corner of the image; support ratio of power 0 is 4."""
    covariance = 0.04 * torch.eye(2, dtype=torch.float64)
    masses = cell_masses(torch.zeros(2, dtype=torch.float64), covariance, 0, 1, 1)
    torch.testing.assert_close(masses, torch.tensor([[0.25]], dtype=torch.float64))


def test_disc_that_touches_the_lines_of_the_grid():
    """Tangent lines, and a centre on a corner of the grid."""
    covariance = (0.25**2 / 6) * torch.eye(2, dtype=torch.float64)
    masses = cell_masses(torch.tensor([0.5, 0.5], dtype=torch.float64), covariance, 1, 4, 4)
    assert (masses[[0, 0, 3, 3], [0, 3, 0, 3]] == 0).all()
    torch.testing.assert_close(masses[1:3, 1:3], torch.full((2, 2), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("power", [0.0, 1.0, 3.3, 500.0])
def test_line_adds_up(power):
    mean, variance = (
        torch.tensor([[0.3], [0.9]], dtype=torch.float64),
        torch.tensor([[[0.02]], [[1e-4]]], dtype=torch.float64),
    )
    coarse, fine = line_masses(mean, variance, power, 2), line_masses(mean, variance, power, 20)
    torch.testing.assert_close(fine.reshape(2, 2, 10).sum(-1), coarse, rtol=0, atol=1e-9)
    torch.testing.assert_close(coarse[1], torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("power", [1.0, 2.5, math.inf])
@pytest.mark.parametrize("place", [(0.4, 0.5), (0.5, 0.5), (2 / 3, 0.5), (0.5, 0.0), (0.1, 1.0)])
def test_gradients_of_a_mean_on_the_lines_of_the_grid(power, place):
    """A line of the grid through the mean, and segments that begin opposite it, outside the support."""
    mean = torch.tensor(place, dtype=torch.float64, requires_grad=True)
    covariance = (0.0025 * torch.eye(2, dtype=torch.float64)).requires_grad_()

    def masses(m, c):
        return cell_masses(m, c, power, 2, 3)

    assert torch.autograd.gradcheck(masses, (mean, covariance), atol=1e-4)
    assert torch.autograd.gradgradcheck(masses, (mean, covariance), atol=2e-2, rtol=2e-2)
