"""Your own data: a directory of images and a file of annotations in JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foveate.data.files import (
    IMAGE_SUFFIXES,
    field_id,
    field_strings,
    field_text,
    field_value,
    four_numbers,
    need_directory,
    pixel_box,
)
from foveate.data.image_files import image_size
from foveate.data.samples import ANSWER_TYPES, Caption, Dataset, Id, ImageRecord, Object, Question
from foveate.data.vocabulary import tokenize
from foveate.errors import DataError

SOURCE = "make a directory of images with a file {split}.jsonl of one JSON object per line"
ALL = "all"
MAX_LINE = 1 << 20  # characters
_Line = tuple[str, Mapping[str, Any]]


def read_folder(root: Path | None, split: str = ALL, *, allow_outside: bool = False) -> Dataset:
    """Read a directory of images with the annotations in its file `{split}.jsonl`.

    Each line annotates one image, named by its path relative to `root/images` or `root`:

        {"image": "cat.jpg", "caption": "A cat on a chair."}
        {"image": "cat.jpg", "question": "What is on the chair?", "answers": ["cat", "a cat"], "answer_type": "other"}
        {"image": "cat.jpg", "object": "cat", "box": [10, 20, 110, 95]}
        {"image": "dog.jpg"}

    `answers` (one per annotator), `answer` (the consensus), `answer_type` and `choices` are optional; a box is left,
    top, right, bottom in pixels; a caption, question or object may have an `id`, by default the number of its line. The
    split "all" without a file `all.jsonl` is every image of the directory, without annotations.

    Args:
        root: the directory.
        split: name of the file.
        allow_outside: read images outside `root` too, by absolute paths, ".." or symbolic links. Otherwise these raise
            DataError: a file from a stranger shall not name the files of this machine.

    Returns:
        The dataset; the id of an image is its path as written.
    """
    root = need_directory("read_folder", root, SOURCE)
    home = root / "images" if (root / "images").is_dir() else root
    file = root / f"{split}.jsonl"
    if not file.is_file():
        if split != ALL:
            raise DataError(f"read_folder: expected the file {file}, got none; {SOURCE}")
        return Dataset(root.name, split, _all_images(home, root, allow_outside))
    images: dict[str, ImageRecord] = {}
    captions: list[Caption] = []
    questions: list[Question] = []
    objects: dict[Id, list[Object]] = {}
    for number, (where, record) in enumerate(_lines(file), 1):
        image = field_value("read_folder", file, record, "image", str)
        if image not in images:
            images[image] = _image(where, image, (home, root), allow_outside)
        name = field_id("read_folder", file, record, "id") if "id" in record else number
        if "caption" in record:
            text = field_value("read_folder", file, record, "caption", str)
            captions.append(Caption(name, image, text, tokenize(text)))
        if "question" in record:
            questions.append(_question(where, file, name, image, record))
        if "object" in record:
            objects.setdefault(image, []).append(_object(where, file, name, _size(images[image]), record))
    if not images:
        raise DataError(f"read_folder: expected lines in {file}, got none; {SOURCE}")
    things = {image: tuple(found) for image, found in objects.items()}
    return Dataset(root.name, split, tuple(images.values()), tuple(questions), tuple(captions), things)


def _all_images(home: Path, root: Path, allow_outside: bool) -> tuple[ImageRecord, ...]:
    paths = sorted(path for path in home.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    if not paths:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(
            f"read_folder: expected images ({suffixes}) in {home}, got none; pass the directory they are in"
        )
    for path in paths:
        _check_inside(f"the directory {root}", path, root, allow_outside)
    return tuple(ImageRecord(path.relative_to(home).as_posix(), path) for path in paths)


def _lines(file: Path) -> Iterator[_Line]:
    # A broken byte becomes half a surrogate pair, which no field may contain: the error names the line.
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(iter(lambda: lines.readline(MAX_LINE), ""), 1):
            if not line.strip():
                continue
            where = f"line {number} of {file}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(
                    f"read_folder: expected a JSON object in {where}, got {error}; correct the line"
                ) from None
            if not isinstance(record, dict):
                raise DataError(f"read_folder: expected a JSON object in {where}, got {record!r:.60}; correct the line")
            yield where, record


def _image(where: str, image: str, homes: tuple[Path, Path], allow_outside: bool) -> ImageRecord:
    for home in homes:
        if _is_file(home / image):
            _check_inside(where, home / image, homes[1], allow_outside)
            return ImageRecord(image, home / image)
    searched = " or ".join(dict.fromkeys(map(str, homes)))
    raise DataError(f"read_folder: expected the image {image!r:.100} of {where} in {searched}, got no file; add it")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name too long for the file system
        return False


def _check_inside(where: str, path: Path, root: Path, allow_outside: bool) -> None:
    # Resolved, since "..", absolute paths and symbolic links all lead elsewhere.
    if not allow_outside and not path.resolve().is_relative_to(root.resolve()):
        raise DataError(
            f"read_folder: expected images inside {root}, got {path.resolve()} in {where}; copy it there, or pass "
            "--allow-outside if you trust the file"
        )


def _size(image: ImageRecord) -> tuple[int, int]:
    return image_size(image.source) if isinstance(image.source, Path) else image.source().shape[1::-1]


def _question(where: str, file: Path, name: Id, image: str, record: Mapping[str, Any]) -> Question:
    text = field_value("read_folder", file, record, "question", str)
    answers, choices = (field_strings("read_folder", where, record, key) for key in ("answers", "choices"))
    answer, kind = field_text("read_folder", file, record, "answer"), record.get("answer_type")
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(
            f"read_folder: expected answer_type to be one of {', '.join(ANSWER_TYPES)}, got {kind!r:.40} in {where}; "
            "correct the line"
        )
    answers = answers or ((answer,) if answer is not None else ())
    return Question(name, image, text, answers, answer, kind, choices=choices)


def _object(where: str, file: Path, name: Id, size: tuple[int, int], record: Mapping[str, Any]) -> Object:
    corners = four_numbers(record.get("box"))
    if corners is None:
        raise DataError(
            f"read_folder: expected box as [left, top, right, bottom] in {where}, got {record.get('box')!r:.60}; "
            "correct the line"
        )
    kind = field_value("read_folder", file, record, "object", str)
    return Object(name, kind, pixel_box("read_folder", file, where, corners, size))
