"""Runs that have learnt nothing: a folder like that of a training, with first weights."""

from __future__ import annotations

from pathlib import Path

from foveate.data.writing import write_json
from foveate.recipes import RECIPES, override, to_config
from foveate.tasks import TASKS
from foveate.train.checkpoint import WEIGHTS
from foveate.train.folder import CONFIG, VOCABULARY
from foveate.train.weights import named_tensors, save_tensors


def make_untrained(folder: Path, recipe: str, *changes: str) -> Path:
    """The run of a recipe on twelve pictures, before its first step."""
    made = override(RECIPES[recipe](), ["limit=12", *changes])
    task = TASKS[made.task].from_data(made.settings, None)
    model = task.build_model()
    task.initialise(model)
    folder.mkdir()
    write_json(folder / CONFIG, to_config(made))
    write_json(folder / VOCABULARY, task.vocabulary())
    save_tensors(folder / WEIGHTS, named_tensors(model))
    return folder
