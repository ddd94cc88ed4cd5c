"""Karpathy's split files of COCO, Flickr8k and Flickr30k: images with their captions in one JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foveate.errors import DataError, UnknownName
from foveate.lab.data.files import field_id, field_value, file_name, records
from foveate.lab.data.samples import Caption, Dataset, Id, ImageRecord
from foveate.lab.data.vocabulary import tokenize

SOURCE = "the dataset_*.json files come in Karpathy's caption_datasets.zip"
SPLITS = ("train", "val", "test")


def karpathy_dataset(
    where: str,
    path: Path,
    content: Any,
    split: str,
    *,
    splits: tuple[str, ...] = SPLITS,
    find: Callable[[Mapping[str, Any]], tuple[Id, Path]],
) -> Dataset:
    """Read one split of a Karpathy file, or several joined by "+" ("train+restval").

    Args:
        where: the caller, for messages.
        path: of the file, for messages.
        content: of the file.
        split: one of `splits`, or another one in the file.
        splits: that every such file has.
        find: returns the id and the path of the image of a record.
    """
    entries = records(where, path, content, "images")
    wanted = split.split("+")
    known = {field_value(where, path, entry, "split", str) for entry in entries}
    for part in wanted:
        if part not in known and part in splits:
            raise DataError(
                f"{where}: expected images of the split {part!r} in {path}, got {', '.join(sorted(known)) or 'none'}; "
                f"choose another split, or fetch the file again: {SOURCE}"
            )
        if part not in known:
            raise UnknownName(f"split of {path.name}", part, known)
    images, captions = [], []
    for entry in entries:
        if entry["split"] in wanted:
            name, file = find(entry)
            images.append(ImageRecord(name, file))
            captions.extend(_captions(where, path, name, entry))
    return Dataset(field_value(where, path, content, "dataset", str), split, tuple(images), captions=tuple(captions))


def _captions(where: str, path: Path, image: Id, entry: Mapping[str, Any]) -> list[Caption]:
    sentences = field_value(where, path, entry, "sentences", list)
    if not sentences:
        raise DataError(f"{where}: expected captions for image {image!r} in {path}, got none; remove the image")
    found = []
    for sentence in sentences:
        text = field_value(where, path, sentence, "raw", str)
        name = field_id(where, path, sentence, "sentid")
        found.append(Caption(name, image, text, tokenize(text)))
    return found


def image_of(
    where: str, path: Path, found: Mapping[Id, Path], entry: Mapping[str, Any], home: Path, need: bool
) -> Path:
    """Return the file of the image of a record; raises DataError that names the directory searched."""
    name = file_name(where, path, field_value(where, path, entry, "filename", str))
    if name in found:
        return found[name]
    if need:
        raise DataError(
            f"{where}: expected the image {name} of {path}, got none in {home}; "
            "fetch the images, or pass need_images=False to work with stored features"
        )
    return home / name
