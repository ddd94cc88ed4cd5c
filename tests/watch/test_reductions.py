"""Reductions of weights to one map."""

from __future__ import annotations

import pytest
import torch

import foveate as fv
from foveate.watch import REDUCTIONS
from foveate.watch.reductions import (
    gradient_weighted,
    normalise,
    over_heads,
    over_layers,
    relative,
    rollout,
    sinks,
    without_sinks,
)

W = torch.softmax(torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)), -1)


def test_every_reduction_is_in_the_table_and_documented():
    assert set(REDUCTIONS) == {"heads", "layers", "rollout", "gradient-weighted", "relative", "without-sinks"}
    assert all((function.__doc__ or "").strip() for function in REDUCTIONS.values())


def test_heads():
    torch.testing.assert_close(over_heads(W), W.mean(1))
    torch.testing.assert_close(over_heads(W, "max"), W.amax(1))
    torch.testing.assert_close(over_heads(W, 2), W[:, 2])
    torch.testing.assert_close(over_heads(W, [0, -1]), W[:, [0, 2]].mean(1))
    with pytest.raises(fv.UnknownName, match="mean"):
        over_heads(W, "men")
    with pytest.raises(fv.ShapeError, match="expected numbers from 0 to 2"):
        over_heads(W, 3)


def test_layers():
    layers = [W[:, 0], W[:, 1]]
    torch.testing.assert_close(over_layers(layers, "max"), torch.maximum(*layers))
    torch.testing.assert_close(over_layers(layers, [1]), layers[1])
    with pytest.raises(fv.ShapeError, match="layers of one shape"):
        over_layers([W, W[..., :2]])


def test_rollout_is_a_product_of_stochastic_matrices():
    layers = [W[:, 0], W[:, 1]]
    eye = torch.eye(4)
    expected = (0.5 * layers[1] + 0.5 * eye) @ (0.5 * layers[0] + 0.5 * eye)
    torch.testing.assert_close(rollout(layers), expected)
    torch.testing.assert_close(rollout(layers).sum(-1), torch.ones(2, 4))
    torch.testing.assert_close(rollout(layers, residual=1.0), eye.expand(2, 4, 4))
    with pytest.raises(fv.ShapeError, match="watch all rows"):
        rollout([W[..., :2]])


def test_gradient_weighted_keeps_the_positive_part_only():
    gradient = torch.randn(W.shape, generator=torch.Generator().manual_seed(1))
    expected = torch.eye(4) + (W * gradient).clamp(min=0).mean(1)
    torch.testing.assert_close(gradient_weighted([W], [gradient]), expected)
    torch.testing.assert_close(gradient_weighted([W], [-W.abs()]), torch.eye(4).expand(2, 4, 4))


def test_relative_removes_what_the_neutral_prompt_attends_to():
    neutral = torch.tensor([0.7, 0.1, 0.1, 0.1])
    asked = torch.tensor([0.7, 0.2, 0.05, 0.05])
    assert relative(asked, neutral).argmax().item() == 1
    torch.testing.assert_close(relative(neutral, neutral), torch.full((4,), 0.25))
    # Without the floor the last location would have all the weight.
    assert relative(torch.tensor([0.5, 0.5 - 1e-6, 1e-6]), torch.tensor([0.5, 0.5, 0.0]))[2] < 0.01


def test_sinks():
    neutral = normalise(torch.tensor([[1.0] * 15 + [40.0], [1.0] * 16]))
    assert sinks(neutral).nonzero().tolist() == [[0, 15]]
    asked = normalise(torch.tensor([1.0] * 14 + [5.0, 40.0]))
    cleaned = without_sinks(asked, neutral[0])
    assert cleaned[15] == 0
    assert cleaned.argmax().item() == 14
    assert cleaned.sum().item() == pytest.approx(1)
