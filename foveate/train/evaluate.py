"""Measure a model on a split: every example counted once, on one process or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from tqdm import tqdm

from foveate.errors import DataError
from foveate.tasks import Examples, Task
from foveate.train.batches import move, read_batches, share_of
from foveate.train.processes import gather_states, make_accelerator, share_buffers
from foveate.train.seeds import seed_everything

if TYPE_CHECKING:
    from accelerate import Accelerator


def evaluate(
    task: Task,
    model: nn.Module,
    examples: Examples,
    *,
    batch_size: int = 64,
    workers: int = 0,
    accelerator: Accelerator | None = None,
    progress: bool = False,
) -> dict[str, float]:
    """The metrics of a task over examples, the same on every process.

    Args:
        task: says how to predict and what to measure.
        model: moved to the device of the process, left in the mode it was in.
        examples: each is on one process and counted once.
        batch_size: examples a forward pass; does not change the result.
        workers: processes that read examples.
        accelerator: of the training; a new one when absent.
        progress: draw a bar.

    Returns:
        the numbers by name.
    """
    accelerator = accelerator or make_accelerator()
    if len(examples) == 0:
        raise DataError("evaluate: expected at least one example, got none; check the split")
    numbers = share_of(len(examples), batch_size, accelerator.num_processes, accelerator.process_index)
    metrics, training = task.metrics(), model.training
    share_buffers(model.to(accelerator.device))
    seed_everything("evaluate")
    model.eval()
    try:
        with torch.no_grad():
            hidden = None if progress and accelerator.is_main_process else True
            for _, batch in tqdm(
                read_batches(task, examples, numbers, workers),
                total=len(numbers),
                desc="evaluate",
                leave=False,
                disable=hidden,
            ):
                batch = move(batch, accelerator.device)
                metrics.update(task.predict(model, batch), batch)
    finally:
        model.train(training)
    merged = task.metrics()
    for state in gather_states(accelerator, metrics.state()):
        merged.merge(state)
    return merged.compute()
