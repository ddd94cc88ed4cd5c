"""Runs that have learnt nothing, for pages that need one."""

from __future__ import annotations

import pytest

from foveate.data.writing import write_json
from foveate.recipes import RECIPES, override, to_config
from foveate.tasks import TASKS
from foveate.train.checkpoint import WEIGHTS
from foveate.train.folder import CONFIG, VOCABULARY
from foveate.train.weights import named_tensors, save_tensors


@pytest.fixture
def untrained(tmp_path):
    """`untrained(recipe, name)` puts a run with its first weights into the folder of the runs."""

    def make(recipe: str, name: str):
        made = override(RECIPES[recipe](), ["limit=12"])
        task = TASKS[made.task].from_data(made.settings, None)
        model = task.build_model()
        task.initialise(model)
        folder = tmp_path / name
        folder.mkdir()
        write_json(folder / CONFIG, to_config(made))
        write_json(folder / VOCABULARY, task.vocabulary())
        save_tensors(folder / WEIGHTS, named_tensors(model))
        return folder

    return make
