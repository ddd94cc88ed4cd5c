"""What a counter by modulated convolutions adds to a trained MCAN, for softmax and for one ellipse.

OMP_NUM_THREADS=1 python benchmarks/counting.py scenes-vqa --images 2000 --epochs 3 --seed 0

The run stays as it is up to the attention. The layers behind it are trained on, without a counter (the rival) and with
one that starts at zero, on the same questions in the same order, each by the same number of steps.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate import mechanism
from foveate.lab import hub
from foveate.lab.data.samples import Question
from foveate.lab.losses import answer_bce
from foveate.lab.metrics import AnswerAccuracy, choose_answers
from foveate.lab.models.mcan import MCAN, ModulatedCounter
from foveate.lab.tasks.images import encoder_input
from foveate.lab.tasks.vqa import VQA

SHOWN = ("accuracy", "accuracy/number", "accuracy/yes/no", "accuracy/other")
BATCH = 64


@dataclass
class Seen:
    """All that the frozen part of the run computes for the questions of a split."""

    images: Tensor  # (P, N, D)
    index: Tensor  # (B,), into images
    summary: Tensor  # (B, 2 D)
    question: Tensor  # (B, D)
    contexts: dict[str, Tensor]  # (B, D) by mechanism
    targets: Tensor  # (B, A)
    questions: list[Question]


@torch.no_grad()
def see(task: VQA, model: MCAN, split: str, images: int, names: list[str]) -> Seen:
    """The frozen part, once."""
    examples = task.examples(split, None)
    parts, questions, first = [], [], 0
    attention = {name: mechanism(name).eval() for name in names}
    for start in range(0, min(images, len(examples)), 8):
        batch = task.collate([examples[n] for n in range(start, min(start + 8, images, len(examples)))])
        answered = task.run(model, batch)
        reading, grid = answered.reading, answered.image[-1].grid
        found = model.image(encoder_input(model.image, batch.images))
        contexts = [attend(reading.scores, reading.values, grid=grid).context for attend in attention.values()]
        own = model.features(found.values)
        index = torch.arange(len(own)) if batch.index is None else batch.index
        parts.append((own, index + first, reading.question, answered.question[0].context, batch.targets, contexts))
        questions += batch.questions
        first += len(own)
    columns = list(zip(*parts, strict=True))
    images_of, index, summary, question, targets = (torch.cat(column) for column in columns[:5])
    by_name = {name: torch.cat([part[i] for part in columns[5]]) for i, name in enumerate(names)}
    return Seen(images_of, index, summary, question, by_name, targets, questions)


class Head(nn.Module):
    """The layers of MCAN behind its attention, with a counter or without."""

    def __init__(self, model: MCAN, bottlenecks: int) -> None:
        super().__init__()
        self.out, self.norm, self.answers = (
            copy.deepcopy(part).train() for part in (model.flat_image.out, model.norm, model.answers)
        )
        self.counter = ModulatedCounter(model.text.dim, bottlenecks) if bottlenecks else None

    def forward(self, seen: Seen, rows: Tensor, name: str, grid: tuple[int, int]) -> Tensor:
        fused = seen.summary[rows] + self.out(seen.contexts[name][rows])
        if self.counter is not None:
            fused = fused + self.counter(seen.images[seen.index[rows]], seen.question[rows], grid)
        scores: Tensor = self.answers(self.norm(fused))
        return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--images", type=int, default=2000, help="the first ones of train, with all their questions")
    parser.add_argument("--val", type=int, default=10**9, help="the first images of val; all by default")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--bottlenecks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mechanisms", nargs="+", default=["softmax", "continuous-softmax"])
    arguments = parser.parse_args()
    loaded = hub.load(arguments.run)
    task, model = loaded.task, loaded.model.eval()
    assert isinstance(task, VQA)
    assert isinstance(model, MCAN)
    train = see(task, model, "train", arguments.images, arguments.mechanisms)
    val = see(task, model, "val", arguments.val, arguments.mechanisms)
    print(f"{len(train.targets)} questions of train, {len(val.targets)} of val", flush=True)
    cells = train.images.shape[1]
    grid = (int(cells**0.5), int(cells**0.5))
    for name in arguments.mechanisms:
        for bottlenecks in (0, arguments.bottlenecks):
            torch.manual_seed(arguments.seed)
            head = Head(model, bottlenecks)
            order = torch.Generator().manual_seed(arguments.seed)
            optimiser = torch.optim.AdamW(head.parameters(), lr=1.5e-3, betas=(0.9, 0.98), weight_decay=0.01)
            steps = arguments.epochs * (len(train.targets) // BATCH)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1.5e-3, total_steps=max(steps, 2), pct_start=0.1)
            for _ in range(arguments.epochs):
                rows = torch.randperm(len(train.targets), generator=order)
                for part in rows[: len(rows) // BATCH * BATCH].split(BATCH):
                    loss = answer_bce(head(train, part, name, grid), train.targets[part]) / BATCH
                    optimiser.zero_grad()
                    loss.backward()
                    nn.utils.clip_grad_norm_(head.parameters(), 5.0)
                    optimiser.step()
                    schedule.step()
            accuracy = AnswerAccuracy(task.settings.rule)
            with torch.no_grad():
                for part in torch.arange(len(val.targets)).split(BATCH):
                    questions = [val.questions[n] for n in part.tolist()]
                    choices = [question.choices for question in questions]
                    answers = choose_answers(head.eval()(val, part, name, grid), task.answers, choices)
                    accuracy.update(answers, questions)
            metrics = accuracy.compute()
            numbers = "  ".join(f"{key} {metrics[key]:.4f}" for key in SHOWN if key in metrics)
            print(f"{name}, counter of {bottlenecks}:  {numbers}", flush=True)


if __name__ == "__main__":
    main()
