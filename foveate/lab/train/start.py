"""A recipe for data of your own that starts from a run: it keeps its data and its training, and takes on the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from foveate.errors import DataError
from foveate.lab.encoders.image_encoder import Preprocess
from foveate.lab.tasks.images import Conv, Extracted, Images
from foveate.lab.train.recipe import Recipe, read_run, read_vocabulary, run_directory

# What describes the data, and stays that of the recipe.
DATA_FIELDS = ("dataset", "train_split", "limit", "split_seed", "min_count")


def adopt_start(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """The recipe with the model of the run that its changes name as `start`, if it extracts its features itself.

    Args:
        recipe: one whose images are `Extracted`, otherwise it is returned as it is.
        changes: texts `field=value`.

    Raises DataError if the run is of another task.
    """
    run = next((change.partition("=")[2].strip() for change in changes if change.startswith("start=")), "none")
    if run.lower() == "none" or not isinstance(getattr(recipe.settings, "images", None), Extracted):
        return recipe
    started, _ = read_run(run)
    if started.task != recipe.task:
        raise DataError(
            f"{recipe.name}: expected a run of {recipe.task} to start from, got {run!r} of {started.task}; "
            f"use {started.task}-folder or another run"
        )
    kept = {name: getattr(recipe.settings, name) for name in DATA_FIELDS if name in _names(recipe.settings)}
    store = read_vocabulary(run_directory(run)).get("store")
    images = _images(started.settings.images, store, recipe.settings.images)
    return replace(recipe, settings=replace(started.settings, images=images, **kept))


def _names(settings: Any) -> set[str]:
    return {field.name for field in fields(settings)}


def _images(started: Images, store: Mapping[str, str] | None, own: Extracted) -> Images:
    """Images as the run reads them: its own encoder, or features of the encoder that made its store."""
    if isinstance(started, Conv) or store is None:
        return started
    size = Preprocess.from_description(store["preprocess"]).size[0] if store["preprocess"] else None
    return replace(own, encoder=store["encoder"], size=size)
