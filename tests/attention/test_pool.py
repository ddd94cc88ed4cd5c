"""Pooling with learned queries."""

from __future__ import annotations

import pytest
import torch

from foveate import MECHANISMS, AttentionPool
from foveate.errors import ShapeError
from tests.cases import draw


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_shapes_maps_and_gradients(name):
    for heads, queries, axes in ((1, 1, ()), (2, 1, (2,)), (1, 3, (3,)), (2, 3, (2, 3))):
        pool = AttentionPool(8, mechanism=name, heads=heads, queries=queries)
        features = torch.randn(2, 8, 3, 4, requires_grad=True)
        seen = pool(features)
        assert seen.context.shape == ((2, 8) if queries == 1 else (2, 3, 8))
        assert seen.weights.shape == (2, *axes, 12)
        assert seen.map().shape == (2, *axes, 3, 4)
        assert seen.mean_over_queries().weights.shape == (2, 12)
        if seen.density is not None:
            assert seen.density.mean.shape == (2, *axes, 2)
        seen.context.square().sum().backward()
        assert torch.isfinite(features.grad).all()
        # the gradient through a mask or a mean may vanish, but every parameter is in the graph
        assert all(p.grad is not None for p in pool.parameters())


@pytest.mark.parametrize("name", ["softmax", "continuous-softmax"])
def test_the_mean_over_heads_and_queries_keeps_examples_apart(name):
    image = draw(3, 8, 3, 4)
    for heads, queries in ((2, 1), (4, 5), (1, 5)):
        seen = AttentionPool(8, mechanism=name, heads=heads, queries=queries).double()(image)
        mean = seen.mean_over_queries()
        torch.testing.assert_close(mean.context, seen.context if queries == 1 else seen.context.mean(1))
        torch.testing.assert_close(mean.weights, seen.weights.flatten(1, -2).mean(1))
        torch.testing.assert_close(mean.map(5, 5)[1:2], seen[1].mean_over_queries().map(5, 5))


def test_tokens_and_images_are_the_same():
    pool = AttentionPool(8, mechanism="continuous-softmax", heads=2).double()
    image = draw(2, 8, 3, 4)
    tokens = image.flatten(2).mT
    torch.testing.assert_close(pool(tokens, grid=(3, 4)).context, pool(image).context)
    mask = draw(2, 3, 4, seed=2) > -0.5
    torch.testing.assert_close(pool(image, mask=mask).context, pool(tokens, (3, 4), mask.flatten(1)).context)
    ragged = pool(tokens, grid=[(3, 4), (2, 5)])
    torch.testing.assert_close(ragged.context[1:], pool(tokens[1:, :10], grid=(2, 5)).context)


def test_options_reach_the_mechanism():
    torch.manual_seed(0)
    image = torch.randn(1, 8, 5, 5)
    few, many = (AttentionPool(8, mechanism="k-mca", components=k) for k in (1, 3))
    assert few(image).density.weights.shape[-1] == 1
    assert many(image).density.weights.shape[-1] == 3


def test_what_does_not_fit_is_explained():
    with pytest.raises(ShapeError, match=r"expected features \(B, 8, H, W\) or \(B, N, 8\), got \(2, 4, 9\)"):
        AttentionPool(8)(torch.zeros(2, 4, 9))
    with pytest.raises(ShapeError, match="expected no grid beside features"):
        AttentionPool(8)(torch.zeros(2, 8, 3, 3), grid=(3, 3))
    with pytest.raises(ValueError, match="expected queries >= 1, got 0"):
        AttentionPool(8, queries=0)
