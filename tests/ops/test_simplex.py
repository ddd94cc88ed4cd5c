"""softmax, sparsemax and entmax against bisection with 50 digits, and what is special to them."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch

from foveate.ops import entmax, softmax, sparsemax
from tests.cases import draw


def by_bisection(scores: torch.Tensor, alpha: float) -> torch.Tensor:
    """p_i = [(α−1) z_i − τ]_+^{1/(α−1)} with τ halved in between 50 digits."""
    with mpmath.workdps(50):
        gain = mpmath.mpf(alpha) - 1
        z = [gain * mpmath.mpf(float(s)) for s in scores]

        def weights(tau):
            return [max(v - tau, mpmath.mpf(0)) ** (1 / gain) for v in z]

        low, high = max(z) - 1, max(z)
        for _ in range(170):
            middle = (low + high) / 2
            low, high = (middle, high) if mpmath.fsum(weights(middle)) > 1 else (low, middle)
        return torch.tensor([float(w) for w in weights(low)], dtype=torch.float64)


@pytest.mark.parametrize("alpha", [1.01, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0])
@pytest.mark.parametrize("size", [1, 2, 7, 40])
def test_entmax_agrees_with_bisection(alpha, size):
    for seed in range(4):
        scores = draw(size, seed=seed) * (1, 5, 0.1, 20)[seed]
        torch.testing.assert_close(entmax(scores, alpha), by_bisection(scores, alpha), rtol=0, atol=1e-9)


def test_sparsemax_agrees_with_bisection():
    scores = draw(30, 50)
    expected = torch.stack([by_bisection(row, 2.0) for row in scores])
    torch.testing.assert_close(sparsemax(scores), expected, rtol=0, atol=1e-12)


def test_softmax_agrees_with_torch():
    scores = draw(5, 9).requires_grad_()
    torch.testing.assert_close(softmax(scores), torch.softmax(scores, -1))
    ours, theirs = (
        torch.autograd.grad(f(scores).square().sum(), scores)[0] for f in (softmax, lambda z: z.softmax(-1))
    )
    torch.testing.assert_close(ours, theirs)


def test_alpha_near_one_is_softmax_and_two_is_sparsemax():
    scores = draw(10, 20)
    torch.testing.assert_close(entmax(scores, 1 + 1e-7), softmax(scores), rtol=0, atol=1e-6)
    torch.testing.assert_close(entmax(scores.float(), 1 + 1e-6), softmax(scores.float()), rtol=0, atol=1e-5)
    torch.testing.assert_close(entmax(scores, 2.0), sparsemax(scores))


def test_alpha_is_not_ignored():
    scores = draw(3, 8)
    assert not torch.allclose(entmax(scores, 1.2), entmax(scores, 1.8))


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9, 3.0])
def test_gradients_of_other_alphas(alpha):
    scores = draw(3, 6, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), scores, eps=1e-8, atol=1e-5)
    if alpha < 2:
        assert torch.autograd.gradgradcheck(lambda z: entmax(z, alpha), scores, eps=1e-8, atol=1e-4)


def test_at_a_tie_the_gradient_is_the_one_of_the_zero_side():
    scores = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)  # the threshold is exactly 0
    weights = sparsemax(scores)
    assert weights.tolist() == [1.0, 0.0]
    (gradient,) = torch.autograd.grad(weights[1], scores)
    assert gradient.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("alpha", [1.0, 0.5, -1.0, math.nan, math.inf])
def test_alpha_must_exceed_one(alpha):
    with pytest.raises(ValueError, match=r"entmax: expected alpha > 1, got .*; use fv.softmax for alpha = 1"):
        entmax(torch.zeros(3), alpha)


def test_many_scores_far_apart():
    scores = torch.linspace(-1e4, 1e4, 10_000, dtype=torch.float64)
    for weights in (sparsemax(scores), entmax(scores), entmax(scores, 1.1), entmax(scores, 3.0)):
        assert weights.sum().item() == pytest.approx(1, abs=1e-9)


def test_operators_are_well_formed():
    from foveate.ops.simplex import _entmax_rows

    torch.library.opcheck(_entmax_rows, (draw(3, 5).requires_grad_(), 1.5, "entmax"))
