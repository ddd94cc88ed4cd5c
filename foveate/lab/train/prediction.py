"""Predictions of a model for a whole split, as rows of the evaluation server's result file."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from foveate.io import ProgressBar
from foveate.lab.tasks import AnyTask, Examples
from foveate.lab.train.batches import evaluation_batches, move, read_batches
from foveate.lab.train.processes import broadcast_buffers, gather_states, make_accelerator


def predict(
    task: AnyTask,
    model: nn.Module,
    examples: Examples[Any],
    *,
    device: torch.device | str | None = None,
    batch_size: int = 64,
    workers: int = 0,
) -> list[dict[str, Any]] | None:
    """The rows of the result file in the order of the examples, the same on every process.

    Args:
        task: defines predictions and rows.
        model: moved to the device; in evaluation mode.
        examples: each is predicted on one process.
        device: to compute on; that of the process by default, a GPU if there is one.
        batch_size: examples per forward pass; does not change the predictions.
        workers: processes that read examples.

    Returns:
        the rows, or None if the task has no result file.
    """
    accelerator = make_accelerator()
    place = accelerator.device if device is None else torch.device(device)
    # Whole batches go to the processes in turn, so that sorting them restores the order of the examples.
    numbers = evaluation_batches(len(examples), batch_size, 1, 0)
    numbers = numbers[accelerator.process_index :: accelerator.num_processes]
    broadcast_buffers(model.to(place).eval())
    rows: dict[str, list[dict[str, Any]]] = {}
    total, show = sum(map(len, numbers)), accelerator.is_main_process
    with torch.no_grad(), ProgressBar("predict", total, unit="example", show=show, leave=False) as bar:
        for positions, batch in read_batches(task, examples, numbers, workers):
            found = task.result_rows(task.predict(model, move(batch, place)), batch)
            if found is None:
                return None
            rows[f"{positions[0]:012d}"] = found
            bar.update(len(positions))
    merged: dict[str, list[dict[str, Any]]] = {}
    for state in gather_states(accelerator, rows):
        merged |= state
    return [row for _, own in sorted(merged.items()) for row in own]
