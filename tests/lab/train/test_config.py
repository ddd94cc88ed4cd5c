"""Schedules against their formulas, wrong values, and optimisers against the slow formulas."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foveate.lab.train import SGD, Adam, AdamW, Cosine, Decay, Steps, Training
from foveate.lab.train.config import build_optimiser, scale_and_clip


def rates(schedule, epochs: int, per_epoch: int = 4) -> list[float]:
    return [schedule.rate(step / per_epoch, epochs) for step in range(epochs * per_epoch)]


def test_mcan_warms_up_by_quarters_and_falls_at_10_and_12() -> None:
    expected = [0.25, 0.5, 0.75] + [1.0] * 7 + [0.2] * 2 + [0.04]
    found = rates(Steps(at=(10, 12), factor=0.2, warmup=4), epochs=13)
    assert found == pytest.approx([rate for rate in expected for _ in range(4)])


def test_paper_000_falls_every_two_epochs_after_the_tenth() -> None:
    found = rates(Steps(at=(10, 12, 14), factor=0.2, warmup=4), epochs=15, per_epoch=1)
    assert found[9:] == pytest.approx([1.0, 0.2, 0.2, 0.04, 0.04, 0.008])


def test_dan_and_scan_divide_by_ten() -> None:
    assert rates(Steps(at=(30,)), 60, per_epoch=1) == pytest.approx([1.0] * 30 + [0.1] * 30)


def test_captioner_falls_by_a_hundredth_an_epoch_after_the_tenth() -> None:
    found = rates(Decay(after=10, factor=0.99), epochs=13, per_epoch=2)
    expected = [1.0] * 10 + [0.99, 0.99**2, 0.99**3]
    assert found == pytest.approx([rate for rate in expected for _ in range(2)])


def test_cosine_rises_linearly_then_falls_to_zero() -> None:
    schedule = Cosine(warmup=1.0)
    assert [schedule.rate(epoch, 3) for epoch in (0.0, 0.5, 1.0, 2.0, 3.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert Cosine().rate(0.0, 3) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epochs": 0}, "Training: expected epochs >= 1, got 0; use at least one"),
        ({"steps": 0}, "Training: expected steps >= 1, got 0; use at least one, or none"),
        ({"clip": 0.0}, "Training: expected clip > 0, got 0.0; use none for no clipping"),
        ({"seed": -1}, "Training: expected seed >= 0, got -1; use zero or more"),
    ],
)
def test_impossible_numbers_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=r"Training") as error:
        Training(Adam(1e-3), **change)
    assert str(error.value) == message


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected lr > 0, got 0.0"):
        Training(SGD(0.0))


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
