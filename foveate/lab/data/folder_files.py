"""The annotation files of a directory of your own: JSON Lines, CSV, COCO's JSON and Hugging Face datasets, as records.

Every format becomes records with the keys of JSON Lines (see `read_folder`), each with the place it comes from.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foveate.errors import DataError
from foveate.io import decode_image, read_json
from foveate.lab.data.files import four_numbers, records
from foveate.lab.data.samples import ImageRecord
from foveate.registry import optional

ALL = "all"
SPLITS = ("train", "val", "test")
KEYS = ("image", "id", "caption", "question", "answers", "answer", "answer_type", "choices", "object", "box", "split")
# Other names of keys, as CSV files and Hugging Face datasets have them.
ALIASES = {
    "file_name": "image",
    "filename": "image",
    "image_path": "image",
    "text": "caption",
    "captions": "caption",
    "sentence": "caption",
    "sentences": "caption",
    "label": "object",
    "bbox": "box",
}
# Names that other programs have for the split "val".
VALIDATION = ("validation", "valid", "dev")
LISTS = ("answers", "choices")
MAX_LINE = 1 << 20  # characters
COCO_SOURCE = "a file of COCO has the lists images and annotations"


class Row(NamedTuple):
    """A record and where it stands, "line 3 of train.jsonl"; or what is wrong there.

    Attributes:
        number: of the line or annotation in its file.
        where: for messages.
        record: by key.
        error: why there is no record.
    """

    number: int
    where: str
    record: Mapping[str, Any]
    error: DataError | None = None


@dataclass(frozen=True)
class FolderAnnotations:
    """The annotations of a split.

    Attributes:
        files: where they stand.
        rows: reads them.
        images: the images that are not files, by name.
        divided: True if the files belong to this split; False if they belong to all splits together.
    """

    files: tuple[Path, ...]
    rows: Callable[[], Iterator[Row]]
    images: Mapping[str, ImageRecord] = field(default_factory=dict)
    divided: bool = True


def find_annotations(root: Path, split: str) -> FolderAnnotations | None:
    """The annotations of a split, or those of all splits if they are not divided; None if there are none.

    Files called `{split}` with any suffix come first; otherwise all files whose name is not that of a split.
    """
    if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
        return _hugging_face(root, split)
    files = {path.stem: path for path in _annotation_files(root)}
    if split in files:
        return FolderAnnotations((files[split],), partial(_read, (files[split],)), divided=True)
    shared = tuple(path for name, path in sorted(files.items()) if name not in SPLITS)
    if not shared or any(name in files for name in SPLITS):
        return None
    return FolderAnnotations(shared, partial(_read, shared), divided=False)


def _annotation_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir(), reverse=True):  # .jsonl before .json before .csv of the same name
        if path.is_file() and path.suffix in READERS and (path.suffix != ".json" or _is_coco(path)):
            yield path


def _is_coco(path: Path) -> bool:
    if path.stem in (*SPLITS, ALL):
        return True
    with path.open("rb") as file:
        start = file.read(1 << 16)
    return start.lstrip()[:1] == b"{" and (b'"images"' in start or b'"annotations"' in start)


def _read(files: tuple[Path, ...]) -> Iterator[Row]:
    rows = (row for path in files for row in READERS[path.suffix](path))
    # Numbers become ids, which must differ between files.
    return rows if len(files) == 1 else (row._replace(number=number) for number, row in enumerate(rows, 1))


def read_jsonl(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON Lines."""
    # A broken byte becomes half a surrogate pair, which no field may contain: the error names the line.
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE), ""), 1):
            if not line.strip():
                continue
            where = f"line {number} of {path}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield _wrong(number, where, f"expected a JSON object in {where}, got {error}; correct the line")
                continue
            if isinstance(record, dict):
                yield Row(number, where, rename_keys(record))
            else:
                yield _wrong(number, where, f"expected a JSON object in {where}, got {record!r:.60}; correct the line")


