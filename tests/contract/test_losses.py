"""The laws of every loss: a finite scalar with a gradient, a sum over examples, input untouched."""

from __future__ import annotations

import pytest
import torch

from foveate.lab.losses import LOSSES


def _answers(B: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(B, 5), torch.tensor([0.0, 0.3, 0.6, 0.9, 1.0])[torch.randint(5, (B, 5))]


def _maps(B: int) -> tuple[torch.Tensor, torch.Tensor]:
    prediction, target = torch.randn(2, B, 12).softmax(-1).reshape(2, B, 3, 4)
    return prediction, target


EXAMPLES = {"answers": _answers, "maps": _maps}


@pytest.fixture(params=LOSSES)
def row(request: pytest.FixtureRequest):
    torch.manual_seed(0)
    return LOSSES[request.param]


def test_is_a_finite_scalar_with_a_gradient(row) -> None:
    prediction, target = EXAMPLES[row.reads](4)
    kept = prediction.clone(), target.clone()
    prediction.requires_grad_()
    loss = row.function(prediction, target)
    loss.backward()
    assert loss.shape == ()
    assert loss.isfinite()
    assert prediction.grad.isfinite().all()
    assert prediction.grad.abs().sum() > 0
    assert torch.equal(prediction.detach(), kept[0])
    assert torch.equal(target, kept[1])


def test_is_the_sum_of_its_parts(row) -> None:
    prediction, target = EXAMPLES[row.reads](6)
    parts = row.function(prediction[:2], target[:2]) + row.function(prediction[2:], target[2:])
    torch.testing.assert_close(row.function(prediction, target), parts)


def test_gradient_is_exact(row) -> None:
    prediction, target = (x.double() for x in EXAMPLES[row.reads](3))
    assert torch.autograd.gradcheck(lambda x: row.function(x, target), (prediction.requires_grad_(),))


def test_of_nothing_is_nothing(row) -> None:
    prediction, target = EXAMPLES[row.reads](0)
    assert row.function(prediction, target).item() == 0
