"""From a recipe to a run, and from a run back to its recipe and task."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from foveate.data.files import read_json
from foveate.recipes.recipe import Recipe, from_config, override, to_config
from foveate.registry import lookup
from foveate.tasks import TASKS, Task
from foveate.train import fit
from foveate.train.folder import CONFIG, VOCABULARY, run_folder
from foveate.train.history import History


def train_recipe(
    recipe: Recipe, out: Path, *, root: Path | None = None, resume: bool = False, progress: bool = True
) -> History:
    """Train what a recipe says and keep the run in the folder `out`; see `foveate.train.fit`."""
    task = lookup("task", recipe.task, TASKS).from_data(recipe.settings, root)
    return fit(
        task,
        recipe.training,
        out,
        config=to_config(recipe),
        root=root,
        start=None if recipe.start is None else run_folder(recipe.start),
        resume=resume,
        progress=progress,
    )


def read_run(run: str | Path, changes: Iterable[str] = ()) -> tuple[Recipe, Task]:
    """The recipe and the task of a run, without its weights.

    Args:
        run: folder of a run or name of an embedded one.
        changes: fields to change, as in `override`; weights fit as long as the model keeps its shape, so another
            attention, other data or another way of counting may be tried on a trained run.

    A missing or broken file, a configuration of a newer version or one that is no recipe raises DataError.
    """
    folder = run_folder(run)
    source = "it is part of a run that foveate train writes"
    recipe = from_config(read_json("load", folder / CONFIG, source), str(folder / CONFIG))
    recipe = override(recipe, changes)
    words = read_json("load", folder / VOCABULARY, source)
    return recipe, lookup("task", recipe.task, TASKS).from_vocabulary(recipe.settings, words)
