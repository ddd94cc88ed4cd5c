"""The fields of a training as frozen data: optimiser, schedule, batches, length and seed; the optimiser they define."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import cos, pi
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from foveate.checks import check_number
from foveate.errors import WrongValue


@dataclass(frozen=True)
class AdamMoments:
    """The settings that Adam and AdamW share."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class Adam(AdamMoments):
    """Adam (Kingma and Ba 2015).

    >>> Adam(lr=1e-4, betas=(0.9, 0.98), eps=1e-9).lr
    0.0001
    """

    weight_decay: float = 0.0


@dataclass(frozen=True)
class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019)."""

    weight_decay: float = 0.01


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum."""

    lr: float
    momentum: float = 0.9
    weight_decay: float = 0.0


@dataclass(frozen=True)
class Steps:
    """Warm up in equal steps, one per epoch, then multiply the learning rate at given epochs.

    `rate(e) = lr · min(1, (e + 1) / warmup) · factor^|{a in at: e >= a}|` after e completed epochs

    Attributes:
        at: numbers of completed epochs at which the rate is multiplied: MCAN (10, 12), DAN (30,), SCAN (15,).
        factor: of the multiplication: MCAN 0.2, DAN and SCAN 0.1.
        warmup: epochs of warm-up: 4 is MCAN's 1/4, 2/4, 3/4, 4/4.

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
    """Multiply the learning rate by the same factor in every epoch after a given one.

    `rate(e) = lr · factor^max(0, e + 1 - after)`; Martins et al. 2020 use 0.99 after the 10th epoch.

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
    """Warm up linearly, then decay to zero along half a cosine; for small, short trainings.

    Attributes:
        warmup: epochs, possibly a fraction of one, until the full learning rate.

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
    """The training of a model: nothing here depends on the task.

    Attributes:
        optimiser, schedule: the schedule multiplies the learning rate of the optimiser before every step.
        epochs: passes over the training data.
        batch_size: examples per process and forward pass; a step uses `batch_size · accumulate · processes` of them.
        steps: stop after this many steps, also in the middle of an epoch; None trains all epochs.
        accumulate: batches whose gradients are accumulated for one step.
        clip: maximum norm of the gradient; None does not clip it.
        reduction: "mean" takes the gradient of the mean loss over the items of a step, "sum" that of the sum, which is
            what SCAN and BFAN clip: at 2.0 the sum over 128 pairs is clipped in every step, the mean in none.
        average: decay of an exponential moving average of the weights, which is evaluated and kept instead of the last
            weights; 0.99 averages over about a hundred steps. None keeps the weights themselves.
        patience: stop after this many evaluations without a better objective; None never stops early.
        evaluate_every: epochs between evaluations; the end is always evaluated.
        curve_points: small evaluations in between, evenly spaced over all steps, that are only written to the log for
            the curves of a report; which weights are kept and when training stops do not depend on them.
        curve_examples: the number of examples of val, the first ones, that they use.
        save_every: seconds between checkpoints; one is also written at the end of every epoch.
        seed: of everything random: initial weights, order of the examples, dropout.
        workers: processes that read examples; 0 reads them in the training process.
        precision: "bf16" and "fp16" compute matrix products in bfloat16 or float16 on a GPU, the latter with a scaled
            loss. On a CPU, "bf16" uses the type of the model, which is faster, and "fp16" raises FoveateError.
        gradient_checkpointing: compute the activations of layers again in the backward pass instead of keeping them,
            which takes less memory and more time; the weights are the same, bit for bit.
        tracker: pass the log on to "tensorboard" (files in the directory of the run), "mlflow", "wandb" or "trackio";
            each needs its package.
        tensorboard: the same as tracker="tensorboard".

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
    reduction: Literal["mean", "sum"] = "mean"
    average: float | None = None
    patience: int | None = None
    evaluate_every: int = 1
    curve_points: int = 0
    curve_examples: int = 64
    save_every: float = 300.0
    seed: int = 0
    workers: int = 0
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    tensorboard: bool = False
    tracker: Literal["tensorboard", "mlflow", "wandb", "trackio"] | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every", "curve_examples"):
            check_number("Training", name, getattr(self, name), least=1, advice="use at least one")
        for name in ("steps", "patience"):
            if getattr(self, name) is not None:
                check_number("Training", name, getattr(self, name), least=1, advice="use at least one, or none")
        if self.clip is not None:
            check_number("Training", "clip", self.clip, above=0, advice="use none for no clipping")
        if self.average is not None and not 0 < self.average < 1:
            raise WrongValue(f"Training: expected average between 0 and 1, got {self.average:g}; try 0.99, or none")
        check_number("Training", "lr", self.optimiser.lr, above=0, advice="try 1e-4")
        for name in ("seed", "workers", "save_every", "curve_points"):
            check_number("Training", name, getattr(self, name), least=0, advice="use zero or more")


OPTIMISERS: dict[type, type[Optimizer]] = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW, SGD: torch.optim.SGD}


def build_optimiser(settings: Optimiser, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimiser of the parameters that require a gradient.

    >>> build_optimiser(SGD(0.1, momentum=0.9), [nn.Parameter(torch.zeros(1))]).defaults["momentum"]
    0.9
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return OPTIMISERS[type(settings)](trained, **asdict(settings))


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def scale_and_clip(gradients: list[Tensor], scale: Tensor | float, clip: float | None) -> Tensor:
    """Multiply gradients by `scale`, then clip them to the norm `clip`, in place, and return the norm before clipping.

    `g ← s g · min(1, clip / ‖s g‖)` with the Euclidean norm over all gradients together.

    >>> gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    >>> float(scale_and_clip(gradients, 2.0, clip=5.0)), gradients[1].tolist()
    (10.0, [4.0])
    """
    if not gradients:
        return torch.zeros(())
    # One fused call over all gradients, instead of one small kernel per parameter.
    norms = torch._foreach_norm(gradients)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])) * scale
    # min(1, clip / norm) without waiting for the device; the caller checks the norm for NaN before the step.
    factor = scale if clip is None else scale * (clip / norm.clamp_min(clip))
    torch._foreach_mul_(gradients, factor)
    return norm
