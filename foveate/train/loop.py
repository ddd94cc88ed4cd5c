"""The training loop: it knows tasks and nothing else, and can be cut off anywhere without changing its result."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from foveate.errors import DataError, FoveateError
from foveate.tasks import Examples, Loss, Task
from foveate.train.batches import Plan, move, read_batches
from foveate.train.checkpoint import CHECKPOINT, WEIGHTS, load_checkpoint, save_checkpoint
from foveate.train.config import Training
from foveate.train.evaluate import evaluate
from foveate.train.folder import CONFIG, LOG, VOCABULARY, lock, note_environment, open_run
from foveate.train.history import Evaluation, History
from foveate.train.interrupt import Wish, stop_wish
from foveate.train.log import RunLog
from foveate.train.optimise import build_optimiser, scale_and_clip, set_rate
from foveate.train.processes import LossModule, add_up, make_accelerator, share_buffers
from foveate.train.seeds import seed_everything
from foveate.train.weights import load_weights, named_tensors, save_tensors

if TYPE_CHECKING:
    from accelerate import Accelerator

LOG_STEPS = 20
NAMED = 8


class Interrupted(KeyboardInterrupt):
    """Somebody asked to stop; everything is saved."""


class Diverged(FoveateError, ArithmeticError):
    """The loss or its gradient is not a number any more; the last checkpoint is from before."""


def fit(
    task: Task,
    training: Training,
    folder: Path,
    *,
    config: Mapping[str, Any],
    root: Path | None = None,
    start: Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> History:
    """Train a task's model and keep the run in a folder.

    The result depends on the task, the training and the number of processes, not on how often it was cut off: weights
    are the same, bit for bit, after any number of kills and resumes on the same kind of device.

    Args:
        task: gives data, model, loss and metrics.
        training: optimiser, schedule, batches, length, seed.
        folder: of the run; `model.safetensors` in it has the best weights so far, `checkpoint.safetensors` the last.
        config: what `config.json` shall say, enough to make the task again.
        root: folder of the data, None for embedded data.
        start: folder of a run whose weights training starts from; None starts from the task's own.
        resume: go on from the last checkpoint in `folder`, or begin when there is none.
        progress: draw a bar and say how evaluations went.

    Returns:
        the evaluations on the split "val".
    """
    accelerator = make_accelerator(training.precision)
    folder = Path(folder)
    model = _first_model(task, training.seed, start)
    train, val = task.examples("train", root), task.examples("val", root)
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(lock(folder))
            open_run(folder, {CONFIG: config, VOCABULARY: task.vocabulary()}, resume=resume)
            prints = {"train": train.fingerprint(), "val": val.fingerprint()}
            note_environment(folder, training.seed, accelerator.num_processes, str(accelerator.device), prints)
        accelerator.wait_for_everyone()
        trainer = _Trainer(task, training, accelerator, model, train, val, folder)
        if resume:
            trainer.restore()
        wish = stack.enter_context(stop_wish())
        if accelerator.is_main_process:
            trainer.log = stack.enter_context(
                RunLog(
                    folder / LOG,
                    step=trainer.step,
                    total=trainer.total,
                    tensorboard=training.tensorboard,
                    progress=progress,
                )
            )
        return trainer.run(wish)


def _first_model(task: Task, seed: int, start: Path | None) -> nn.Module:
    seed_everything(seed, "weights")
    model = task.build_model()
    if start is None:
        task.initialise(model)
    else:
        load_weights(model, start / WEIGHTS)
    return model


@dataclass(frozen=True)
class _Step:
    """What a step tells, the same on every process: means of the loss and its parts, and whether to stop or save."""

    loss: float
    parts: dict[str, float]
    norm: float
    examples: int
    stop: bool
    save: bool


class _Trainer:
    """A training at a step. Between two steps everything is in the model, the optimiser and the step's number."""

    def __init__(
        self,
        task: Task,
        training: Training,
        accelerator: Accelerator,
        model: nn.Module,
        train: Examples,
        val: Examples,
        folder: Path,
    ) -> None:
        self.task, self.training, self.accelerator, self.folder = task, training, accelerator, folder
        self.train, self.val = train, val
        self.model = model.to(accelerator.device).train()
        self.optimiser = build_optimiser(training.optimiser, self.model.parameters())
        self.loss: nn.Module = accelerator.prepare(LossModule(task, self.model))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.plan = Plan(
            len(train),
            training.batch_size,
            accumulate=training.accumulate,
            processes=accelerator.num_processes,
            process=accelerator.process_index,
            seed=training.seed,
        )
        self.step = self.saved_step = 0
        self.saved_at = time.monotonic()
        self.history = History(task.objective)
        self.log: RunLog | None = None
        self.tally = _Tally()

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        whole = self.training.epochs * self.plan.steps_per_epoch
        return whole if self.training.steps is None else min(whole, self.training.steps)

    @property
    def epoch(self) -> float:
        """Epochs done."""
        return self.step / self.plan.steps_per_epoch

    def restore(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return
        position = load_checkpoint(path, self.model, self.optimiser)
        expected = {**self._position(), "step": position["step"]}
        if position != expected:
            raise DataError(
                f"resume: expected {position['processes']} process(es) with {position['steps_per_epoch']} steps "
                f"as in {path}, got {expected['processes']} with {expected['steps_per_epoch']}; "
                "use as many processes as before"
            )
        self.step = self.saved_step = position["step"]
        self.history = History.load(self.folder, self.task.objective).until(self.step)

    def run(self, wish: Wish) -> History:
        """Train to the end, from wherever this training is."""
        numbers = self.plan.batches(self.step, self.total)
        self.stream = read_batches(self.task, self.train, numbers, self.training.workers)
        while True:
            if self._evaluation_due():
                with self.tally.paused():
                    self._evaluate()
            if self.step >= self.total or self._is_patience_over():
                return self.history
            done = self._take_step(wish)
            self.step += 1
            self._tell(done)
            if done.stop or done.save or self._at_epoch_end() or self.step == self.total:
                with self.tally.paused():
                    self._save()
            if done.stop and self.step < self.total:
                raise Interrupted(
                    f"train: stopped after step {self.step} of {self.total}, everything is saved in {self.folder}"
                )

    def _take_step(self, wish: Wish) -> _Step:
        training = self.training
        seed_everything(training.seed, "step", self.step, self.accelerator.process_index)
        epochs = self.total / self.plan.steps_per_epoch
        set_rate(self.optimiser, training.optimiser.lr * training.schedule.rate(self.epoch, epochs))
        losses, numbers = self._backward()
        names = sorted(losses[0].parts)
        due = self.accelerator.is_main_process and time.monotonic() - self.saved_at > training.save_every
        flags = [len(numbers), bool(wish), due]
        sums = add_up(self.accelerator, _stack(losses, names, flags))
        scale = self.accelerator.num_processes / sums[-4].clamp_min(1)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        length = scale_and_clip(gradients, scale, training.clip).to(sums)
        # the one place where the host waits for the device
        *totals, count, examples, stop, save, norm = torch.cat([sums, length.reshape(1)]).tolist()
        loss, *parts = (total / max(count, 1) for total in totals)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._refuse(loss, norm, numbers)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        return _Step(loss, dict(zip(names, parts, strict=True)), norm, int(examples), stop > 0, save > 0)

    def _backward(self) -> tuple[list[Loss], list[int]]:
        """Add up the gradients of the sums of this step's batches; processes average theirs after the last one."""
        losses, seen = [], []
        parts = self.plan.parts(self.step)
        for part in range(parts):
            numbers, batch = next(self.stream)
            alone = self.accelerator.no_sync(self.loss) if part < parts - 1 else nullcontext()
            with alone:
                loss = self.loss(move(batch, self.accelerator.device))
                self.accelerator.backward(loss.total)
            losses.append(loss)
            seen += numbers
        return losses, seen

    def _refuse(self, loss: float, norm: float, numbers: list[int]) -> None:
        epoch, batch = divmod(self.step, self.plan.steps_per_epoch)
        named = ", ".join(str(number) for number in numbers[:NAMED]) + (", ..." if len(numbers) > NAMED else "")
        kept = f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "there is no checkpoint yet"
        raise Diverged(
            f"train: expected a finite loss and gradient, got loss {loss:g} and norm {norm:g} at step {self.step + 1} "
            f"(epoch {epoch + 1}, batch {batch + 1}, examples {named}); {kept}: lower lr, set clip, "
            "or look at these examples"
        )

    def _evaluation_due(self) -> bool:
        if self.step == 0 or self.history.has(self.step):
            return False
        whole = self._at_epoch_end() and round(self.epoch) % self.training.evaluate_every == 0
        return whole or self.step == self.total

    def _at_epoch_end(self) -> bool:
        return self.step % self.plan.steps_per_epoch == 0

    def _is_patience_over(self) -> bool:
        return self.training.patience is not None and self.history.waited >= self.training.patience

    def _evaluate(self) -> None:
        metrics = evaluate(
            self.task,
            self.model,
            self.val,
            batch_size=self.training.batch_size,
            workers=self.training.workers,
            accelerator=self.accelerator,
            progress=self.log is not None and self.log.speaks,
        )
        self.history = self.history.after(Evaluation(self.step, self.epoch, metrics))
        if self.log is None:
            return
        best = self.history.best
        if best is not None and best.step == self.step:
            save_tensors(self.folder / WEIGHTS, named_tensors(self.model))
        self.history.save(self.folder)
        self.log.write("evaluate", self.step, {"epoch": self.epoch, **metrics})
        objective = self.task.objective
        told = sorted(metrics, key=lambda name: name != objective)[:NAMED]
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in told)
        self.log.say(f"step {self.step}, epoch {self.epoch:.4g}: {shown}", {objective: f"{metrics[objective]:.4g}"})

    def _tell(self, done: _Step) -> None:
        if self.log is None:
            return
        self.log.advance(done.loss)
        self.tally.add(done)
        if self.step % LOG_STEPS == 0 or self._at_epoch_end() or self.step == self.total:
            rate = self.optimiser.param_groups[0]["lr"]
            self.log.write("train", self.step, {"epoch": self.epoch, "rate": rate, **self.tally.means()})
            self.tally = _Tally()

    def _save(self) -> None:
        share_buffers(self.model)
        if self.accelerator.is_main_process:
            save_checkpoint(self.folder / CHECKPOINT, self.model, self.optimiser, self._position())
        self.saved_step, self.saved_at = self.step, time.monotonic()

    def _position(self) -> dict[str, int]:
        return {
            "step": self.step,
            "steps_per_epoch": self.plan.steps_per_epoch,
            "processes": self.accelerator.num_processes,
        }


