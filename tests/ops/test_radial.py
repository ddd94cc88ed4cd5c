"""The radial family: its limits and its constants."""

from __future__ import annotations

import math

import pytest
import torch

from foveate.ops.radial import ball_sample, peak, radial_cdf, radial_pdf, radial_reach, support_ratio


def test_constants_of_the_paraboloid():
    assert support_ratio(1, 2) == 6
    assert support_ratio(1, 1) == 5
    assert support_ratio(math.inf, 2) == 1
    assert math.isclose(peak(1, 2), 2 / math.pi)
    assert math.isclose(peak(1, 1), 0.75)
    assert math.isclose(peak(0, 1), 0.5)


def test_large_powers_are_the_gaussian():
    points, covariance = torch.randn(20, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(
        radial_pdf(points, covariance, 1e7), radial_pdf(points, covariance, math.inf), rtol=1e-4, atol=1e-9
    )


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0, math.inf])
def test_reach_is_where_the_cdf_is_full(power):
    reach = torch.tensor(radial_reach(power, missing=1e-6), dtype=torch.float64)
    torch.testing.assert_close(radial_cdf(reach, power), torch.tensor(1 - 1e-6, dtype=torch.float64), rtol=0, atol=1e-9)


@pytest.mark.parametrize("d", [1, 2])
@pytest.mark.parametrize("power", [1.0, 3.5])
def test_draws_have_the_variance_of_the_ball(d, power):
    u = ball_sample(100_000, power, torch.zeros(d, dtype=torch.float64), torch.Generator().manual_seed(0))
    assert (u.square().sum(-1) < 1).all()
    expected = torch.full((d,), 1 / support_ratio(power, d), dtype=torch.float64)
    torch.testing.assert_close(u.var(0), expected, rtol=0.02, atol=0)
