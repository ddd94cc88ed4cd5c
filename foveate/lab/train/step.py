"""One optimiser step: loss and gradient over batches and processes, half precision, averaged weights, less memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foveate.errors import DataError, FoveateError, NotANumber, WrongValue
from foveate.lab.tasks import AnyTask, Loss
from foveate.lab.train.batches import Plan, move
from foveate.lab.train.config import Training, build_optimiser, scale_and_clip, set_rate
from foveate.lab.train.processes import LossModule, sum_over_processes
from foveate.lab.train.weights import load_checkpoint, save_checkpoint
from foveate.signals import StopRequest

if TYPE_CHECKING:
    from accelerate import Accelerator

Batches: TypeAlias = Iterator[tuple[list[int], Any]]


@dataclass(frozen=True)
class Step:
    """The outcome of a step, equal on all processes except for `numbers`.

    Attributes:
        loss, parts: means of the loss and of its parts.
        norm: of the gradient before clipping; 0 if the step changed nothing because a scaled gradient overflowed.
        examples: number of examples of all processes.
        numbers: positions of the examples of this process.
        stop, save: True if any process asked for it.
    """

    loss: float
    norm: float
    numbers: list[int]
    parts: dict[str, float]
    examples: int = 0
    stop: bool = False
    save: bool = False

    @property
    def finite(self) -> bool:
        """True if loss and gradient are finite; otherwise the step has changed no weights."""
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Stepper:
    """Takes the steps of a training; it holds the optimiser, the scale of the loss and the average of the weights.

    Args:
        task: computes the loss.
        training: optimiser, clipping, reduction, precision, averaging.
        accelerator: of the processes.
        model: on the device of the accelerator.
        plan: the batches of each step.
        before: steps that the run had taken that this training starts from.
    """

    def __init__(
        self, task: AnyTask, training: Training, accelerator: Accelerator, model: nn.Module, plan: Plan, before: int
    ) -> None:
        self.training, self.accelerator, self.plan, self.before = training, accelerator, plan, before
        self.optimiser = build_optimiser(training.optimiser, model.parameters())
        dtype = half_type(training.precision, accelerator.device)
        self.loss: nn.Module = accelerator.prepare(LossModule(task, model, dtype))
        self.scale = LossScale() if dtype is torch.float16 else None
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.average = None if training.average is None else WeightAverage(model, training.average)

    def take(self, step: int, stream: Batches, rate: float, *, stop: StopRequest, save: bool) -> Step:
        """Change the weights by the gradient of the next batches, unless it is not finite.

        Args:
            step: steps taken before this one.
            stream: batches with the positions of their examples.
            rate: factor on the learning rate.
            stop, save: requests of this process, which all processes learn from the `Step`; a signal may arrive while
                the step is computed.
        """
        set_rate(self.optimiser, self.training.optimiser.lr * rate)
        numbers: list[int] = []
        try:
            losses = self._backward(step, stream, numbers)
        except NotANumber:  # attention notices weights that have overflowed before the loss does
            return Step(math.nan, math.nan, numbers, {})
        names = sorted(losses[0].parts)
        sums = sum_over_processes(self.accelerator, _stack(losses, names, [len(numbers), bool(stop), save]))
        # Gradients are means over processes of sums over examples: this scale makes them means, or sums, over all.
        items = sums[-4].clamp_min(1) if self.training.reduction == "mean" else torch.ones_like(sums[-4])
        scale = self.accelerator.num_processes / items
        if self.scale is not None:
            scale = scale / self.scale.value
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        length = scale_and_clip(gradients, scale, self.training.clip).to(sums)
        # The only place in a step where the CPU waits for the GPU.
        *totals, count, examples, stopped, saved, norm = torch.cat([sums, length.reshape(1)]).tolist()
        loss, *parts = (total / max(count, 1) for total in totals)
        if math.isfinite(loss) and math.isfinite(norm):
            self._change_weights(step)
        elif math.isfinite(loss) and self.scale is not None and not self.scale.is_least:
            self.scale.lower()  # the scaled gradient has overflowed in float16: this step changes nothing
            norm = 0.0
        self.optimiser.zero_grad(set_to_none=True)
        named = dict(zip(names, parts, strict=True))
        return Step(loss, norm, numbers, named, int(examples), stopped > 0, saved > 0)

    def _backward(self, step: int, stream: Batches, numbers: list[int]) -> list[Loss]:
        """Accumulate the gradients of a step's batches; processes average theirs after the last one.

        The positions of the examples are appended to `numbers`.
        """
        losses: list[Loss] = []
        parts = self.plan.parts(step)
        for part in range(parts):
            used, batch = next(stream)
            numbers += used
            with nullcontext() if part == parts - 1 else self.accelerator.no_sync(self.loss):
                loss = self.loss(move(batch, self.accelerator.device), self.before + step)
                self.accelerator.backward(loss.total if self.scale is None else loss.total * self.scale.value)
            losses.append(loss)
        return losses

    def _change_weights(self, step: int) -> None:
        self.optimiser.step()
        if self.average is not None:
            self.average.update(step)
        if self.scale is not None:
            self.scale.keep()

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Within the body the model has the weights that are evaluated and kept: the average, if there is one."""
        return nullcontext() if self.average is None else self.average.applied()

    def save(self, path: Path, model: nn.Module, position: dict[str, int]) -> None:
        """Write a checkpoint; see `save_checkpoint`."""
        scale = {} if self.scale is None else {"scale": self.scale.value, "good": self.scale.good}
        save_checkpoint(path, model, self.optimiser, position | scale, self._averaged())

    def restore(self, path: Path, model: nn.Module) -> dict[str, int]:
        """Restore a checkpoint and return its position; see `load_checkpoint`."""
        position = load_checkpoint(path, model, self.optimiser, self._averaged())
        if self.scale is not None:
            self.scale = LossScale(position.pop("scale", self.scale.value), position.pop("good", 0))
        return position

    def _averaged(self) -> dict[str, Tensor] | None:
        return None if self.average is None else self.average.tensors


