"""Overhead of the training loop over a bare step of forward, backward, clipping and optimiser.

    python benchmarks/loop_overhead.py

Both train the same model on the same batches. The time of a step is the processor time between two calls of the loss,
which does not include other programs. The loop adds seeds, learning rates, sums over processes, the check for NaN and
the log.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS, Examples, Loss, Task
from foveate.lab.train import Recipe, fit, override, to_config
from foveate.lab.train.batches import Plan, read_batches
from foveate.lab.train.config import build_optimiser

STEPS = 20
ROUNDS = 5
CASES = {
    "tiny, one image": "limit=64 hidden=32 heads=2 layers=1 channels=8,8,8,8 blocks=0 batch_size=1",
    "hidden 96, eight": "limit=160 hidden=96 channels=32,64,96,96",
}


class Held:
    """Examples that are created once, so that drawing images is not measured."""

    def __init__(self, examples: Examples) -> None:
        self.rows = [examples[number] for number in range(len(examples))]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.rows[number]

    def fingerprint(self) -> str:
        return "held"


def timed(kind: type[Task], held: dict[str, Held], ticks: list[float]) -> type[Task]:
    """The task with a loss that records the time."""

    class Timed(kind):  # type: ignore[misc, valid-type]
        def examples(self, split: str, root: Path | None) -> Held:
            return held[split]

        def loss(self, model: nn.Module, batch: Any, step: int) -> Loss:
            ticks.append(time.process_time())
            return super().loss(model, batch, step)

    return Timed


def bare(task: Task, recipe: Recipe) -> None:
    training = recipe.training
    torch.manual_seed(0)
    model = task.build_model().train()
    optimiser = build_optimiser(training.optimiser, model.parameters())
    examples = task.examples("train", None)
    plan = Plan(len(examples), training.batch_size)
    for step, (_, batch) in enumerate(read_batches(task, examples, plan.batches(0, STEPS), 0)):
        loss = task.loss(model, batch, step)
        (loss.total / loss.count).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip or float("inf"))
        optimiser.step()
        optimiser.zero_grad()


def measure(case: str) -> tuple[float, float]:
    recipe = override(RECIPES["vqa-mcan-scenes"](), ["images.start=random", "trained=yes", *CASES[case].split()])
    recipe = replace(recipe, training=replace(recipe.training, epochs=STEPS, steps=STEPS, evaluate_every=10**6))
    kind = TASKS[recipe.task]
    plain = kind.from_data(recipe.settings, None)
    held = {split: Held(plain.examples(split, None)) for split in ("train", "val")}
    held["val"].rows = held["val"].rows[:1]
    ticks: list[float] = []
    task = timed(kind, held, ticks).from_vocabulary(recipe.settings, plain.vocabulary())
    times: dict[str, list[list[float]]] = {"bare": [], "loop": []}
    for _ in range(ROUNDS):
        for which in times:
            ticks.clear()
            if which == "bare":
                bare(task, recipe)
            else:
                with TemporaryDirectory() as directory:
                    fit(task, recipe.training, Path(directory), config=to_config(recipe), progress=False)
            times[which].append([b - a for a, b in pairwise(ticks[2:])])
    return least(times["bare"]), least(times["loop"])


def least(rounds: list[list[float]]) -> float:
    """Mean over the steps of the smallest time of each over the rounds, since other programs only add time."""
    return statistics.mean(min(step) for step in zip(*rounds, strict=True))


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'model':20s} {'bare ms':>9s} {'loop ms':>9s} {'overhead':>9s}")
    for case in CASES:
        without, within = measure(case)
        print(f"{case:20s} {without * 1e3:9.2f} {within * 1e3:9.2f} {within / without - 1:9.1%}")


if __name__ == "__main__":
    main()
