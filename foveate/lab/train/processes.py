"""Processes and devices: which process this is, and how processes exchange data."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from foveate.errors import FoveateError
from foveate.lab.tasks import AnyTask, Loss

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_accelerator() -> Accelerator:
    """The accelerator of this process: a single one, or one of those that torchrun started.

    Raises FoveateError if torchrun started several processes and accelerate found one: each would train its own model.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision="no")  # `LossModule` does it
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        raise FoveateError(
            f"train: expected {started} processes working together, got {accelerator.num_processes}; "
            "start with torchrun --nproc-per-node N -m foveate train ..."
        )
    return accelerator


class LossModule(nn.Module):
    """The loss of a task as a module, so that a task can call any method of its model.

    Gradients are averaged over processes only for what runs inside the forward of a module; this is all of `Task.loss`.

    Args:
        task, model: `task.loss` is computed with the model.
        dtype: that matrix products are computed in; None computes in that of the model.
    """

    def __init__(self, task: AnyTask, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.task, self.model, self.dtype = task, model, dtype

    def forward(self, batch: Any, step: int) -> Loss:
        if self.dtype is None:
            return self.task.loss(self.model, batch, step)
        device = next(self.model.parameters()).device
        with torch.autocast(device.type, dtype=self.dtype):
            loss = self.task.loss(self.model, batch, step)
        return replace(loss, total=loss.total.float())


def gather_states(accelerator: Accelerator, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The states of all processes, in order, on every process."""
    if accelerator.num_processes == 1:
        return [state]
    from accelerate.utils import gather_object

    gathered: list[dict[str, Any]] = gather_object([state])
    return gathered


def sum_over_processes(accelerator: Accelerator, numbers: Tensor) -> Tensor:
    """The sum of a tensor over the processes."""
    if accelerator.num_processes == 1:
        return numbers
    total: Tensor = accelerator.reduce(numbers, reduction="sum")
    return total


def broadcast_buffers(model: nn.Module) -> None:
    """Broadcast the buffers of the first process, such as running means, which each process has updated on its own."""
    if distributed.is_initialized():
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)


@contextmanager
def close_process_group() -> Iterator[None]:
    """Leave the process group together, so that no process waits for another or exits while another still writes.

    The group lives as long as a wrapped model refers to it, and gloo's threads abort the process when they outlive the
    interpreter: what refers to it is collected first.
    """
    try:
        yield
        if _in_group():
            distributed.barrier()
    finally:
        if _in_group():
            gc.collect()
            distributed.destroy_process_group()


def _in_group() -> bool:
    return distributed.is_available() and distributed.is_initialized()