def _stack(losses: list[Loss], names: list[str], flags: list[int]) -> Tensor:
    """One vector to be summed over processes: total, the parts by name, count, the flags."""
    if any(sorted(loss.parts) != names for loss in losses):
        raise DataError(
            f"loss: expected the same parts in every batch, got {[sorted(loss.parts) for loss in losses]}; "
            "return zero for a part that does not apply"
        )
    dtype = losses[0].total.dtype
    rows = [torch.stack([loss.total, *(loss.parts[name].to(dtype) for name in names)]).detach() for loss in losses]
    counts = rows[0].new_tensor([sum(loss.count for loss in losses), *flags])
    return torch.cat([sum(rows[1:], rows[0]), counts])


class WeightAverage:
    """`a ← d a + (1 − d) w` after every step, with d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps forgets the random weights that training begins with.

    Args:
        model: whose parameters are averaged; buffers are statistics already and stay as they are.
        decay: below one; 0.99 averages over about a hundred steps.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(layer, decay=0.9)
    >>> with average.applied():
    ...     bool(torch.equal(layer.weight, average.tensors["weight"]))
    True
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.tensors = {name: p.detach().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after `step` steps."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        names, weights = zip(*self._trained(), strict=True)
        torch._foreach_lerp_([self.tensors[name] for name in names], [p.detach() for p in weights], share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the body the model has the averaged weights."""
        own = {name: p.detach().clone() for name, p in self._trained()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._trained():
            parameter.copy_(tensors[name])


TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
DEVICES = ("cuda",)  # kinds of devices that compute in these types
FIRST, LEAST, MOST = 2**16, 1, 2**24  # scales
PATIENCE = 2000  # steps without an overflow after which the scale is doubled


def half_type(precision: str, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in on a device; None for that of the model.

    Raises FoveateError for "fp16" on a CPU, where it is slower than float32 and less exact; "bf16" is then ignored.

    >>> half_type("bf16", torch.device("cuda")), half_type("bf16", torch.device("cpu"))
    (torch.bfloat16, None)
    """
    if precision not in TYPES:
        return None
    if device.type in DEVICES:
        return TYPES[precision]
    if precision == "fp16":
        raise FoveateError(
            f"train: expected a GPU for precision=fp16, got the device {device.type}; use precision=fp32"
        )
    return None


@dataclass
class LossScale:
    """The factor on the loss with which small gradients do not vanish in float16.

    A gradient that overflows halves it, and the step changes no weights; `PATIENCE` steps without an overflow double
    it. Both numbers are part of a checkpoint.

    Attributes:
        value: the factor, a power of two.
        good: steps since it was changed.

    >>> scale = LossScale()
    >>> scale.lower(); scale.value
    32768
    """

    value: int = FIRST
    good: int = 0

    def lower(self) -> None:
        """After a step whose gradient has overflowed."""
        self.value, self.good = max(LEAST, self.value // 2), 0

    def keep(self) -> None:
        """After a step whose gradient was finite."""
        self.good += 1
        if self.good >= PATIENCE:
            self.value, self.good = min(MOST, self.value * 2), 0

    @property
    def is_least(self) -> bool:
        """True if it cannot be lowered: the gradient is not finite for another reason."""
        return self.value <= LEAST


def recompute_layers(model: nn.Module) -> None:
    """Let the layers of a model that are marked with `recomputable = True` keep their inputs and outputs only.

    Random numbers are drawn again as in the forward pass, so that gradients are the same. A layer may be marked if it
    changes no buffer in its forward pass, which is computed twice.

    Raises ValueError if no layer is marked: the option would have no effect.
    """
    layers = list(_marked(model))
    if not layers:
        raise WrongValue(
            f"train: expected a model with layers to recompute, got {type(model).__name__} with none that are marked "
            "`recomputable`; set gradient_checkpointing=false"
        )
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _marked(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost marked layers."""
    for child in module.children():
        if getattr(type(child), "recomputable", False):
            yield child
        else:
            yield from _marked(child)
