from __future__ import annotations

import pytest
import torch
from torch import nn

from foveate.train import SGD, Adam, AdamW
from foveate.train.optimise import build_optimiser, scale_and_clip


@pytest.mark.parametrize("clip", [None, 0.1, 100.0])
def test_scale_and_clip_equals_torch(clip: float | None) -> None:
    torch.manual_seed(0)
    ours = [torch.randn(3, 2, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    theirs = [nn.Parameter(torch.zeros_like(g)) for g in ours]
    for parameter, gradient in zip(theirs, ours, strict=True):
        parameter.grad = gradient * 0.5
    expected = nn.utils.clip_grad_norm_(theirs, float("inf") if clip is None else clip)
    norm = scale_and_clip(ours, 0.5, clip)
    assert float(norm) == pytest.approx(float(expected))
    for parameter, gradient in zip(theirs, ours, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=2e-5, atol=0)  # torch adds 1e-6 to the norm


def test_a_gradient_that_is_no_number_has_such_a_norm() -> None:
    assert torch.isnan(scale_and_clip([torch.tensor([1.0, torch.nan])], 1.0, clip=1.0))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (
            Adam(0.1, betas=(0.8, 0.9), eps=1e-9, weight_decay=0.2),
            {"betas": (0.8, 0.9), "eps": 1e-9, "weight_decay": 0.2},
        ),
        (AdamW(0.1, weight_decay=0.3), {"weight_decay": 0.3}),
        (SGD(0.1, momentum=0.7, weight_decay=5e-4), {"momentum": 0.7, "weight_decay": 5e-4}),
    ],
)
def test_every_option_of_an_optimiser_arrives(settings, expected: dict) -> None:
    optimiser = build_optimiser(settings, [nn.Parameter(torch.zeros(1))])
    assert type(optimiser).__name__ == type(settings).__name__
    assert expected.items() <= optimiser.defaults.items()
    assert optimiser.defaults["lr"] == 0.1


def test_frozen_parameters_are_left_out() -> None:
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    assert build_optimiser(SGD(0.1), [frozen, nn.Parameter(torch.zeros(2))]).param_groups[0]["params"][0].shape == (2,)
