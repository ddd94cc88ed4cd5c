"""The training loop: it uses only the interface of a task, and a kill at any moment does not change its result."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from torch import nn

from foveate.errors import DataError, FoveateError, NotANumber
from foveate.lab.data.samples import DataRoot
from foveate.lab.tasks import AnyTask, Examples, Metrics
from foveate.lab.train.batches import Plan, read_batches, seed_everything
from foveate.lab.train.config import Training
from foveate.lab.train.evaluation import collect, save_familiarity
from foveate.lab.train.processes import (
    broadcast_buffers,
    make_accelerator,
)
from foveate.lab.train.records import (
    CONFIG,
    CURVE,
    EXAMPLES,
    LOG,
    VOCABULARY,
    Evaluation,
    History,
    RunLog,
    lock,
    note_environment,
    open_run,
    write_examples,
)
from foveate.lab.train.step import Batches, Step, Stepper, half_type, recompute_layers
from foveate.lab.train.weights import (
    CHECKPOINT,
    WEIGHTS,
    load_grown_weights,
    load_weights,
    named_tensors,
    save_tensors,
)
from foveate.signals import Interrupted, StopRequest, handle_signals

if TYPE_CHECKING:
    from accelerate import Accelerator

    from foveate.lab.train.tracking import Tracker

LOG_STEPS = 20
NAMED = 8
OnEvaluation: TypeAlias = Callable[[Evaluation, float], None]


class Diverged(FoveateError, ArithmeticError):
    """The loss or its gradient is NaN or infinite; the last checkpoint is from before."""


def fit(
    task: AnyTask,
    training: Training,
    directory: Path,
    *,
    config: Mapping[str, Any],
    root: DataRoot = None,
    start: Path | None = None,
    resume: bool = False,
    progress: bool = True,
    on_evaluation: OnEvaluation | None = None,
) -> History:
    """Train a task's model and keep the run in a directory.

    The result depends on the task, the training and the number of processes, not on interruptions: the weights are the
    same, bit for bit, after any number of kills and resumes on the same kind of device.

    Args:
        task: defines data, model, loss and metrics.
        training: optimiser, schedule, batches, length, seed.
        directory: of the run; `model.safetensors` holds the best weights so far, `checkpoint.safetensors` the last.
        config: contents of `config.json`, from which the task can be created again.
        root: directory of the data, or a `DataDirectory`; None for embedded data.
        start: directory of a run whose weights training starts from; None starts from the task's own.
        resume: continue from the last checkpoint in `directory`, or begin if there is none.
        progress: show a progress bar and the results of evaluations.
        on_evaluation: called on every process after each evaluation, with it and the value of the objective; raises an
            error to end the training.

    Returns:
        the evaluations on the split "val".
    """
    accelerator = make_accelerator()
    half_type(training.precision, accelerator.device)  # raises an error before anything is written
    directory = Path(directory)
    model, before = _first_model(task, training.seed, start, root)
    if training.gradient_checkpointing:
        recompute_layers(model)
    train, val = task.examples("train", root), task.examples("val", root)
    with ExitStack() as stack:
        if accelerator.is_main_process:
            stack.enter_context(lock(directory))
            open_run(directory, {CONFIG: config, VOCABULARY: task.vocabulary()}, resume=resume)
            prints = {"train": train.fingerprint(), "val": val.fingerprint()}
            note_environment(directory, training.seed, accelerator.num_processes, str(accelerator.device), prints)
        accelerator.wait_for_everyone()
        trainer = _Trainer(task, training, accelerator, model, before, train, val, directory)
        trainer.on_evaluation = on_evaluation
        if resume:
            trainer.restore()
        stop = stack.enter_context(handle_signals())
        if accelerator.is_main_process:
            trainer.log = stack.enter_context(
                RunLog(
                    directory / LOG,
                    step=trainer.step,
                    total=trainer.total,
                    tracker=_open_tracker(training, directory, config),
                    progress=progress,
                )
            )
        history = trainer.run(stop)
        if accelerator.is_main_process:
            load_weights(model, directory / WEIGHTS)
            save_familiarity(task, model.eval(), directory, root)
        return history


def _open_tracker(training: Training, directory: Path, config: Mapping[str, Any]) -> Tracker | None:
    name = training.tracker or ("tensorboard" if training.tensorboard else None)
    if name is None:
        return None
    from foveate.lab.train.tracking import Tracker

    return Tracker(name, directory, config)


def _first_model(task: AnyTask, seed: int, start: Path | None, root: DataRoot) -> tuple[nn.Module, int]:
    """The model before training, and the steps that the run it starts from had taken."""
    seed_everything(seed, "weights")
    model: nn.Module = task.build_model()
    if start is None:
        task.initialise(model, root)
        return model, 0
    state = load_grown_weights(model, start / WEIGHTS)
    steps = state.get("steps")
    return model, steps if isinstance(steps, int) else 0


class _Trainer:
    """The state of a training. Between two steps it consists of the model, the optimiser and the step."""

    def __init__(
        self,
        task: AnyTask,
        training: Training,
        accelerator: Accelerator,
        model: nn.Module,
        before: int,
        train: Examples[Any],
        val: Examples[Any],
        directory: Path,
    ) -> None:
        self.task, self.training, self.accelerator, self.directory = task, training, accelerator, directory
        self.train, self.val, self.before = train, val, before
        self.model = model.to(accelerator.device).train()
        self.plan = Plan(
            len(train),
            training.batch_size,
            accumulate=training.accumulate,
            processes=accelerator.num_processes,
            process=accelerator.process_index,
            seed=training.seed,
        )
        self.stepper = Stepper(task, training, accelerator, self.model, self.plan, before)
        self.step = self.saved_step = 0
        self.saved_at = time.monotonic()
        self.history = History(task.objective)
        self.log: RunLog | None = None
        self.on_evaluation: OnEvaluation | None = None
        self.tally = _Tally()

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        whole = self.training.epochs * self.plan.steps_per_epoch
        return whole if self.training.steps is None else min(whole, self.training.steps)

    @property
    def epoch(self) -> float:
        """Completed epochs."""
        return self.step / self.plan.steps_per_epoch

    def restore(self) -> None:
        """Restore the last checkpoint, if there is one."""
        path = self.directory / CHECKPOINT
        if not path.exists():
            return
        position = self.stepper.restore(path, self.model)
        expected = {**self._position(), "step": position["step"]}
        if any(position[name] != value for name, value in expected.items()):
            raise DataError(
                f"resume: expected {position['processes']} process(es) with {position['steps_per_epoch']} steps "
                f"as in {path}, got {expected['processes']} with {expected['steps_per_epoch']}; "
                "use as many processes as before"
            )
        self.step = self.saved_step = position["step"]
        self.history = History.load(self.directory, self.task.objective).until(self.step)

    def run(self, stop: StopRequest) -> History:
        """Train from the current step to the end."""
        numbers = self.plan.batches(self.step, self.total)
        stream = read_batches(self.task, self.train, numbers, self.training.workers)
        while True:
            if self._evaluation_due():
                with self.tally.paused(), self._stopped_at_once(stop):
                    self._evaluate()
                    if self.on_evaluation is not None:
                        last = self.history.evaluations[-1]
                        self.on_evaluation(last, last.metrics[self.task.objective])
            if self.step >= self.total or self._is_patience_over():
                return self.history
            done = self._take_step(stream, stop)
            self.step += 1
            self._record(done)
            if self._curve_due():  # before the checkpoint, so that a resumed log has every point once
                with self.tally.paused():
                    self._add_to_curve()
            if done.stop or done.save or self._at_epoch_end() or self.step == self.total:
                with self.tally.paused():
                    self._save()
            if done.stop:
                raise Interrupted(self._stopped(), stop.number or signal.SIGINT)  # of another process

    def _stopped(self) -> str:
        return f"train: stopped after step {self.step} of {self.total}, everything is saved in {self.directory}"

    def _stopped_at_once(self, stop: StopRequest) -> AbstractContextManager[None]:
        """A signal ends an evaluation at once, since it can be repeated, but not while other processes wait for it."""
        return stop.at_once(self._stopped()) if self.accelerator.num_processes == 1 else nullcontext()

    def _take_step(self, stream: Batches, stop: StopRequest) -> Step:
        # Random numbers depend on the step alone, so that a resumed training repeats them.
        seed_everything(self.training.seed, "step", self.step, self.accelerator.process_index)
        rate = self.training.schedule.rate(self.epoch, self.total / self.plan.steps_per_epoch)
        due = self.accelerator.is_main_process and time.monotonic() - self.saved_at > self.training.save_every
        done = self.stepper.take(self.step, stream, rate, stop=stop, save=due)
        if not done.finite:
            self._raise_diverged(done)
        return done

    def _raise_diverged(self, done: Step) -> NoReturn:
        epoch, batch = divmod(self.step, self.plan.steps_per_epoch)
        named = ", ".join(map(str, done.numbers[:NAMED])) + (", ..." if len(done.numbers) > NAMED else "")
        raise Diverged(
            f"train: expected a finite loss and gradient, got loss {done.loss:g} and norm {done.norm:g} at "
            f"step {self.step + 1} (epoch {epoch + 1}, batch {batch + 1}, examples {named}); {self._kept()}: lower lr, "
            "set clip, or inspect these examples"
        )

    def _kept(self) -> str:
        return f"the checkpoint of step {self.saved_step} is kept" if self.saved_step else "there is no checkpoint yet"

    def _evaluation_due(self) -> bool:
        if self.step == 0 or self.history.has(self.step):
            return False
        whole = self._at_epoch_end() and round(self.epoch) % self.training.evaluate_every == 0
        return whole or self.step == self.total

    def _curve_due(self) -> bool:
        points = self.training.curve_points
        return self.step * points // self.total > (self.step - 1) * points // self.total

    def _at_epoch_end(self) -> bool:
        return self.step % self.plan.steps_per_epoch == 0

    def _is_patience_over(self) -> bool:
        return self.training.patience is not None and self.history.waited >= self.training.patience

    @contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        """The weights that are evaluated and kept: the average, if there is one."""
        try:
            with self.stepper.evaluated_weights():
                yield
        except NotANumber as error:
            raise Diverged(
                f"train: expected finite weights, got NaN in the evaluation after step {self.step} ({error}); "
                f"{self._kept()}: lower lr or set clip"
            ) from None

    def _collect(self, limit: int | None = None) -> Metrics[Any, Any]:
        return collect(
            self.task,
            self.model,
            self.val,
            batch_size=self.training.batch_size,
            workers=self.training.workers,
            accelerator=self.accelerator,
            progress=self.log is not None and self.log.verbose and limit is None,
            limit=limit,
        )

    def _add_to_curve(self) -> None:
        """Evaluate on a few examples, for the log alone."""
        count = min(self.training.curve_examples, len(self.val))
        with self._evaluated_weights():
            metrics = self._collect(count).compute()
        if self.log is not None:
            self.log.write(CURVE, self.step, {"epoch": self.epoch, "examples": count, **metrics})

    def _evaluate(self) -> None:
        with self._evaluated_weights():
            self._evaluate_weights()

    def _evaluate_weights(self) -> None:
        merged = self._collect()
        metrics = merged.compute()
        self.history = self.history.after(Evaluation(self.step, self.epoch, metrics))
        if self.log is None:
            return
        best = self.history.best
        if best is not None and best.step == self.step:
            self._save_weights()
            write_examples(self.directory / EXAMPLES, merged.examples())
        self.history.save(self.directory)
        self.log.write("evaluate", self.step, {"epoch": self.epoch, **metrics})
        objective = self.task.objective
        first = sorted(metrics, key=lambda name: name != objective)[:NAMED]
        shown = ", ".join(f"{name} {metrics[name]:.4g}" for name in first)
        self.log.show(f"step {self.step}, epoch {self.epoch:.4g}: {shown}", {objective: f"{metrics[objective]:.4g}"})

    def _record(self, done: Step) -> None:
        if self.log is None:
            return
        self.log.advance(done.loss)
        self.tally.add(done)
        if self.step % LOG_STEPS == 0 or self._at_epoch_end() or self.step == self.total:
            rate = self.stepper.optimiser.param_groups[0]["lr"]
            self.log.write("train", self.step, {"epoch": self.epoch, "rate": rate, **self.tally.means()})
            self.tally = _Tally()

    def _save(self) -> None:
        broadcast_buffers(self.model)
        if self.accelerator.is_main_process:
            self.stepper.save(self.directory / CHECKPOINT, self.model, self._position())
            if self.history.best is None:  # a run that is stopped before its first evaluation can be used
                self._save_weights()
        self.saved_step, self.saved_at = self.step, time.monotonic()

    def _save_weights(self) -> None:
        save_tensors(self.directory / WEIGHTS, named_tensors(self.model), {"steps": self.before + self.step})

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

    def add(self, done: Step) -> None:
        self.sums.update({"loss": done.loss, "norm": done.norm, **done.parts})
        self.steps += 1
        self.examples += done.examples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time of the body."""
        start = time.perf_counter()
        yield
        self.since += time.perf_counter() - start

    def means(self) -> dict[str, float]:
        """The means, and the number of examples per second."""
        speed = self.examples / max(time.perf_counter() - self.since, 1e-9)
        return {name: value / self.steps for name, value in self.sums.items()} | {
            "examples_per_second": round(speed, 1)
        }
