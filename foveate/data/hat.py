"""VQA-HAT: where people looked to answer questions of VQA v1, one grey picture a person."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from foveate.data.files import need_folder
from foveate.data.pictures import read_grey
from foveate.data.samples import Dataset, Id
from foveate.data.vqa import read_vqa
from foveate.errors import DataError, UnknownName

SOURCE = "VQA-HAT publishes vqahat_train and vqahat_val, folders of <question_id>_<k>.png"
_NAME = re.compile(r"(\d+)_(\d+)\.png", re.ASCII | re.IGNORECASE)


def read_hat(
    root: Path | None,
    split: str,
    *,
    maps: Path | None = None,
    images: Path | None = None,
    need_pictures: bool = True,
) -> Dataset:
    """The questions of VQA v1 for which it is known where people looked, and their pictures.

    Args:
        root: folder of VQA v1 as for `read_vqa`, with the maps in `vqahat_train` and `vqahat_val`.
        split: "train" or "val".
        maps: folder of the maps, when it is elsewhere.
        images, need_pictures: as in `read_vqa`.

    Returns:
        The dataset; `question.looks` has one loader of an (H, W) map a person, in the order of the file numbers.
    """
    if split not in ("train", "val"):
        raise UnknownName("split of VQA-HAT", split, ("train", "val"))
    root = need_folder("read_hat", root, SOURCE)
    data = read_vqa(root, split, version=1, images=images, need_pictures=need_pictures)
    return attach_looks(data, maps or root / f"vqahat_{split}")


def attach_looks(dataset: Dataset, folder: Path) -> Dataset:
    """The part of a VQA v1 dataset that has human maps, with them.

    Maps are read when a loader is called. A map whose question the dataset does not have raises DataError.
    """
    maps = index_maps(folder)
    known = {question.id for question in dataset.questions}
    for name in maps.keys() - known:
        raise DataError(
            f"attach_looks: expected the question {name!r} of {maps[name][0]} in {dataset.name} {dataset.split}, got "
            "none; the maps belong to VQA v1, and each folder to one split"
        )
    questions = tuple(
        replace(question, looks=tuple(partial(read_look, path) for path in maps[question.id]))
        for question in dataset.questions
        if question.id in maps
    )
    kept = {question.image_id for question in questions}
    pictures = tuple(picture for picture in dataset.pictures if picture.id in kept)
    return replace(dataset, name="vqa-hat", pictures=pictures, questions=questions)


def index_maps(folder: Path) -> dict[Id, tuple[Path, ...]]:
    """The map files of a folder by question, each question's in the order of the people's numbers."""
    folder = need_folder("index_maps", folder, SOURCE)
    found: dict[Id, list[tuple[int, Path]]] = {}
    for path in folder.iterdir():
        name = _NAME.fullmatch(path.name)
        if name:
            found.setdefault(int(name[1]), []).append((int(name[2]), path))
    if not found:
        raise DataError(f"index_maps: expected <question_id>_<k>.png in {folder}, got none; {SOURCE}")
    return {question: tuple(path for _, path in sorted(paths)) for question, paths in sorted(found.items())}


def read_look(path: Path) -> np.ndarray:
    """The map in a file as (H, W) float32 brightness, at the file's own size."""
    return read_grey(path).astype(np.float32)


def to_grid(look: np.ndarray, H: int, W: int) -> np.ndarray:
    """A map as a distribution on an H x W grid: the share of its mass in each cell.

    A pixel on the border of two cells is divided between them by area. A map without any mass gives zeros.

    Args:
        look: (h, w) non-negative, of any size.

    Returns:
        (H, W) float64, sums to one.

    >>> to_grid(np.array([[1.0, 2.0, 1.0]]), 1, 2)
    array([[0.5, 0.5]])
    """
    rows, columns = _shares(look.shape[0], H), _shares(look.shape[1], W)
    mass = rows @ np.asarray(look, np.float64) @ columns.T
    total = mass.sum()
    return mass / total if total > 0 else np.zeros((H, W))


def _shares(pixels: int, cells: int) -> np.ndarray:
    """(cells, pixels) share of each pixel that lies in each cell of the same unit interval."""
    edges = np.arange(cells + 1)[:, None] / cells * pixels
    covered = np.clip(edges - np.arange(pixels), 0, 1)
    return np.diff(covered, axis=0)
