from __future__ import annotations

import math

import pytest
import torch

from foveate.errors import ShapeError
from foveate.lab.losses import answer_bce, answer_cross_entropy


def test_bce_is_the_sum_of_its_definition() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(4, 5).double(), torch.rand(4, 5).double()
    slow = 0.0
    for s, t in zip(scores.flatten().tolist(), targets.flatten().tolist(), strict=True):
        p = 1 / (1 + math.exp(-s))
        slow -= t * math.log(p) + (1 - t) * math.log(1 - p)
    assert answer_bce(scores, targets).item() == pytest.approx(slow)


def test_bce_is_finite_for_extreme_scores() -> None:
    scores = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = answer_bce(scores, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss.item() == pytest.approx(2e4)
    assert scores.grad.tolist() == [[1.0, -1.0]]


def test_cross_entropy_with_one_answer_is_the_usual_one() -> None:
    torch.manual_seed(0)
    scores, classes = torch.randn(4, 5), torch.tensor([0, 3, 3, 1])
    targets = torch.nn.functional.one_hot(classes, 5).float()
    usual = torch.nn.functional.cross_entropy(scores, classes, reduction="sum")
    torch.testing.assert_close(answer_cross_entropy(scores, targets), usual)


def test_cross_entropy_weighs_answers_by_their_share() -> None:
    scores = torch.tensor([[0.0, 1.0, 2.0]])
    p = scores.softmax(-1)[0]
    expected = -(0.75 * p[0].log() + 0.25 * p[2].log())
    torch.testing.assert_close(answer_cross_entropy(scores, torch.tensor([[0.9, 0.0, 0.3]])), expected)


def test_cross_entropy_of_unknown_answers_is_nothing() -> None:
    scores = torch.randn(2, 3, requires_grad=True)
    loss = answer_cross_entropy(scores, torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    loss.backward()
    assert scores.grad[0].abs().sum() == 0
    assert scores.grad[1].abs().sum() > 0


@pytest.mark.parametrize("loss", [answer_bce, answer_cross_entropy])
def test_targets_of_another_shape_raise_an_error(loss) -> None:
    with pytest.raises(
        ShapeError, match=rf"{loss.__name__}: expected targets \(B, A\) of sizes \(2, 3\), got \(2, 1\)"
    ):
        loss(torch.zeros(2, 3), torch.zeros(2, 1))
    with pytest.raises(TypeError, match=f"{loss.__name__}: expected floating-point scores"):
        loss(torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
