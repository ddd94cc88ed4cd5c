"""softmax, sparsemax and entmax against references with 50 digits, and what is special to them."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.ops import TRANSFORMS, entmax, softmax, sparsemax
from tests.cases import N, call, draw


def by_bisection(scores: torch.Tensor, alpha: float) -> torch.Tensor:
    """p_i = [(α−1) z_i − τ]_+^{1/(α−1)} with τ found by bisection to 50 digits."""
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


def by_supports(scores: torch.Tensor, alpha: float) -> list[mpmath.mpf]:
    """The weights for α ≥ 2 with 50 digits, where τ itself would need a thousand of them.

    For each size of the support, largest first, the smallest weight u solves Σ (u^g + g (z_i − z_k))^{1/g} = 1 with
    g = α − 1; the size is right if such a u ≥ 0 exists.
    """
    gain = mpmath.mpf(alpha) - 1
    z = [mpmath.mpf(float(s)) for s in scores]
    ranked = sorted(z, reverse=True)
    for size in range(len(z), 0, -1):
        gaps = [gain * (v - ranked[size - 1]) for v in ranked[:size]]

        def total(u, gaps=gaps):
            return mpmath.fsum((u**gain + gap) ** (1 / gain) for gap in gaps)

        if total(mpmath.mpf(0)) > 1:
            continue
        low, high = mpmath.mpf(0), mpmath.mpf(1) / size
        for _ in range(170):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) < 1 else (low, middle)
        return [(high**gain + gain * (v - ranked[size - 1])) ** (1 / gain) if v >= ranked[size - 1] else 0 for v in z]
    raise AssertionError("one location always supports itself")


def by_pairs(weights: list[mpmath.mpf], direction: torch.Tensor, alpha: float) -> torch.Tensor:
    """J v = Σ_j q_i q_j (v_i − v_j) / Σq with 50 digits: no two terms cancel."""
    q = [p ** (2 - mpmath.mpf(alpha)) if p else mpmath.mpf(0) for p in weights]
    v, total = [mpmath.mpf(x) for x in direction.tolist()], mpmath.fsum(q)
    rows = [mpmath.fsum(q[i] * q[j] / total * (v[i] - v[j]) for j in range(len(q))) for i in range(len(q))]
    return torch.tensor([float(row) for row in rows], dtype=torch.float64)


def hard_scores(seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Far apart, close together, tied, and a hair's breadth apart."""
    z = draw(9, seed=seed) * (1, 0.1, 1e-3, 1e-8, 0.01)[seed % 5]
    if seed % 2:
        z[3:6] = z[2]
    if seed % 3 == 0:
        z[7] = z.max() + 1e-7
    return z.to(dtype)


def reference(scores: torch.Tensor, alpha: float) -> list[mpmath.mpf]:
    return by_supports(scores, alpha) if alpha > 2 else [mpmath.mpf(p) for p in by_bisection(scores, alpha).tolist()]


ALPHAS = [1.0001, 1.1, 1.3, 1.5, 1.7, 1.99, 1.9999, 2.0, 2.0001, 2.1, 3.0, 3.9, 5.0, 8.0, 16.0, 33.3, 64.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_of_every_alpha(alpha, dtype):
    for seed in range(10):
        scores = hard_scores(seed, dtype)
        with mpmath.workdps(50):
            expected = torch.tensor([float(p) for p in reference(scores, alpha)], dtype=torch.float64)
        got = entmax(scores, alpha)
        assert got.dtype == dtype
        tolerance = 5e-7 if dtype == torch.float32 else 2e-14
        torch.testing.assert_close(got.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_gradients_of_every_alpha(alpha, dtype):
    for seed in range(10):
        scores, direction = hard_scores(seed, dtype).requires_grad_(), draw(9, seed=seed + 50).to(dtype)
        (got,) = torch.autograd.grad(entmax(scores, alpha), scores, direction)
        with mpmath.workdps(50):
            expected = by_pairs(reference(scores.detach(), alpha), direction, alpha)
        limit = torch.finfo(dtype).max
        size = expected.abs().max().clamp(max=limit).item()
        # q = p^{2−α} has the relative error of p, α − 2 times.
        tolerance = size * alpha * (4e-7 if dtype == torch.float32 else 1e-13)
        torch.testing.assert_close(got.double(), expected.clamp(-limit, limit), rtol=0, atol=tolerance)


@pytest.mark.parametrize("alpha", [3.9, 8.0, 64.0])
@pytest.mark.parametrize("size", [2, 196, 5000])
def test_ties_share_the_weight_at_every_alpha(alpha, size):
    for dtype in (torch.float32, torch.float64):
        scores = torch.zeros(size, dtype=dtype, requires_grad=True)
        weights = entmax(scores, alpha)
        torch.testing.assert_close(weights, torch.full((size,), 1 / size, dtype=dtype))
        (gradient,) = torch.autograd.grad(weights[0], scores)
        exact = min((alpha - 2) * math.log(size) + math.log1p(-1 / size), math.log(torch.finfo(dtype).max))
        assert gradient[0].double().log().item() == pytest.approx(exact, rel=1e-5)
        assert torch.isfinite(gradient).all()
        assert (gradient[1:] < 0).all()


def test_alpha_beyond_64_is_an_error():
    with pytest.raises(ValueError, match=r"entmax: expected alpha <= 64, got 64.5; use a smaller alpha"):
        entmax(torch.zeros(3), 64.5)


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


@pytest.mark.parametrize("alpha", [1.2, 1.5, 1.9, 3.0, 6.0])
def test_first_and_second_derivatives(alpha):
    scores = (draw(3, 6, seed=1) / alpha**2).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), scores, eps=1e-8, atol=1e-5)
    assert torch.autograd.gradgradcheck(lambda z: entmax(z, alpha), scores, eps=1e-8, atol=1e-4)


def test_softmax_is_dense():
    assert (softmax(3 * draw(20, N)) > 0).all()


@pytest.mark.parametrize("name", ["sparsemax", "entmax", "fusedmax", "tvmax", "gfusedmax"])
def test_the_other_transforms_are_sparse(name):
    assert (call(TRANSFORMS[name], 3 * draw(20, N)) == 0).any()


def test_at_the_threshold_the_gradient_is_that_of_the_zero_side():
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


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_every_alpha_is_finite_everywhere(data):
    alpha = data.draw(st.floats(min_value=1, max_value=64, exclude_min=True))
    number = st.floats(min_value=-1e300, max_value=1e300) | st.sampled_from([0.0, 1e-9, -1e-9, math.inf, -math.inf])
    scale = data.draw(st.sampled_from([1.0, 1e-3, 1e-30]))
    scores = torch.tensor(data.draw(st.lists(number, min_size=1, max_size=12)), dtype=torch.float64) * scale
    scores = scores.to(data.draw(st.sampled_from([torch.float32, torch.float64]))).requires_grad_()
    weights = entmax(scores, alpha)
    weights.square().sum().backward()
    assert torch.isfinite(weights).all()
    assert torch.isfinite(scores.grad).all()
    total = float(weights.detach().sum())
    assert total == pytest.approx(1.0 if bool((scores > -math.inf).any()) else 0.0, abs=1e-5)


def test_operators_are_well_formed():
    from foveate.ops.simplex import _entmax_rows

    torch.library.opcheck(_entmax_rows, (draw(3, 5).requires_grad_(), 1.5, -1, "entmax"))
