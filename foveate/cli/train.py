"""`foveate train`: from a recipe and changes to a run."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from foveate.cli.tables import print_table
from foveate.recipes import RECIPES, override, recipe_fields, train_recipe
from foveate.recipes.typed import describe, encode
from foveate.registry import lookup


def train(
    recipe: str,
    changes: tuple[str, ...] = (),
    *,
    data: Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train what a recipe says. On several GPUs or machines: torchrun --nproc-per-node N -m foveate train ...

    Args:
        recipe: name of a recipe; `foveate list recipes` shows them.
        changes: fields to change, as field=value or --field value; with a recipe's name, --help shows its fields.
        data: folder of the data; not needed for embedded data.
        out: folder of the run; runs/<recipe>-<changes> when absent.
        resume: go on with the run that is in the folder, if there is one.
        quiet: no bar and no lines between.
    """
    made = override(lookup("recipe", recipe, RECIPES)(), changes)
    folder = out or Path("runs") / folder_name(recipe, changes)
    history = train_recipe(made, folder, root=data, resume=resume, progress=not quiet)
    if is_first_process() and history.best is not None:
        best = history.best
        rows = [(name, f"{value:.4g}") for name, value in best.metrics.items()]
        print_table(f"{folder}: best after step {best.step}, epoch {best.epoch:.4g}", ("val", "value"), rows)


def folder_name(recipe: str, changes: Sequence[str]) -> str:
    """A folder's name for a recipe with changes.

    >>> folder_name("vqa-mcan-scenes", ["mechanism=tvmax", "start=runs/a"])
    'vqa-mcan-scenes-mechanism=tvmax-start=runs_a'
    """
    return re.sub(r"[^\w.=,+-]", "_", "-".join([recipe, *changes]))


def is_first_process() -> bool:
    """True on the process that speaks."""
    return os.environ.get("RANK", "0") == "0"


def more_help(arguments: Sequence[str]) -> str:
    """The fields of the recipe among the arguments, with type and value."""
    name = next((word for word in arguments if word in RECIPES), None)
    if name is None:
        return ""
    made = RECIPES[name]()
    lines = [f"  {f.path} = {encode(f.value)}  ({describe(f.kind)})" for f in recipe_fields(made)]
    return "\n".join([f"fields of {name} ({made.about}):", *lines, ""])
