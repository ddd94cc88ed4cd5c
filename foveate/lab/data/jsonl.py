"""Your own data: a directory of images and a file of annotations."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foveate.errors import DataError
from foveate.io import image_size
from foveate.lab.data.files import (
    IMAGE_SUFFIXES,
    field_id,
    field_strings,
    field_text,
    field_value,
    four_numbers,
    need_directory,
    pixel_box,
)
from foveate.lab.data.folder_files import ALL, SPLITS, VALIDATION, Row, find_annotations
from foveate.lab.data.samples import ANSWER_TYPES, Caption, Dataset, Id, ImageRecord, Object, Question
from foveate.lab.data.vocabulary import tokenize

SOURCE = "make a directory of images with a file {split}.jsonl of one JSON object per line"
MAX_ENTRIES = 1_000_000  # of a directory of images: a whole file system was named by mistake
HELD_OUT = 10  # one image in ten for "val", another for "test"


def read_folder(
    root: Path | None,
    split: str = ALL,
    *,
    allow_outside: bool = False,
    split_seed: int = 0,
    fold: tuple[int, int] | None = None,
) -> Dataset:
    """Read a directory of images with the annotations in its file `{split}.jsonl`.

    Each line annotates one image, named by its path relative to `root/images` or `root`:

        {"image": "cat.jpg", "caption": "A cat on a chair."}
        {"image": "cat.jpg", "question": "What is on the chair?", "answers": ["cat", "a cat"], "answer_type": "other"}
        {"image": "cat.jpg", "object": "cat", "box": [10, 20, 110, 95]}
        {"image": "dog.jpg"}

    `answers` (one per annotator), `answer` (the consensus), `answer_type` and `choices` are optional; a box is left,
    top, right, bottom in pixels; a caption, question or object may have an `id`, by default the number of its line. A
    caption may be a list of several. The split "all" without any annotation is every image of the directory.

    Without a file of the split, the files that are not called after a split are divided: by their key `split`, or else
    by image, one in ten for "val" and one for "test", drawn at random with `split_seed`. Files may also be CSV with
    named columns or COCO's JSON, and the directory a Hugging Face dataset; see `foveate.lab.data.folder_files`.

    Args:
        root: the directory.
        split: name of the file.
        allow_outside: read images outside `root` too, by absolute paths, ".." or symbolic links. Otherwise these raise
            DataError: a file from a stranger shall not name the files of this machine.
        split_seed: of the division into splits.
        fold: (number, count) of a cross-validation: val is that one of `count` parts of all images, train the others.

    Returns:
        The dataset; the id of an image is its path as written.
    """
    root = need_directory("read_folder", root, SOURCE)
    found = find_annotations(root, split)
    if found is None:
        if split != ALL:
            raise DataError(f"read_folder: expected the file {root / f'{split}.jsonl'}, got none; {SOURCE}")
        return _joined_splits(root, allow_outside)
    builder = FolderBuilder(root, split, allow_outside, dict(found.images))
    for row in found.rows():
        if row.error is not None:
            raise row.error
        builder.add(row)
    if not builder.images:
        files = " and ".join(map(str, found.files))
        raise DataError(f"read_folder: expected lines in {files}, got none; {SOURCE}")
    whole = builder.dataset()
    if fold is not None and (found.divided or builder.splits):
        raise DataError(f"read_folder: expected data without splits for folds, got those of {root}; leave folds out")
    if found.divided or split == ALL:
        return whole
    return choose_split(whole, split, builder.splits, split_seed, fold)


def choose_split(
    data: Dataset, split: str, written: Mapping[Id, str], seed: int, fold: tuple[int, int] | None = None
) -> Dataset:
    """The images of a split, with their annotations.

    Args:
        data: all images.
        split: "train", "val" or "test".
        written: the splits that annotations name, by image; if there are any, images without one are left out.
        seed: of the division if none is named.
        fold: of a cross-validation, see `read_folder`.
    """
    if split not in SPLITS:
        raise DataError(f"read_folder: expected the split all, train, val or test, got {split!r}; {SOURCE}")
    places = written or divide([image.id for image in data.images], seed, fold)
    chosen = [image for image in data.images if places.get(image.id) == split]
    if not chosen:
        raise DataError(
            f"read_folder: expected images of the split {split} among {len(data)} of {data.name}, got none; "
            "add images or name their splits"
        )
    return data.of_images(split, chosen)


def divide(names: Iterable[Id], seed: int, fold: tuple[int, int] | None = None) -> dict[Id, str]:
    """The split of each name: one in ten for "val" and one for "test", at least one for "val" if there are two.

    With a fold (number, count), every count-th is for "val" and the others are for "train".

    >>> sorted(divide(["a", "b", "c"], seed=0).values())
    ['train', 'train', 'val']
    >>> [sorted(divide("abcde", 0, (number, 2)).values()).count("val") for number in (0, 1)]
    [3, 2]
    """
    ranked = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    if fold is not None:
        number, count = fold
        if not 0 <= number < count <= len(ranked):
            raise DataError(f"read_folder: expected at most {len(ranked)} folds, one per image, got {count}; use fewer")
        return {n: "val" if p % count == number else "train" for p, n in enumerate(ranked)}
    held = len(ranked) // HELD_OUT
    val = max(held, int(len(ranked) > 1))
    return {n: "val" if p < val else "test" if p < val + held else "train" for p, n in enumerate(ranked)}


@dataclass
class FolderBuilder:
    """Collects the records of a directory; `add` raises DataError for a record that is wrong and keeps the others.

    Attributes:
        root: the directory.
        split: name of the split.
        allow_outside: as in `read_folder`.
        stored: images that are not files, by name.
        images: those that were annotated, by name.
        splits: by image, where records name one.
    """

    root: Path
    split: str
    allow_outside: bool
    stored: Mapping[str, ImageRecord] = field(default_factory=dict)
    images: dict[Id, ImageRecord] = field(default_factory=dict)
    splits: dict[Id, str] = field(default_factory=dict)
    captions: list[Caption] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)
    objects: dict[Id, list[Object]] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        """Add a record."""
        where, record = row.where, row.record
        image = field_value("read_folder", where, record, "image", str)
        if image not in self.images:
            self.images[image] = self.stored.get(image) or _image(where, image, self.homes, self.allow_outside)
        name = field_id("read_folder", where, record, "id") if "id" in record else row.number
        if "split" in record:
            self.splits[image] = _split(where, record)
        if "caption" in record:
            self.captions += _captions(where, name, image, record)
        if "question" in record:
            self.questions.append(_question(where, name, image, record))
        if "object" in record or "box" in record:
            found = _object(where, name, _size(self.images[image]), record)
            self.objects.setdefault(image, []).append(found)

    def dataset(self) -> Dataset:
        """Everything that was added."""
        things = {image: tuple(found) for image, found in self.objects.items()}
        return Dataset(
            self.root.name,
            self.split,
            tuple(self.images.values()),
            tuple(self.questions),
            tuple(self.captions),
            things,
        )

    @property
    def homes(self) -> tuple[Path, Path]:
        """The directories in which images are looked for."""
        return image_home(self.root), self.root


def image_home(root: Path) -> Path:
    """The directory of the images."""
    return root / "images" if (root / "images").is_dir() else root


def list_folder_images(root: Path, *, allow_outside: bool = False) -> tuple[ImageRecord, ...]:
    """Every image file of the directory; raises DataError if there is none."""
    home = image_home(root)
    paths, seen = list[Path](), 0
    for place, directories, files in os.walk(home):  # passes over what is removed meanwhile, as /proc does all the time
        seen += len(directories) + len(files)
        if seen > MAX_ENTRIES:
            raise DataError(
                f"read_folder: expected at most {MAX_ENTRIES} files and directories in {home}, got more; pass the "
                "directory of the images"
            )
        images = [Path(place, name) for name in files if Path(name).suffix.lower() in IMAGE_SUFFIXES]
        paths += [path for path in images if path.is_file()]
    paths.sort()
    if not paths:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(
            f"read_folder: expected images ({suffixes}) in {home}, got none; pass the directory they are in"
        )
    for path in paths:
        _check_inside(f"the directory {root}", path, root, allow_outside)
    return tuple(ImageRecord(path.relative_to(home).as_posix(), path) for path in paths)


def _joined_splits(root: Path, allow_outside: bool) -> Dataset:
    """Every image of a directory without annotations, or of the files of its splits."""
    images: dict[Id, ImageRecord] = {}
    for split in SPLITS:
        found = find_annotations(root, split)
        if found is not None:
            images.update({i.id: i for i in read_folder(root, split, allow_outside=allow_outside).images})
    return Dataset(root.name, ALL, tuple(images.values()) or list_folder_images(root, allow_outside=allow_outside))


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


def _split(where: str, record: Mapping[str, Any]) -> str:
    split = field_value("read_folder", where, record, "split", str)
    split = "val" if split in VALIDATION else split
    if split not in SPLITS:
        raise DataError(
            f"read_folder: expected split to be one of {', '.join(SPLITS)}, got {split!r:.40} in {where}; "
            "correct the line"
        )
    return split


def _captions(where: str, name: Id, image: str, record: Mapping[str, Any]) -> list[Caption]:
    if not isinstance(record["caption"], list):
        text = field_value("read_folder", where, record, "caption", str)
        return [Caption(name, image, text, tokenize(text))]
    texts = field_strings("read_folder", where, record, "caption")
    return [Caption(f"{name}.{place}", image, text, tokenize(text)) for place, text in enumerate(texts, 1)]


def _question(where: str, name: Id, image: str, record: Mapping[str, Any]) -> Question:
    text = field_value("read_folder", where, record, "question", str)
    answers, choices = (field_strings("read_folder", where, record, key) for key in ("answers", "choices"))
    answer, kind = field_text("read_folder", where, record, "answer"), record.get("answer_type")
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(
            f"read_folder: expected answer_type to be one of {', '.join(ANSWER_TYPES)}, got {kind!r:.40} in {where}; "
            "correct the line"
        )
    answers = answers or ((answer,) if answer is not None else ())
    return Question(name, image, text, answers, answer, kind, choices=choices)


def _object(where: str, name: Id, size: tuple[int, int], record: Mapping[str, Any]) -> Object:
    corners = four_numbers(record.get("box"))
    if corners is None:
        raise DataError(
            f"read_folder: expected box as [left, top, right, bottom] in {where}, got {record.get('box')!r:.60}; "
            "correct the line"
        )
    kind = field_value("read_folder", where, record, "object", str)
    return Object(name, kind, pixel_box("read_folder", None, where, corners, size))
