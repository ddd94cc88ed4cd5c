"""Schedules of the papers, written out by hand; what a training refuses."""

from __future__ import annotations

import pytest

from foveate.train import SGD, Adam, Cosine, Decay, Steps, Training


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
        ({"clip": 0.0}, "Training: expected clip > 0, got 0.0; use none to leave gradients as they are"),
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
