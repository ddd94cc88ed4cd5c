"""The engine: which process this is, on which device, and how processes talk to each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed, nn

from foveate.errors import FoveateError
from foveate.tasks import Loss, Task

if TYPE_CHECKING:
    from accelerate import Accelerator


def make_accelerator(precision: str = "fp32") -> Accelerator:
    """The engine of this process: alone, or one of those that torchrun started.

    FoveateError when torchrun started several and the engine found one, which would train as many models.
    """
    from accelerate import Accelerator

    on_gpu = torch.cuda.is_available()
    accelerator = Accelerator(cpu=not on_gpu, mixed_precision="bf16" if on_gpu and precision == "bf16" else "no")
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        raise FoveateError(
            f"train: expected {started} processes working together, got {accelerator.num_processes}; "
            "start with torchrun --nproc-per-node N -m foveate train ..."
        )
    return accelerator


class LossModule(nn.Module):
    """The loss of a task as a module: what runs inside its forward is what several processes average gradients of.

    So a task may call any method of its model, not only forward.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any) -> Loss:
        return self.task.loss(self.model, batch)


def gather_states(accelerator: Accelerator, state: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of every process, in order, on every process."""
    if accelerator.num_processes == 1:
        return [state]
    from accelerate.utils import gather_object

    return gather_object([state])


def add_up(accelerator: Accelerator, numbers: Tensor) -> Tensor:
    """The sum of a tensor over the processes."""
    return accelerator.reduce(numbers, reduction="sum") if accelerator.num_processes > 1 else numbers


def share_buffers(model: nn.Module) -> None:
    """Give every process the buffers of the first one, such as running means, which each has added up alone."""
    if distributed.is_initialized():
        for buffer in model.buffers():
            distributed.broadcast(buffer, 0)


@contextmanager
def processes_ended() -> Iterator[None]:
    """Close the connection between processes at the end, so that none waits for another."""
    try:
        yield
    finally:
        if distributed.is_available() and distributed.is_initialized():
            distributed.destroy_process_group()
