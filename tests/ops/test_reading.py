"""The weighted sum of values: one gradient to the weights, whatever computes it."""

from __future__ import annotations

import pytest
import torch

from foveate.attention import mechanism
from foveate.ops import kernels, sparsemax
from foveate.ops.reading import LARGE, weighted_sum


@pytest.mark.parametrize("queries", [(), (3,), (50,)])
@pytest.mark.parametrize(("N", "D"), [(49, 8), (196, 512), (600, 400)])
@pytest.mark.parametrize("native", [True, False])
def test_the_gradient_to_sparse_weights_is_zero_off_their_support(
    queries: tuple[int, ...], N: int, D: int, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(kernels, "_module", None)
    g = torch.Generator().manual_seed(0)
    for sharpness in (0.02, 3.0):
        weights = sparsemax(sharpness * torch.randn(2, *queries, N, generator=g)).requires_grad_()
        values = torch.randn(2, N, D, generator=g)
        context = weighted_sum(weights, values, sparse=True)
        back = torch.randn(context.shape, generator=g)
        (gradient,) = torch.autograd.grad(context, weights, back)
        flat = back.reshape(2, -1, D) @ values.mT
        torch.testing.assert_close(
            gradient, torch.where(weights > 0, flat.reshape(weights.shape), 0), atol=1e-3, rtol=1e-4
        )
    assert 49 * 8 * 2 < LARGE < 196 * 512 * 2


def test_the_gradient_to_the_weights_of_a_mechanism_means_the_same_at_every_size() -> None:
    for N, D in ((49, 8), (196, 512)):
        scores = torch.zeros(1, N)
        scores[0, :2] = 5
        out = mechanism("sparsemax")(scores.requires_grad_(), torch.randn(1, N, D))
        out.weights.retain_grad()
        out.context.sum().backward()
        assert int((out.weights.grad != 0).sum()) == int((out.weights > 0).sum()) == 2


def test_dense_weights_have_every_gradient() -> None:
    weights, values = torch.tensor([[1.0, 0.0]], requires_grad=True), torch.ones(1, 2, 3)
    (gradient,) = torch.autograd.grad(weighted_sum(weights, values).sum(), weights)
    assert gradient.tolist() == [[3.0, 3.0]]
