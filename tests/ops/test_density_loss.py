"""Fenchel-Young losses of densities: against quadrature, zero where they agree, gradients that move apart supports."""

from __future__ import annotations

import math

import pytest
import torch

from foveate import BetaGaussian, Gaussian, Mixture, TruncatedParaboloid, fenchel_young_loss
from foveate.ops import cell_centres
from tests.cases import draw

FAMILIES = {
    "gaussian": (Gaussian, math.inf),
    "truncated-paraboloid": (TruncatedParaboloid, 1.0),
    "beta-gaussian": (lambda mean, scale: BetaGaussian(mean, scale, 1.5), 2.0),
}
families = pytest.mark.parametrize(("make", "power"), FAMILIES.values(), ids=FAMILIES)


def parameters(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    root = 0.05 * draw(3, 2, 2, seed=seed)
    return 0.5 + 0.05 * draw(3, 2, seed=seed + 10), root @ root.mT + 0.01 * torch.eye(2, dtype=torch.float64)


@families
def test_against_a_sum_over_a_fine_grid(make, power):
    """Ω(q) + Ω*(f) − E_q[f] with every integral a sum over cells."""
    (mean, matrix), (mean_q, matrix_q) = parameters(0), parameters(1)
    shrink = 0.3 if math.isinf(power) else 0.05  # the densities must lie in the image
    matrix, matrix_q = matrix * shrink, matrix_q * shrink
    p, q = make(mean, matrix), make(mean_q, matrix_q)
    points = cell_centres(400, 400, dtype=torch.float64)
    cell = 1 / 400**2
    away = points - mean.unsqueeze(-2)
    f = -0.5 * torch.einsum("bni,bij,bnj->bn", away, torch.linalg.inv(matrix), away)
    pp, qq = p.pdf(points), q.pdf(points)
    if math.isinf(power):
        omega = lambda x: torch.xlogy(x, x).sum(-1) * cell  # noqa: E731
    else:
        alpha = 1 + 1 / power
        omega = lambda x: (x.pow(alpha).sum(-1) * cell - 1) / (alpha * (alpha - 1))  # noqa: E731
    expected = omega(qq) + (f * pp).sum(-1) * cell - omega(pp) - (f * qq).sum(-1) * cell
    torch.testing.assert_close(fenchel_young_loss(p, q), expected, rtol=1e-3, atol=1e-3)


@families
def test_zero_where_they_agree_and_positive_elsewhere(make, power):
    p, q = make(*parameters(0)), make(*parameters(1))
    torch.testing.assert_close(fenchel_young_loss(p, p), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (fenchel_young_loss(p, q) > 0).all()


@families
def test_derivatives(make, power):
    mean, matrix = (x.requires_grad_() for x in parameters(0))
    q = make(*parameters(1))

    def loss(mean, matrix):
        return fenchel_young_loss(make(mean, (matrix + matrix.mT) / 2), q)

    assert torch.autograd.gradcheck(loss, (mean, matrix))
    assert torch.autograd.gradgradcheck(loss, (mean, matrix))


def test_supports_that_are_apart_attract_each_other():
    """A map has no gradient there: the density has no mass where the target is."""
    mean = torch.tensor([0.2, 0.5], dtype=torch.float64, requires_grad=True)
    scale = 1e-5 * torch.eye(2, dtype=torch.float64)
    target = TruncatedParaboloid(torch.tensor([0.8, 0.5], dtype=torch.float64), scale)
    fenchel_young_loss(TruncatedParaboloid(mean, scale), target).backward()
    assert mean.grad[0] < 0


def test_what_does_not_fit_is_explained():
    p, q = Gaussian(*parameters(0)), TruncatedParaboloid(*parameters(0))
    with pytest.raises(TypeError, match=r"two densities of one family .* got Gaussian and TruncatedParaboloid"):
        fenchel_young_loss(p, q)
    pair = Mixture(Gaussian(*parameters(0)), torch.full((3,), 1 / 3, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"got Mixture and Mixture; use attend\.loss\(scores, target\)"):
        fenchel_young_loss(pair, pair)
    with pytest.raises(TypeError, match="expected two densities without a transform"):
        fenchel_young_loss(p, torch.zeros(3))
    with pytest.raises(TypeError, match="expected a transform beside scores, got none"):
        fenchel_young_loss(torch.zeros(3), torch.zeros(3))
