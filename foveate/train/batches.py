"""Which examples make which batch, on which process; and the loaders that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from foveate.errors import DataError
from foveate.tasks import Examples, Task
from foveate.train.seeds import derive_seed


@dataclass(frozen=True)
class Plan:
    """The order of the examples in a training: a function of the seed, so that any position can be found again.

    Each epoch has an order of its own. It is cut into global batches of `batch_size · processes`, of which each
    process takes one part, and `accumulate` of them make a step. The last batch of an epoch is shared out evenly;
    when it has fewer examples than there are processes, it is left out.

    Attributes:
        count: examples of the training split.
        batch_size: of one process.
        accumulate: batches a step.
        processes, process: how many there are and which one this is.
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
                f"train: expected at least one example a process, got {self.count} for {self.processes}; "
                "check the training split"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every example is seen once."""
        return -(-self._batches_per_epoch // self.accumulate)

    def parts(self, step: int) -> int:
        """How many batches make this step: `accumulate`, or fewer at the end of an epoch."""
        behind = (step % self.steps_per_epoch) * self.accumulate
        return min(self.accumulate, self._batches_per_epoch - behind)

    def batches(self, start: int, stop: int) -> Iterator[list[int]]:
        """The numbers of the examples of this process, batch by batch, from step `start` up to step `stop`."""
        step = start
        while step < stop:
            epoch, within = divmod(step, self.steps_per_epoch)
            order = self._order(epoch)
            last = min(self.steps_per_epoch, within + stop - step)
            for batch in range(within * self.accumulate, min(last * self.accumulate, self._batches_per_epoch)):
                yield self._share(order, batch)
            step += last - within

    @property
    def _batches_per_epoch(self) -> int:
        whole, rest = divmod(self.count, self.batch_size * self.processes)
        return whole + (rest >= self.processes)

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed(derive_seed(self.seed, "order", epoch))
        return torch.randperm(self.count, generator=generator).tolist()

    def _share(self, order: list[int], batch: int) -> list[int]:
        size = self.batch_size * self.processes
        everyone = order[batch * size : (batch + 1) * size]
        start, stop = (len(everyone) * p // self.processes for p in (self.process, self.process + 1))
        return everyone[start:stop]


class _Numbered(Dataset):
    """Examples that carry their number, so that a broken batch can be named."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __getitem__(self, number: int) -> tuple[int, Any]:
        return number, self.examples[number]


@dataclass(frozen=True)
class _Collate:
    task: Task

    def __call__(self, numbered: Sequence[tuple[int, Any]]) -> tuple[list[int], Any]:
        return [number for number, _ in numbered], self.task.collate([example for _, example in numbered])


def read_batches(
    task: Task, examples: Examples, numbers: Sequence[list[int]] | Iterator[list[int]], workers: int
) -> Iterator[tuple[list[int], Any]]:
    """The batches of these examples, each with its numbers; `workers` processes read ahead."""
    # a generator of its own: the loader would draw from the global one
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        _Numbered(examples),
        batch_sampler=numbers,
        num_workers=workers,
        collate_fn=_Collate(task),
        generator=generator,
        pin_memory=torch.cuda.is_available(),
    )
    return iter(loader)


def share_of(count: int, batch_size: int, processes: int, process: int) -> list[list[int]]:
    """The batches of one process in an evaluation: every example on exactly one process.

    >>> share_of(5, batch_size=2, processes=2, process=0), share_of(5, batch_size=2, processes=2, process=1)
    ([[0, 2], [4]], [[1, 3]])
    """
    own = list(range(process, count, processes))
    return [own[start : start + batch_size] for start in range(0, len(own), batch_size)]


def move(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device; on the CPU, where batches are made, the batch itself.

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
