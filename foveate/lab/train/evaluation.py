"""Evaluation and predictions of a model on a split: every example counts once, on one process or many."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import torch
from torch import nn

from foveate.errors import DataError
from foveate.io import ProgressBar
from foveate.lab.data.samples import DataRoot
from foveate.lab.features import Familiarity
from foveate.lab.tasks import AnyTask, Examples, Metrics
from foveate.lab.train.batches import evaluation_batches, move, read_batches, seed_everything
from foveate.lab.train.processes import broadcast_buffers, gather_states, make_accelerator
from foveate.lab.train.records import FAMILIARITY
from foveate.lab.train.weights import save_tensors

if TYPE_CHECKING:
    from accelerate import Accelerator
    from typing_extensions import Unpack

MOST_FAMILIAR = 1000  # examples per split that are read to know what images look like


class CollectOptions(TypedDict, total=False):
    """Options of `collect`, which has their defaults."""

    batch_size: int
    workers: int
    accelerator: Accelerator | None
    progress: bool


def evaluate(
    task: AnyTask, model: nn.Module, examples: Examples[Any], **options: Unpack[CollectOptions]
) -> dict[str, float]:
    """The metrics of a task over examples, the same on every process.

    Args:
        task: defines predictions and metrics.
        model: moved to the device of the process; its mode is restored.
        examples: each is evaluated on one process.
        options: `batch_size`, examples per forward pass, 64 by default, which does not change the result; `workers`,
            processes that read examples, none by default; `accelerator` of the training, by default a new one;
            `progress=True` shows a progress bar.

    Returns:
        the metrics by name.
    """
    return collect(task, model, examples, **options).compute()


def collect(
    task: AnyTask,
    model: nn.Module,
    examples: Examples[Any],
    *,
    batch_size: int = 64,
    workers: int = 0,
    accelerator: Accelerator | None = None,
    progress: bool = False,
    limit: int | None = None,
) -> Metrics[Any, Any]:
    """The metrics of a task after all examples, or the first `limit`, on every process; arguments as in `evaluate`."""
    accelerator = accelerator or make_accelerator()
    if len(examples) == 0:
        raise DataError("evaluate: expected at least one example, got none; check the split")
    count = len(examples) if limit is None else min(limit, len(examples))
    numbers = evaluation_batches(count, batch_size, accelerator.num_processes, accelerator.process_index)
    metrics, training = task.metrics(), model.training
    broadcast_buffers(model.to(accelerator.device))
    seed_everything("evaluate")
    model.eval()
    try:
        with torch.no_grad():
            show = progress and accelerator.is_main_process
            with ProgressBar("evaluate", sum(map(len, numbers)), unit="example", show=show, leave=False) as bar:
                for used, batch in read_batches(task, examples, numbers, workers):
                    batch = move(batch, accelerator.device)
                    metrics.update(task.predict(model, batch), batch)
                    bar.update(len(used))
    finally:
        model.train(training)
    merged = task.metrics()
    for state in gather_states(accelerator, metrics.state()):
        merged.merge(state)
    if accelerator.device.type != "cpu":
        merged.place(accelerator.device)
    return merged


def evaluate_together(collected: Sequence[Metrics[Any, Any]]) -> dict[str, float]:
    """The metrics of an ensemble: the scores of several runs on the same examples, averaged.

    Args:
        collected: what `collect` returned for each run.

    Raises ValueError for a task whose scores cannot be averaged.
    """
    first, *others = collected
    return first.compute_together(others) if others else first.compute()


def save_familiarity(task: AnyTask, model: nn.Module, directory: Path, root: DataRoot) -> bool:
    """Keep with a run what its training images look like to the model; False if the task has none, or too few.

    Args:
        task, model: of the run; the model is in evaluation mode.
        directory: of the run.
        root: directory of the data.
    """
    found = {}
    for split in ("train", "val"):
        examples = task.examples(split, root)
        step = max(1, len(examples) // MOST_FAMILIAR)
        several = [examples[n] for n in range(0, len(examples), step)]
        with torch.no_grad():
            parts = [task.mean_image_features(model, several[n : n + 64]) for n in range(0, len(several), 64)]
        found[split] = [part for part in parts if part is not None]
    if not found["train"] or not found["val"]:
        return False
    # Examples may repeat an image.
    train, val = (torch.cat(found[split]).unique(dim=0) for split in ("train", "val"))
    familiarity = Familiarity.fit(train, val)
    if familiarity is not None:
        save_tensors(
            directory / FAMILIARITY, {n: t.half() if n == "directions" else t for n, t in familiarity.tensors().items()}
        )
    return familiarity is not None


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
