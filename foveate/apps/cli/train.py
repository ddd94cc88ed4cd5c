"""`foveate train` and `foveate tune`: from a recipe and changes to a run, or to the best of many runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import Count, Directory, print_table
from foveate.apps.report.tables import FEW
from foveate.lab.data.samples import DataDirectory
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import Recipe
from foveate.lab.train.comparison import cross_validate
from foveate.lab.train.override import override, recipe_fields
from foveate.lab.train.recipe import describe, encode, train_recipe
from foveate.lab.train.records import EXAMPLES, History, read_examples
from foveate.lab.train.start import adopt_start
from foveate.lab.train.tuning import TrialResult
from foveate.lab.train.tuning import tune as search
from foveate.registry import lookup


def train(
    recipe: str,
    changes: tuple[str, ...] = (),
    *,
    data: Path | None = None,
    out: Directory | None = None,
    resume: bool = False,
    quiet: bool = False,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> dict[str, Any] | None:
    """Train a recipe. On several GPUs or machines: torchrun --nproc-per-node N -m foveate train ...

    Args:
        recipe: name of a recipe; `foveate list recipes` shows them.
        changes: fields to change, as field=value or --field value; with the name of a recipe, --help shows its fields.
        data: directory of the data; not needed for embedded data.
        out: directory of the run; by default runs/<recipe>-<changes>.
        resume: continue the run in the directory, if there is one.
        quiet: print no progress.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    made = lookup("recipe", recipe, RECIPES)()
    if any(change.startswith("start=") for change in changes):
        made = adopt_start(made, changes)
    made = override(made, changes)
    directory = out or Path("runs") / directory_name(recipe, changes)
    root = DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    if getattr(made.settings, "folds", 1) > 1:
        return _cross_validate(made, directory, root, progress=not quiet)
    history = train_recipe(made, directory, root=root, resume=resume, progress=not quiet)
    if is_first_process() and history.best is not None:
        best = history.best
        rows = [(name, f"{value:.4g}") for name, value in best.metrics.items()]
        print_table(f"{directory}: best after step {best.step}, epoch {best.epoch:.4g}", ("val", "value"), rows)
        _say_changed(made, history, directory)
        _show_commands(made.task, directory, data)
        return {"run": directory, "step": best.step, "epoch": best.epoch, "metrics": best.metrics}
    return None


def _cross_validate(recipe: Recipe, directory: Path, root: DataDirectory, *, progress: bool) -> dict[str, Any] | None:
    """Train once per fold and print the means over the folds."""
    found = cross_validate(recipe, directory, root, progress=progress)
    if not is_first_process():
        return None
    rows = [(name, f"{value:.4g}", f"{found.spread[name]:.2g}") for name, value in found.mean.items()]
    title = f"{directory}: {len(found.folds)} folds, every image in val once"
    print_table(title, ("val", "mean", "standard deviation between folds"), rows)
    return {"run": directory, "folds": list(found.folds), "mean": found.mean, "spread": found.spread}


def _say_changed(recipe: Recipe, history: History, directory: Path) -> None:
    """Say where a number is not the one that was asked for, or is a mean over few examples."""
    asked, last = recipe.training.steps, history.evaluations[-1].step
    if asked is not None and last < asked:
        print(f"train: {last} of steps={asked} were taken, {recipe.training.epochs} epochs have no more; raise epochs")
    path = directory / EXAMPLES
    count = max(map(len, read_examples(path).values()), default=0) if path.exists() else 0
    if 0 < count < FEW:
        said = f"these numbers are means over {count} example{'s' * (count > 1)} of val: too few to rank by"
        print(f"train: {said}; folds=5 has every image in val once")


def _show_commands(task: str, directory: Path, data: Path | None) -> None:
    """Print how the run can be used."""
    run = shlex.quote(str(directory))
    for purpose, command in TASKS[task].presentation.commands:
        print(f"{purpose}:\n  {command.replace('RUN', run)}")
    rest = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print(f"evaluate it:\n  foveate evaluate {run}{rest}")


def directory_name(recipe: str, changes: Sequence[str]) -> str:
    """The name of the directory for a recipe with changes.

    >>> directory_name("vqa-mcan-scenes", ["mechanism=tvmax", "start=runs/a"])
    'vqa-mcan-scenes-mechanism=tvmax-start=runs_a'
    """
    return re.sub(r"[^\w.=,+-]", "_", "-".join([recipe, *changes]))


def is_first_process() -> bool:
    """True on the process that prints."""
    return os.environ.get("RANK", "0") == "0"


def more_help(arguments: Sequence[str]) -> str:
    """The fields of the recipe among the arguments, with type and value."""
    name = next((word for word in arguments if word in RECIPES), None)
    if name is None:
        return ""
    made = RECIPES[name]()
    lines = [f"  {f.path} = {encode(f.value)}  ({describe(f.kind)})" for f in recipe_fields(made)]
    return "\n".join([f"fields of {name} ({made.about}):", *lines, ""])


__all__ = ["more_help", "tune"]
SHOWN = 10


def tune(
    recipe: str,
    changes: tuple[str, ...] = (),
    *,
    trials: Count = 20,
    data: Path | None = None,
    out: Directory | None = None,
    storage: str | None = None,
    no_prune: bool = False,
    quiet: bool = False,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> list[TrialResult]:
    """Search for the fields of a recipe with the best objective on val; repeat the command to continue a search.

    Args:
        recipe: name of a recipe; `foveate list recipes` shows them.
        changes: fields to change, as in `foveate train`, with a range or choices for those to search:
            lr=log:1e-4..1e-2 dropout=0.0..0.5 hidden=64..512 mechanism=softmax|tvmax.
        trials: trainings of the study, complete or stopped early, over all processes and restarts.
        data: directory of the data; not needed for embedded data.
        out: directory of the study; by default runs/tune-<recipe>-<changes>.
        storage: address of a database that several machines share, such as postgresql://user@host/name; by default an
            SQLite file in the directory.
        no_prune: train all trials to the end instead of stopping those below the median.
        quiet: print no progress.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    made = lookup("recipe", recipe, RECIPES)()
    directory = out or Path("runs") / directory_name(f"tune-{recipe}", changes)
    root = DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    found = search(
        made,
        changes,
        directory,
        trials=trials,
        storage=storage,
        root=root,
        prune=not no_prune,
        progress=not quiet,
    )
    rows = [
        (str(one.number), "" if one.value is None else f"{one.value:.4g}", one.state, *one.changes) for one in found
    ]
    heads = ("trial", "val", "state", *(change.partition("=")[0] for change in found[0].changes))
    cells = [tuple(cell.partition("=")[2] or cell for cell in row) for row in rows[:SHOWN]]
    print_table(f"{directory}: {len(found)} trials", heads, cells)
    best = found[0]
    rest = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print(f"the best run: {best.directory}\ntrain it again:\n  foveate train {recipe} {shlex.join(best.changes)}{rest}")
    return found
