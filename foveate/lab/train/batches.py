"""Examples to batches, on each process, and all random numbers, as functions of seed and step."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foveate.checks import check_counts
from foveate.errors import DataError
from foveate.lab.tasks import AnyTask, Examples


@dataclass(frozen=True)
class Plan:
    """The order of the examples in a training: a function of the seed, so that any position can be restored.

    Each epoch has its own order. It is split into global batches of `batch_size · processes`, of which each process
    takes one part, and `accumulate` of them form a step. The last batch of an epoch is divided evenly; it is left out
    if it has fewer examples than there are processes.

    Attributes:
        count: number of training examples.
        batch_size: per process.
        accumulate: batches per step.
        processes, process: number of processes, and the index of this one.
        seed: of the order.

    >>> plan = Plan(count=5, batch_size=2)
    >>> plan.steps_per_epoch, sorted(number for batch in plan.batches(0, 3) for number in batch)
    (3, [0, 1, 2, 3, 4])
    """

    count: int
    batch_size: int
    accumulate: int = 1
    processes: int = 1
    process: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < self.processes:
            raise DataError(
                f"train: expected at least one example per process, got {self.count} for {self.processes}; "
                "check the training split"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return -(-self._batches_per_epoch // self.accumulate)

    def parts(self, step: int) -> int:
        """Number of batches in this step: `accumulate`, or fewer at the end of an epoch."""
        behind = (step % self.steps_per_epoch) * self.accumulate
        return min(self.accumulate, self._batches_per_epoch - behind)

    def batches(self, start: int, stop: int) -> Iterator[list[int]]:
        """The positions of this process's examples, batch by batch, from step `start` up to step `stop`."""
        step = start
        while step < stop:
            epoch, within = divmod(step, self.steps_per_epoch)
            order = self._order(epoch)
            last = min(self.steps_per_epoch, within + stop - step)
            for batch in range(within * self.accumulate, min(last * self.accumulate, self._batches_per_epoch)):
                yield self._own_part(order, batch)
            step += last - within

    @property
    def _batches_per_epoch(self) -> int:
        whole, rest = divmod(self.count, self.batch_size * self.processes)
        return whole + (rest >= self.processes)

    def _order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        return torch.randperm(self.count, generator=generator)

    def _own_part(self, order: Tensor, batch: int) -> list[int]:
        size = self.batch_size * self.processes
        everyone: list[int] = order[batch * size : (batch + 1) * size].tolist()
        # The last batch of an epoch may be smaller: its examples are divided evenly, at least one per process.
        start, stop = (len(everyone) * p // self.processes for p in (self.process, self.process + 1))
        return everyone[start:stop]


class _Numbered(Dataset[tuple[int, Any]]):
    """Examples with their positions, so that a broken batch can be reported."""

    def __init__(self, examples: Examples[Any]) -> None:
        self.examples = examples

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.examples[number]


@dataclass(frozen=True)
class _Collate:
    task: AnyTask

    def __call__(self, numbered: Sequence[tuple[int, Any]]) -> tuple[list[int], Any]:
        return [number for number, _ in numbered], self.task.collate([example for _, example in numbered])


def read_batches(
    task: AnyTask, examples: Examples[Any], numbers: Sequence[list[int]] | Iterator[list[int]], workers: int
) -> Iterator[tuple[list[int], Any]]:
    """The batches of these examples, each with its positions; `workers` processes read ahead."""
    # Its own generator: the loader would draw from the global one and change what the step draws.
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        _Numbered(examples),
        batch_sampler=numbers,
        num_workers=workers,
        collate_fn=_Collate(task),
        generator=generator,
        pin_memory=torch.cuda.is_available(),
    )
    batches: Iterator[tuple[list[int], Any]] = iter(loader)
    return batches


def evaluation_batches(count: int, batch_size: int, processes: int, process: int) -> list[list[int]]:
    """The batches of one process in an evaluation; every example is on exactly one process.

    >>> [evaluation_batches(5, batch_size=2, processes=2, process=process) for process in (0, 1)]
    [[[0, 2], [4]], [[1, 3]]]
    """
    check_counts("evaluate", batch_size=batch_size)
    own = list(range(process, count, processes))
    return [own[start : start + batch_size] for start in range(0, len(own), batch_size)]


def move(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device; on the CPU, where batches are created, the batch itself.

    >>> move({"a": [torch.zeros(1), "text"]}, torch.device("meta"))["a"][0].device.type
    'meta'
    """
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: move(getattr(batch, f.name), device) for f in fields(batch) if f.init})
    if isinstance(batch, Mapping):
        return {key: move(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move(value, device) for value in batch))
    return type(batch)(move(value, device) for value in batch) if isinstance(batch, tuple | list) else batch


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part.

    >>> derive_seed(0, "step", 1) == derive_seed(0, "step", 1), derive_seed(0, 1) == derive_seed(1, 0)
    (True, False)
    """
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_everything(*parts: int | str) -> None:
    """Set the generators of torch (CPU and CUDA), NumPy and Python from the parts.

    >>> seed_everything(3, "example"); first = torch.rand(())
    >>> seed_everything(3, "example"); bool(first == torch.rand(()))
    True
    """
    seed = derive_seed(*parts)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed queries every kind of device, 0.2 ms per call
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (other people's models use the global generator)
    random.seed(seed)
