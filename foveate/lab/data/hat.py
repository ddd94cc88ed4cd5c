"""VQA-HAT: human attention maps for questions of VQA v1, one grey-scale image per annotator."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from foveate.errors import DataError, UnknownName
from foveate.io import decode_grey
from foveate.lab.data.files import need_directory
from foveate.lab.data.samples import Dataset, Id
from foveate.lab.data.vqa_files import read_vqa

SOURCE = "VQA-HAT publishes vqahat_train and vqahat_val, directories of <question_id>_<k>.png"
_NAME = re.compile(r"(\d+)_(\d+)\.png", re.ASCII | re.IGNORECASE)


def read_hat(
    root: Path | None,
    split: str,
    *,
    maps: Path | None = None,
    image_dir: Path | None = None,
    need_images: bool = True,
) -> Dataset:
    """Read the questions of VQA v1 that have human attention maps, and their images.

    Args:
        root: directory of VQA v1 as for `read_vqa`, with the maps in `vqahat_train` and `vqahat_val`.
        split: "train" or "val".
        maps: directory of the maps, if not in `root`.
        image_dir, need_images: see `read_vqa`.

    Returns:
        The dataset; `question.human_maps` has one loader of an (H, W) map per annotator, in the order of file numbers.
    """
    if split not in ("train", "val"):
        raise UnknownName("split of VQA-HAT", split, ("train", "val"))
    root = need_directory("read_hat", root, SOURCE)
    data = read_vqa(root, split, version=1, image_dir=image_dir, need_images=need_images)
    return attach_human_maps(data, maps or root / f"vqahat_{split}")


def attach_human_maps(dataset: Dataset, directory: Path) -> Dataset:
    """Return the questions of a VQA v1 dataset that have human maps, with their maps.

    Maps are read when a loader is called. Raises DataError if the dataset lacks the question of a map.
    """
    maps = index_maps(directory)
    known = {question.id for question in dataset.questions}
    for name in maps.keys() - known:
        raise DataError(
            f"attach_human_maps: expected the question {name!r} of {maps[name][0]} in {dataset.name} {dataset.split}, "
            "got none; the maps belong to VQA v1, and each directory to one split"
        )
    questions = tuple(
        replace(question, human_maps=tuple(partial(read_map, path) for path in maps[question.id]))
        for question in dataset.questions
        if question.id in maps
    )
    kept = {question.image_id for question in questions}
    images = tuple(image for image in dataset.images if image.id in kept)
    return replace(dataset, name="vqa-hat", images=images, questions=questions)


def index_maps(directory: Path) -> dict[Id, tuple[Path, ...]]:
    """Return the map files of a directory by question, ordered by annotator number."""
    directory = need_directory("index_maps", directory, SOURCE)
    found: dict[Id, list[tuple[int, Path]]] = {}
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name:
            found.setdefault(int(name[1]), []).append((int(name[2]), path))
    if not found:
        raise DataError(f"index_maps: expected <question_id>_<k>.png in {directory}, got none; {SOURCE}")
    return {question: tuple(path for _, path in sorted(paths)) for question, paths in sorted(found.items())}


def read_map(path: Path) -> np.ndarray:
    """Read a map as (H, W) float32 brightness, at the size of the file."""
    return decode_grey(path).astype(np.float32)
