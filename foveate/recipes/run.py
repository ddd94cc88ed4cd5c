"""From a recipe to a run, and from a run back to its recipe and task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foveate.data.files import read_json
from foveate.recipes.recipe import Recipe, from_config, override, to_config
from foveate.registry import lookup
from foveate.tasks import TASKS, Task
from foveate.train import fit
from foveate.train.folder import CONFIG, VOCABULARY, run_folder
from foveate.train.history import History

SOURCE = "it is part of a run that foveate train writes"


def train_recipe(
    recipe: Recipe, out: Path, *, root: Path | None = None, resume: bool = False, progress: bool = True
) -> History:
    """Train what a recipe says and keep the run in the folder `out`; see `foveate.train.fit`.

    With a start, words and answers stay those of the run that it starts from, whatever the data: its weights know no
    others.
    """
    kind = lookup("task", recipe.task, TASKS)
    if recipe.start is None:
        task = kind.from_data(recipe.settings, root)
    else:
        task = kind.from_vocabulary(recipe.settings, _read_vocabulary(run_folder(recipe.start)))
    return fit(
        task,
        recipe.training,
        out,
        config=_config(recipe, out, resume=resume),
        root=root,
        start=None if recipe.start is None else run_folder(recipe.start),
        resume=resume,
        progress=progress,
    )


def _config(recipe: Recipe, out: Path, *, resume: bool) -> dict[str, Any]:
    """The recipe as JSON: as it stands in a run that goes on, which may lack fields that are younger than the run."""
    path = out / CONFIG
    if resume and path.is_file():
        config = read_json("resume", path, SOURCE)
        if from_config(config, str(path)) == recipe:
            return config
    return to_config(recipe)


def read_run(run: str | Path, changes: Iterable[str] = ()) -> tuple[Recipe, Task]:
    """The recipe and the task of a run, without its weights.

    Args:
        run: folder of a run or name of an embedded one.
        changes: fields to change, as in `override`; weights fit as long as the model keeps its shape, so another
            attention, other data or another way of counting may be tried on a trained run.

    A missing or broken file, a configuration of a newer version or one that is no recipe raises DataError.
    """
    folder = run_folder(run)
    recipe = from_config(read_json("load", folder / CONFIG, SOURCE), str(folder / CONFIG))
    recipe = override(recipe, changes)
    words = _read_vocabulary(folder)
    return recipe, lookup("task", recipe.task, TASKS).from_vocabulary(recipe.settings, words)


def _read_vocabulary(folder: Path) -> dict[str, Any]:
    return read_json("load", folder / VOCABULARY, SOURCE)
