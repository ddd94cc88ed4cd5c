"""Runs on data of your own: recipes that take on the model of a run, and runs that read another kind of data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from foveate.errors import DataError
from foveate.lab.data.folder_files import ALL, SPLITS, find_annotations
from foveate.lab.data.samples import DataDirectory, DataRoot
from foveate.lab.encoders.image_encoder import Preprocess
from foveate.lab.tasks.images import Conv, Extracted, Images
from foveate.lab.train.recipe import Recipe, read_run, read_vocabulary, run_directory

# What describes the data, and stays that of the recipe.
OWN = ("folder", "shards")  # datasets of one's own
DATA_FIELDS = ("dataset", "train_split", "limit", "split_seed", "folds", "fold", "min_count")


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


def as_own_data(run: str | Path, changes: Sequence[str], root: DataRoot) -> tuple[str, ...]:
    """The changes of a run that read a directory of one's own, with features of the run's encoder.

    Args:
        run: directory of a run or name of an embedded one.
        changes: of its recipe.
        root: directory of the data.

    Returns:
        the changes, with those that are needed; as they are if the directory has no annotations that `foveate check`
        reads, or if they name a dataset.
    """
    home = DataDirectory.of(root).path
    if home is None or not home.is_dir() or any(change.startswith("dataset=") for change in changes):
        return tuple(changes)
    recipe, task = read_run(run, changes)
    if recipe.settings.dataset in OWN or all(find_annotations(home, split) is None for split in (*SPLITS, ALL)):
        return tuple(changes)
    images = _images(recipe.settings.images, task.vocabulary().get("store"), Extracted())
    if not isinstance(images, Extracted):
        return (*changes, "dataset=folder")
    size = "none" if images.size is None else str(images.size)
    return (*changes, "dataset=folder", "images=extracted", f"images.encoder={images.encoder}", f"images.size={size}")
