"""One's own pictures: a folder, and a file of lines that say something about them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from foveate.data.files import PICTURE_SUFFIXES, need_folder, pixel_box, value
from foveate.data.pictures import picture_size
from foveate.data.samples import ANSWER_TYPES, Caption, Dataset, Id, Object, Picture, Question
from foveate.data.tokens import tokenize
from foveate.errors import DataError

SOURCE = "make a folder of pictures with a file {split}.jsonl of one JSON object a line"
ALL = "all"
_Line = tuple[str, Mapping[str, Any]]


def read_folder(root: Path | None, split: str = ALL) -> Dataset:
    """A folder of pictures and what `{split}.jsonl` in it says of them.

    Each line is about one picture, named by its path from `root` or `root/images`, and says one thing:

        {"image": "cat.jpg", "caption": "A cat on a chair."}
        {"image": "cat.jpg", "question": "What is on the chair?", "answers": ["cat", "a cat"], "answer_type": "other"}
        {"image": "cat.jpg", "object": "cat", "box": [10, 20, 110, 95]}
        {"image": "dog.jpg"}

    `answers` (one a person), `answer` (the agreed one), `answer_type` and `choices` may be left out; a box is left,
    top, right, bottom in pixels; a caption, question or object may have an `id`, otherwise it is its line's number.
    The split "all" without a file `all.jsonl` is every picture of the folder, with nothing said.

    Returns:
        The dataset; the id of a picture is its path as written.
    """
    root = need_folder("read_folder", root, SOURCE)
    home = root / "images" if (root / "images").is_dir() else root
    file = root / f"{split}.jsonl"
    if not file.is_file():
        if split != ALL:
            raise DataError(f"read_folder: expected the file {file}, got none; {SOURCE}")
        return Dataset(root.name, split, _all_pictures(home))
    pictures: dict[str, Picture] = {}
    captions: list[Caption] = []
    questions: list[Question] = []
    objects: dict[Id, list[Object]] = {}
    for number, (where, record) in enumerate(_lines(file), 1):
        image = value("read_folder", file, record, "image", str)
        if image not in pictures:
            pictures[image] = _picture(where, image, (home, root))
        name = record.get("id", number)
        if "caption" in record:
            text = value("read_folder", file, record, "caption", str)
            captions.append(Caption(name, image, text, tokenize(text)))
        if "question" in record:
            questions.append(_question(where, file, name, image, record))
        if "object" in record:
            objects.setdefault(image, []).append(_object(where, file, name, _size(pictures[image]), record))
    if not pictures:
        raise DataError(f"read_folder: expected lines in {file}, got none; {SOURCE}")
    things = {image: tuple(found) for image, found in objects.items()}
    return Dataset(root.name, split, tuple(pictures.values()), tuple(questions), tuple(captions), things)


def _all_pictures(home: Path) -> tuple[Picture, ...]:
    paths = sorted(path for path in home.rglob("*") if path.suffix.lower() in PICTURE_SUFFIXES and path.is_file())
    if not paths:
        suffixes = ", ".join(sorted(PICTURE_SUFFIXES))
        raise DataError(f"read_folder: expected pictures ({suffixes}) in {home}, got none; name the folder they are in")
    return tuple(Picture(path.relative_to(home).as_posix(), path) for path in paths)


def _lines(file: Path) -> Iterator[_Line]:
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            where = f"line {number} of {file}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise DataError(
                    f"read_folder: expected a JSON object in {where}, got {error}; correct the line"
                ) from None
            if not isinstance(record, dict):
                raise DataError(f"read_folder: expected a JSON object in {where}, got {record!r:.60}; correct the line")
            yield where, record


def _picture(where: str, image: str, homes: tuple[Path, ...]) -> Picture:
    for home in homes:
        if (home / image).is_file():
            return Picture(image, home / image)
    looked = " or ".join(dict.fromkeys(map(str, homes)))
    raise DataError(f"read_folder: expected the picture {image!r} of {where} in {looked}, got no file; add the file")


def _size(picture: Picture) -> tuple[int, int]:
    return picture_size(picture.source) if isinstance(picture.source, Path) else picture.source().shape[1::-1]


def _question(where: str, file: Path, name: Id, image: str, record: Mapping[str, Any]) -> Question:
    text = value("read_folder", file, record, "question", str)
    lists = {}
    for key in ("answers", "choices"):
        lists[key] = record.get(key, [])
        if not isinstance(lists[key], list) or not all(isinstance(item, str) for item in lists[key]):
            raise DataError(
                f"read_folder: expected {key!r} as a list of strings in {where}, got {lists[key]!r:.60}; "
                "correct the line"
            )
    answer, kind = record.get("answer"), record.get("answer_type")
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(
            f"read_folder: expected answer_type to be one of {', '.join(ANSWER_TYPES)}, got {kind!r} in {where}; "
            "correct the line"
        )
    answers = tuple(lists["answers"]) or ((answer,) if answer is not None else ())
    return Question(name, image, text, answers, answer, kind, choices=tuple(lists["choices"]))


def _object(where: str, file: Path, name: Id, size: tuple[int, int], record: Mapping[str, Any]) -> Object:
    box = record.get("box")
    if not (isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) for v in box)):
        raise DataError(
            f"read_folder: expected box as [left, top, right, bottom] in {where}, got {box!r:.60}; correct the line"
        )
    kind = value("read_folder", file, record, "object", str)
    corners = (box[0], box[1], box[2], box[3])
    return Object(name, kind, pixel_box("read_folder", file, where, corners, size))
