"""The derivative of an expectation in alpha, against finite differences of the expectation itself."""

from __future__ import annotations

import pytest
import torch

from foveate import GaussianBasis
from foveate.ops import TruncatedParaboloidBasis
from foveate.ops.compact import alpha_change
from foveate.ops.overlap import expect_basis
from tests.cases import draw

BASES = {
    "suited": GaussianBasis.for_grid(7, 7),
    "narrow": GaussianBasis.grid(100, variance=0.001),
    "line": GaussianBasis.for_grid(14),
}


@pytest.mark.parametrize("alpha", [1.1, 1.9])
@pytest.mark.parametrize("name", BASES)
def test_derivative_in_alpha(name, alpha):
    basis, d = BASES[name], BASES[name].dim
    mean = draw(3, d).sigmoid()
    a = 0.2 * draw(3, d, d, seed=1).clamp(-1, 1)
    covariance = a @ a.mT + 0.002 * torch.eye(d, dtype=torch.float64)
    at = torch.tensor(alpha, dtype=torch.float64)
    slope = torch.autograd.functional.jacobian(lambda x: alpha_change(mean, covariance, x, basis), at)
    h, expect = 1e-3, lambda x: expect_basis("test", mean, covariance, 1 / (x - 1), basis)
    around = [expect(alpha + k * h) for k in (-2, -1, 1, 2)]
    expected = (around[0] - 8 * around[1] + 8 * around[2] - around[3]) / (12 * h)
    assert (alpha_change(mean, covariance, at, basis) == 0).all()
    torch.testing.assert_close(slope, expected, rtol=0, atol=2e-4 * expected.abs().max().item())


def test_bumps_with_an_edge_are_not_differentiated():
    basis, alpha = TruncatedParaboloidBasis.for_grid(7, 7), torch.tensor(1.5, dtype=torch.float64)
    with pytest.raises(TypeError, match="expected a GaussianBasis beside a learnable alpha, got TruncatedParaboloid"):
        alpha_change(torch.zeros(2), torch.eye(2), alpha, basis)
