"""Karpathy's split files of COCO, Flickr8k and Flickr30k: pictures with their captions in one JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foveate.data.files import records, value
from foveate.data.samples import Caption, Dataset, Id, Picture
from foveate.data.tokens import tokenize
from foveate.errors import DataError, UnknownName

SOURCE = "the dataset_*.json files come in Karpathy's caption_datasets.zip"


def karpathy_dataset(
    where: str,
    path: Path,
    content: Any,
    split: str,
    *,
    find: Callable[[Mapping[str, Any]], tuple[Id, Path]],
) -> Dataset:
    """One split of a Karpathy file, or several joined by "+" ("train+restval").

    Args:
        where: the caller, for messages.
        path: of the file, for messages.
        content: what the file holds.
        split: "train", "restval", "val", "test", as the file has them.
        find: gives the id and the path of a picture's record.
    """
    entries = records(where, path, content, "images")
    wanted = split.split("+")
    known = {value(where, path, entry, "split", str) for entry in entries}
    for part in wanted:
        if part not in known:
            raise UnknownName(f"split of {path.name}", part, known)
    pictures, captions = [], []
    for entry in entries:
        if entry["split"] in wanted:
            name, file = find(entry)
            pictures.append(Picture(name, file))
            captions.extend(_captions(where, path, name, entry))
    return Dataset(value(where, path, content, "dataset", str), split, tuple(pictures), captions=tuple(captions))


def _captions(where: str, path: Path, image: Id, entry: Mapping[str, Any]) -> list[Caption]:
    sentences = value(where, path, entry, "sentences", list)
    if not sentences:
        raise DataError(f"{where}: expected captions for picture {image!r} in {path}, got none; drop the picture")
    found = []
    for sentence in sentences:
        text = value(where, path, sentence, "raw", str)
        name = value(where, path, sentence, "sentid", (int, str))
        found.append(Caption(name, image, text, tokenize(text)))
    return found


def picture_of(
    where: str, path: Path, found: Mapping[Id, Path], entry: Mapping[str, Any], home: Path, need: bool
) -> Path:
    """The file of a picture's record by its file name, or DataError that says where it was looked for."""
    name = value(where, path, entry, "filename", str)
    if name in found:
        return found[name]
    if need:
        raise DataError(
            f"{where}: expected the picture {name} of {path}, got none in {home}; "
            "fetch the pictures, or pass need_pictures=False to work on stored features"
        )
    return home / name