def read_csv(path: Path) -> Iterator[Row]:
    """The lines of a CSV file whose first line names the columns; several answers or choices are separated by "|".

    A box is one column of four numbers separated by blanks, or the columns left, top, right and bottom.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        head = file.readline(MAX_LINE)
        file.seek(0)
        reader = csv.DictReader(file, delimiter=max(",;\t", key=head.count))
        while True:
            try:
                line = next(reader, None)
            except csv.Error as error:
                where = f"line {reader.line_num} of {path}"
                yield _wrong(reader.line_num, where, f"expected a line of CSV in {where}, got {error}; correct it")
                return
            if line is None:
                return
            number = reader.line_num
            where = f"line {number} of {path}"
            if None in line or None in line.values():
                columns = len(reader.fieldnames or ())
                yield _wrong(number, where, f"expected {columns} columns in {where}, got others; put texts in quotes")
                continue
            yield Row(number, where, _plain(rename_keys(line)))


def read_coco_json(path: Path) -> Iterator[Row]:
    """The annotations of a file in COCO's format: captions, and objects with boxes [left, top, width, height]."""
    data = read_json("read_folder", path, COCO_SOURCE)
    images = {image.get("id"): image.get("file_name") for image in records("read_folder", path, data, "images")}
    kinds = {kind.get("id"): kind.get("name") for kind in data.get("categories", []) if isinstance(kind, dict)}
    used = set()
    for number, one in enumerate(records("read_folder", path, data, "annotations"), 1):
        where = f"annotation {number} of {path}"
        name = images.get(one.get("image_id"))
        if not isinstance(name, str):
            yield _wrong(
                number,
                where,
                f"expected the image_id of one of its images in {where}, got {one.get('image_id')!r:.40}; correct it",
            )
            continue
        used.add(name)
        found: dict[str, Any] = {key: one[key] for key in ("caption", "question", "answer", "answers") if key in one}
        if "bbox" in one:
            corners = four_numbers(one["bbox"])
            found["object"] = kinds.get(one.get("category_id"), "object")
            found["box"] = one["bbox"] if corners is None else _corners(*corners)
        yield Row(number, where, {"image": name, **found})
    for number, name in enumerate(sorted(str(name) for name in images.values() if name not in used), 1):
        yield Row(number, f"the images of {path}", {"image": name})


READERS: dict[str, Callable[[Path], Iterator[Row]]] = {".jsonl": read_jsonl, ".json": read_coco_json, ".csv": read_csv}


def rename_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with the keys of `read_folder` for other names of them; what it has under its own name stays.

    >>> rename_keys({"file_name": "cat.jpg", "text": "A cat."})
    {'image': 'cat.jpg', 'caption': 'A cat.'}
    """
    own = {str(key).strip(): value for key, value in record.items()}
    return {ALIASES[k] if k in ALIASES and ALIASES[k] not in own else k: value for k, value in own.items()}


def _wrong(number: int, where: str, message: str) -> Row:
    return Row(number, where, {}, DataError(f"read_folder: {message}"))


def _plain(line: Mapping[str, str]) -> dict[str, Any]:
    """The texts of a line of CSV as values of a record; empty ones are left out."""
    record: dict[str, Any] = {key: text for key, text in line.items() if text != ""}
    for key in LISTS:
        if key in record:
            record[key] = [part.strip() for part in record[key].split("|")]
    sides = ("left", "top", "right", "bottom")
    if all(side in record for side in sides):
        record["box"] = " ".join(record.pop(side) for side in sides)
    if isinstance(record.get("box"), str):
        record["box"] = [_number(text) for text in record["box"].strip("[]() ").replace(",", " ").split()]
    return record


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _corners(left: float, top: float, width: float, height: float) -> list[float]:
    return [left, top, left + width, top + height]


def _hugging_face(root: Path, split: str) -> FolderAnnotations | None:
    """The rows of a dataset that `save_to_disk` of the package `datasets` wrote (extra `datasets`)."""
    datasets = optional("read_folder", "datasets", extra="datasets")
    try:
        found = datasets.load_from_disk(str(root))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"read_folder: expected a dataset of the package datasets in {root}, got {error}; save it again"
        ) from None
    parts = dict(found) if isinstance(found, dict) else {ALL: found}
    parts = {"val" if name in VALIDATION else name: part for name, part in parts.items()}
    divided = split in parts
    chosen = {split: parts[split]} if divided else {} if any(name in parts for name in SPLITS) else parts
    if not chosen:
        return None
    rows, images = [], {}
    for name, part in chosen.items():
        own, stored = _rows_of(datasets, root, name, part)
        rows += own
        images.update(stored)
    return FolderAnnotations((root,), partial(iter, rows), images, divided)


def _rows_of(datasets: Any, root: Path, name: str, part: Any) -> tuple[list[Row], dict[str, ImageRecord]]:
    """The rows of one split; an image in the column "image" is decoded when it is needed."""
    column = next((key for key, kind in part.features.items() if isinstance(kind, datasets.Image)), None)
    part = part if column is None else part.cast_column(column, datasets.Image(decode=False))
    rows, images = [], {}
    for number, line in enumerate(part.remove_columns([column] if column else []), 1):
        where = f"row {number} of {name} in {root}"
        record = rename_keys({key: value for key, value in line.items() if value is not None})
        if column is not None:
            record["image"] = f"{name}/{number}"
            images[record["image"]] = ImageRecord(record["image"], partial(_stored_image, part, column, number - 1))
        rows.append(Row(number, where, record))
    return rows, images


def _stored_image(part: Any, column: str, position: int) -> np.ndarray[Any, Any]:
    stored = part[position][column]
    return decode_image(stored["path"] if stored["bytes"] is None else stored["bytes"])
