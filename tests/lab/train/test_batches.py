"""Who sees which example when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch

from foveate.errors import DataError
from foveate.lab.train.batches import Plan, evaluation_batches, move


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 31])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_an_epoch_sees_every_example_once(count: int, accumulate: int) -> None:
    plan = Plan(count, batch_size=4, accumulate=accumulate)
    for epoch in range(3):
        start = epoch * plan.steps_per_epoch
        batches = list(plan.batches(start, start + plan.steps_per_epoch))
        assert sorted(n for batch in batches for n in batch) == list(range(count))
        assert sum(plan.parts(start + step) for step in range(plan.steps_per_epoch)) == len(batches)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    plan = Plan(20, batch_size=20)
    first, second = plan.batches(0, 2)
    assert first != second
    assert first != next(replace(plan, seed=1).batches(0, 1))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_any_position_can_be_found_again(accumulate: int) -> None:
    plan = Plan(23, batch_size=4, accumulate=accumulate)
    total = 4 * plan.steps_per_epoch
    whole = list(plan.batches(0, total))
    for start in range(total + 1):
        behind = sum(plan.parts(step) for step in range(start))
        assert list(plan.batches(start, total)) == whole[behind:]


@pytest.mark.parametrize("count", [16, 17, 18, 23])
def test_two_processes_share_the_batches_of_one_with_the_double_size(count: int) -> None:
    alone = Plan(count, batch_size=8)
    pair = [Plan(count, batch_size=4, processes=2, process=process) for process in range(2)]
    steps = 2 * pair[0].steps_per_epoch
    together = [a + b for a, b in zip(*(plan.batches(0, steps) for plan in pair), strict=True)]
    expected = [batch for batch in alone.batches(0, 2 * alone.steps_per_epoch) if len(batch) > 1]
    assert together == expected
    assert all(batch for plan in pair for batch in plan.batches(0, steps))


def test_fewer_examples_than_processes_are_refused() -> None:
    with pytest.raises(DataError, match="train: expected at least one example per process, got 1 for 2"):
        Plan(1, batch_size=4, processes=2)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_an_evaluation_has_every_example_on_one_process(processes: int) -> None:
    shares = [evaluation_batches(5, 2, processes, process) for process in range(processes)]
    assert sorted(n for share in shares for batch in share for n in batch) == list(range(5))
    assert max(len(batch) for share in shares for batch in share) <= 2


@dataclass(frozen=True)
class Nested:
    values: torch.Tensor
    words: list[str]
    inner: object = None


class Pair(NamedTuple):
    a: torch.Tensor
    b: int


def test_every_tensor_of_a_batch_moves() -> None:
    values = torch.zeros(1)
    batch = Nested(values, ["a"], {"x": (values, 1), "y": [Nested(values, [])], "z": Pair(values, 2)})
    moved = move(batch, torch.device("meta"))
    inner = moved.inner
    found = (moved.values, inner["x"][0], inner["y"][0].values, inner["z"].a)
    assert all(tensor.is_meta for tensor in found)
    assert (moved.words, inner["x"][1], inner["z"].b) == (["a"], 1, 2)
    assert move(batch, torch.device("cpu")) is batch


@pytest.mark.parametrize("batch_size", [0, -1])
def test_an_evaluation_needs_examples_in_a_batch(batch_size):
    """A negative size made no batches: nothing was evaluated, and a file without predictions was written."""
    with pytest.raises(ValueError, match="evaluate: expected batch_size as a whole number >= 1, got"):
        evaluation_batches(5, batch_size, 1, 0)
