"""Runs that have learnt nothing: a directory like that of a training, with first weights."""

from __future__ import annotations

from pathlib import Path

import torch

from foveate.io import write_json
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import override, to_config
from foveate.lab.train.records import CONFIG, VOCABULARY
from foveate.lab.train.weights import WEIGHTS, named_tensors, save_tensors


def make_untrained(directory: Path, recipe: str, *changes: str) -> Path:
    """The run of a recipe on twelve images, before its first step."""
    made = override(RECIPES[recipe](), ["limit=12", *changes])
    task = TASKS[made.task].from_data(made.settings, None)
    torch.manual_seed(0)
    model = task.build_model()
    task.initialise(model)
    directory.mkdir()
    write_json(directory / CONFIG, to_config(made))
    write_json(directory / VOCABULARY, task.vocabulary())
    save_tensors(directory / WEIGHTS, named_tensors(model))
    return directory
