"""Everything about a training that is not its task: optimiser, schedule, batches, length, seed. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import cos, pi
from typing import Literal, TypeAlias

from foveate.checks import check_number


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015).

    >>> Adam(lr=1e-4, betas=(0.9, 0.98), eps=1e-9).lr
    0.0001
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW:
    """Adam with the weights pulled to zero apart from the gradient (Loshchilov and Hutter 2019)."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Warm up by equal stairs, one an epoch, then multiply the rate at given epochs.

    `rate(e) = lr · min(1, (e + 1) / warmup) · factor^|{a in at: e >= a}|` in the epoch with e whole epochs behind it.

    Attributes:
        at: numbers of finished epochs at which the rate is multiplied: MCAN (10, 12), DAN (30,), SCAN (15,).
        factor: by which: MCAN 0.2, DAN and SCAN 0.1.
        warmup: epochs of warm-up: 4 gives MCAN's 1/4, 2/4, 3/4, 4/4.

    >>> [Steps(at=(4,), factor=0.2, warmup=2).rate(epoch, epochs=6) for epoch in (0.0, 0.9, 1.0, 3.9, 4.0)]
    [0.5, 0.5, 1.0, 1.0, 0.2]
    """

    at: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: int = 0

    def rate(self, epoch: float, epochs: float) -> float:
        """The factor on the learning rate after `epoch` epochs of `epochs`."""
        warm = min(1.0, (int(epoch) + 1) / self.warmup) if self.warmup else 1.0
        return warm * self.factor ** sum(epoch >= at for at in self.at)


@dataclass(frozen=True)
class Decay:
    """Multiply the rate by the same factor in every epoch after a given one.

    `rate(e) = lr · factor^max(0, e + 1 - after)`: 003's captioner has 0.99 after the 10th.

    >>> [round(Decay(after=1, factor=0.5).rate(epoch, epochs=4), 3) for epoch in (0.0, 0.9, 1.0, 2.5)]
    [1.0, 1.0, 0.5, 0.25]
    """

    after: int = 10
    factor: float = 0.99

    def rate(self, epoch: float, epochs: float) -> float:
        """The factor on the learning rate after `epoch` epochs of `epochs`."""
        return self.factor ** max(0, int(epoch) + 1 - self.after)


@dataclass(frozen=True)
class Cosine:
    """Warm up linearly, step by step, then fall along half a cosine to zero at the end; for small, short trainings.

    Attributes:
        warmup: epochs, or a fraction of one, until the full rate.

    >>> [round(Cosine(warmup=0.5).rate(epoch, epochs=2.5), 3) for epoch in (0.25, 0.5, 1.5, 2.5)]
    [0.5, 1.0, 0.5, 0.0]
    """

    warmup: float = 0.0

    def rate(self, epoch: float, epochs: float) -> float:
        """The factor on the learning rate after `epoch` epochs of `epochs`."""
        if epoch < self.warmup:
            return epoch / self.warmup
        done = (epoch - self.warmup) / max(epochs - self.warmup, 1e-12)
        return 0.5 * (1 + cos(pi * min(1.0, done)))


Optimiser: TypeAlias = Adam | AdamW | SGD
Schedule: TypeAlias = Steps | Decay | Cosine


@dataclass(frozen=True)
class Training:
    """How to train: nothing here depends on the task.

    Attributes:
        optimiser, schedule: the schedule's factor multiplies the optimiser's rate before every step.
        epochs: passes over the training data.
        batch_size: examples a process and a forward pass; a step sees `batch_size · accumulate · processes` of them.
        steps: stop after so many steps, in the middle of an epoch if need be; None trains all epochs.
        accumulate: batches whose gradients are added up for one step.
        clip: largest norm of the gradient; None leaves it as it is.
        patience: evaluations without a better objective after which training stops; None never.
        evaluate_every: epochs between evaluations; the end is always evaluated.
        save_every: seconds between checkpoints; one is also written at the end of every epoch.
        seed: of everything random: initial weights, order of the examples, dropout.
        workers: processes that read examples; 0 reads them in the training one.
        precision: "bf16" computes in bfloat16 on a GPU; the CPU always computes as the model is, where it is faster.
        tensorboard: write the log for TensorBoard too; needs the package.

    >>> Training(Adam(1e-4), epochs=2).batch_size
    64
    """

    optimiser: Optimiser
    schedule: Schedule = field(default_factory=Steps)
    epochs: int = 1
    batch_size: int = 64
    steps: int | None = None
    accumulate: int = 1
    clip: float | None = None
    patience: int | None = None
    evaluate_every: int = 1
    save_every: float = 300.0
    seed: int = 0
    workers: int = 0
    precision: Literal["fp32", "bf16"] = "fp32"
    tensorboard: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every"):
            check_number("Training", name, getattr(self, name), least=1, advice="use at least one")
        for name in ("steps", "patience"):
            if getattr(self, name) is not None:
                check_number("Training", name, getattr(self, name), least=1, advice="use at least one, or none")
        if self.clip is not None:
            check_number("Training", "clip", self.clip, above=0, advice="use none to leave gradients as they are")
        check_number("Training", "lr", self.optimiser.lr, above=0, advice="try 1e-4")
        for name in ("seed", "workers", "save_every"):
            check_number("Training", name, getattr(self, name), least=0, advice="use zero or more")
