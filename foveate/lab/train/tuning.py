"""Search for the best fields of a recipe with Optuna: trials are trainings, stopped early by their evaluations.

A study is kept in a database: processes on any number of machines that use the same one share the trials, and a study
that is stopped continues. The run of a trial is in a directory named by its fields, so that a trial that was killed
continues from its checkpoint.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foveate.errors import DataError, WrongValue
from foveate.lab.data.samples import DataRoot
from foveate.lab.train.loop import Diverged
from foveate.lab.train.override import override
from foveate.lab.train.recipe import Recipe, train_recipe
from foveate.lab.train.records import Evaluation
from foveate.registry import optional

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

RANGE, CHOICE, LOG = "..", "|", "log:"
DATABASE = "study.db"
OWNER = "owner"
SEEDS = 1009  # between the seeds of a study that continues
HEARTBEAT = 60  # seconds after which the trial of a process that no longer answers can be repeated: twice this


@dataclass(frozen=True)
class Space:
    """The values that a field may take.

    Attributes:
        field: its name, as in `override`.
        low, high: the range of a number; whole numbers if both are.
        log: sample the logarithm evenly.
        choices: the values of a field that is no number, as texts.
    """

    field: str
    low: float | int = 0
    high: float | int = 0
    log: bool = False
    choices: tuple[str, ...] = ()

    def suggest(self, trial: Trial) -> str:
        """The value of a trial, as text."""
        if self.choices:
            return str(trial.suggest_categorical(self.field, self.choices))
        if isinstance(self.low, int) and isinstance(self.high, int):
            return str(trial.suggest_int(self.field, self.low, self.high, log=self.log))
        return repr(trial.suggest_float(self.field, self.low, self.high, log=self.log))


@dataclass(frozen=True)
class TrialResult:
    """A trial of a study.

    Attributes:
        number: in the study.
        changes: its fields, as texts `field=value`.
        value: the best value of the objective, or None.
        state: "complete", "pruned", "fail", "running" or "waiting".
        directory: of its run.
    """

    number: int
    changes: tuple[str, ...]
    value: float | None
    state: str
    directory: Path


def read_space(text: str) -> Space | None:
    """The space that a user wrote, None for a single value.

    >>> read_space("lr=log:1e-4..1e-2")
    Space(field='lr', low=0.0001, high=0.01, log=True, choices=())
    >>> read_space("mechanism=softmax|tvmax").choices, read_space("hidden=8..64").high, read_space("epochs=3")
    (('softmax', 'tvmax'), 64, None)
    """
    field, equals, value = text.partition("=")
    if not equals:
        raise WrongValue(f"tune: expected field=space, got {text!r}; write for instance lr=log:1e-4..1e-2")
    if CHOICE in value:
        return Space(field, choices=tuple(part.strip() for part in value.split(CHOICE)))
    if RANGE not in value:
        return None
    log = value.startswith(LOG)
    low, _, high = value.removeprefix(LOG).partition(RANGE)
    try:
        ends = (_number(low), _number(high))
    except ValueError:
        raise WrongValue(f"tune: expected two numbers, got {text!r}; write {field}=log:1e-4..1e-2") from None
    if not ends[0] < ends[1] or (log and ends[0] <= 0):
        raise WrongValue(
            f"tune: expected a range from a smaller to a larger number, got {text!r}; swap or correct them"
        )
    return Space(field, ends[0], ends[1], log)


def tune(
    recipe: Recipe,
    changes: Sequence[str],
    out: Path,
    *,
    trials: int = 20,
    storage: str | None = None,
    root: DataRoot = None,
    prune: bool = True,
    progress: bool = True,
) -> list[TrialResult]:
    """Train a recipe with different fields and return the trials of the study, best first.

    Args:
        recipe: whose objective on the split "val" is maximised.
        changes: fields as in `override`, with a space instead of the value of those to search: `lr=log:1e-4..1e-2`,
            `dropout=0.0..0.5`, `hidden=64..512` (whole numbers), `mechanism=softmax|tvmax`.
        out: directory of the study; the run of each trial is a subdirectory.
        trials: how many, complete or pruned, the study shall have, over all processes and restarts.
        storage: address of the database for Optuna, such as `postgresql://...`; by default an SQLite file in `out`.
        root: directory of the data.
        prune: stop a trial whose evaluation is below the median of the others at the same epoch.
        progress: show the progress of each training.

    Raises ValueError if there is no space or it does not fit its field.
    """
    spaces = [space for space in map(read_space, changes) if space is not None]
    if not spaces:
        raise WrongValue(f"tune: expected a space to search, got {' '.join(changes)!r}; add lr=log:1e-4..1e-2")
    fixed = [change for change in changes if read_space(change) is None]
    _check_spaces(recipe, fixed, spaces)
    study = _open_study(recipe, changes, out, storage, prune)
    _recover(study)

    def objective(trial: Trial) -> float:
        trial.set_user_attr(OWNER, [platform.node(), os.getpid()])
        chosen = [*fixed, *(f"{space.field}={space.suggest(trial)}" for space in spaces)]
        return _run(trial, recipe, chosen, out, root, progress)

    callback = optional("tune", "optuna.study", extra="scale").MaxTrialsCallback(trials, states=_counted())
    if len(study.get_trials(deepcopy=False, states=_counted())) < trials:
        study.optimize(objective, callbacks=[callback])
    found = [_result(trial, fixed, spaces, out) for trial in study.get_trials(deepcopy=False)]
    return sorted(found, key=lambda one: (one.state != "complete", one.value is None, -(one.value or 0.0), one.number))


def _run(trial: Trial, recipe: Recipe, changes: Sequence[str], out: Path, root: DataRoot, progress: bool) -> float:
    """Train one trial; raises TrialPruned if its evaluations are too low or its loss diverges."""
    from optuna import TrialPruned

    def report(evaluation: Evaluation, value: float) -> None:
        trial.report(value, step=evaluation.step)
        if trial.should_prune():
            raise TrialPruned(f"at step {evaluation.step}")

    directory = out / run_name(changes)
    try:
        history = train_recipe(
            override(recipe, changes), directory, root=root, resume=True, progress=progress, on_evaluation=report
        )
    except Diverged as error:
        raise TrialPruned(str(error)) from None
    if history.best is None:
        raise DataError(f"tune: expected an evaluation of {directory}, got none; train for at least one step")
    return history.best.metrics[history.objective]


def run_name(changes: Sequence[str]) -> str:
    """The directory of a trial, the same for the same fields.

    >>> run_name(["lr=0.1"]) == run_name(["lr=0.1"]) != run_name(["lr=0.2"])
    True
    """
    return f"trial-{hashlib.sha256(chr(0).join(changes).encode()).hexdigest()[:12]}"


def _check_spaces(recipe: Recipe, fixed: Sequence[str], spaces: Sequence[Space]) -> None:
    """Raises an error if an end of a range or a choice is no value of its field."""
    base = override(recipe, fixed)
    for space in spaces:
        for value in space.choices or (repr(space.low), repr(space.high)):
            override(base, [f"{space.field}={value}"])


def _open_study(recipe: Recipe, changes: Sequence[str], out: Path, storage: str | None, prune: bool) -> Study:
    optuna = optional("tune", "optuna", extra="scale")
    out.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = f"{recipe.name} {' '.join(sorted(changes))}"
    pruner = optuna.pruners.MedianPruner(n_startup_trials=3) if prune else optuna.pruners.NopPruner()
    study: Study = optuna.create_study(
        storage=_open_storage(optuna, storage or f"sqlite:///{(out / DATABASE).resolve()}"),
        study_name=name,
        pruner=pruner,
        direction="maximize",
        load_if_exists=True,
    )
    # Processes that share a study, and one that continues it, must not try the same values again.
    seed = None if storage else recipe.training.seed + SEEDS * len(study.get_trials(deepcopy=False))
    study.sampler = optuna.samplers.TPESampler(seed=seed)
    return study


def _open_storage(optuna: Any, address: str) -> Any:
    """The storage at an address; trials of a machine that no longer answers are repeated."""
    from sqlalchemy.exc import SQLAlchemyError

    storages = optuna.storages
    try:
        retry = storages.RetryHeartbeatStaleTrialCallback()
        return storages.RDBStorage(address, heartbeat_interval=HEARTBEAT, heartbeat_stale_trial_callback=retry)
    except (ValueError, ImportError, SQLAlchemyError) as error:
        raise DataError(
            f"tune: expected the address of a database, got {address!r} ({error}); write sqlite:///study.db or "
            "postgresql://user@host/name"
        ) from None


def _recover(study: Study) -> None:
    """Repeat the trials of processes of this machine that were killed."""
    from optuna.trial import TrialState

    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        host, process = trial.user_attrs.get(OWNER, (None, 0))
        if host == platform.node() and not _is_alive(process):
            with suppress(ValueError):  # another process was faster
                study.tell(trial.number, state=TrialState.FAIL)
                study.enqueue_trial(trial.params)


def _is_alive(process: int) -> bool:
    if process == os.getpid():
        return False  # a trial of an earlier call in this process, which has ended
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _counted() -> tuple[Any, ...]:
    from optuna.trial import TrialState

    return (TrialState.COMPLETE, TrialState.PRUNED)


def _result(trial: FrozenTrial, fixed: Sequence[str], spaces: Sequence[Space], out: Path) -> TrialResult:
    values = _texts(trial.params, spaces)
    changes = (*fixed, *(f"{name}={value}" for name, value in values.items()))
    best = trial.value if trial.value is not None else max(trial.intermediate_values.values(), default=None)
    return TrialResult(trial.number, changes, best, trial.state.name.lower(), out / run_name(changes))


def _texts(values: Mapping[str, Any], spaces: Sequence[Space]) -> dict[str, str]:
    """The values of a trial as they were written for its training."""
    write: Callable[[Any], str] = lambda value: repr(value) if isinstance(value, float) else str(value)  # noqa: E731
    return {space.field: write(values[space.field]) for space in spaces if space.field in values}


def _number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)