class _Tally:
    """Means over the steps since the last line of the log."""

    def __init__(self) -> None:
        self.sums: Counter[str] = Counter()
        self.steps, self.examples, self.since = 0, 0, time.perf_counter()

    def add(self, done: _Step) -> None:
        self.sums.update({"loss": done.loss, "norm": done.norm, **done.parts})
        self.steps += 1
        self.examples += done.examples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the body."""
        start = time.perf_counter()
        yield
        self.since += time.perf_counter() - start

    def means(self) -> dict[str, float]:
        """The means, and how many examples a second were seen."""
        speed = self.examples / max(time.perf_counter() - self.since, 1e-9)
        return {name: value / self.steps for name, value in self.sums.items()} | {
            "examples_per_second": round(speed, 1)
        }


def _stack(losses: list[Loss], names: list[str], flags: list[int]) -> Tensor:
    """One vector to be added up over processes: total, the parts by name, count, the flags."""
    if any(sorted(loss.parts) != names for loss in losses):
        raise DataError(
            f"loss: expected the same parts in every batch, got {[sorted(loss.parts) for loss in losses]}; "
            "give a part that does not apply as zero"
        )
    dtype = losses[0].total.dtype
    rows = [torch.stack([loss.total, *(loss.parts[name].to(dtype) for name in names)]).detach() for loss in losses]
    counts = rows[0].new_tensor([sum(loss.count for loss in losses), *flags])
    return torch.cat([sum(rows[1:], rows[0]), counts])
