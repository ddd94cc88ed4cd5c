"""VQA v1 and v2: questions about COCO images with ten annotators' answers each, and the human maps of VQA-HAT."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foveate.errors import DataError, UnknownName, WrongValue
from foveate.io import decode_grey, read_json
from foveate.lab.data.files import (
    coco_directories,
    coco_id,
    field_id,
    field_strings,
    field_text,
    field_value,
    file_name,
    find_file,
    index_images,
    need_directory,
    records,
    unique,
)
from foveate.lab.data.samples import ANSWER_TYPES, Dataset, Id, ImageRecord, Question

SOURCE = "questions and annotations come from visualqa.org, images from cocodataset.org"
SUBSETS = {
    "train": "train2014",
    "val": "val2014",
    "test": "test2015",
    "test-dev": "test-dev2015",
}
TASKS = {"open": "OpenEnded", "choice": "MultipleChoice"}
PREFIXES = {1: "", 2: "v2_"}


class _Files(NamedTuple):
    """The files of a split, and the version in their names (None for the plain names)."""

    questions: Path
    annotations: Path | None
    version: int | None


def read_vqa(
    root: Path | None,
    split: str,
    *,
    version: int | None = None,
    task: str = "open",
    image_dir: Path | None = None,
    need_images: bool = True,
) -> Dataset:
    """Read questions with the annotators' answers and their images from the files as published.

    The files `v2_OpenEnded_mscoco_train2014_questions.json` and `v2_mscoco_train2014_annotations.json` (without `v2_`
    for version 1), or the plain names `train_questions.json` and `train_annotations.json`, are expected in `root` or in
    its directories `Questions` and `Annotations`. Test splits have no answers.

    Args:
        root: the directory.
        split: "train", "val", "test" or "test-dev".
        version: 1 or 2; by default the newest one found. Plain names have no version.
        task: "open", or "choice" for the questions of version 1 with 18 candidates each.
        image_dir: directory of the images; by default `images`, `train2014` or `Images/mscoco/train2014` in `root`.
        need_images: raise DataError if the image of a question is not on disk. With False, to work with stored
            features, missing images raise DataError when opened.

    Returns:
        The dataset; its images are those of the questions, in order of first appearance.
    """
    if split not in SUBSETS:
        raise UnknownName("split of VQA", split, SUBSETS)
    if task not in TASKS:
        raise UnknownName("task of VQA", task, TASKS)
    if version not in (None, *PREFIXES):
        raise WrongValue(f"read_vqa: expected version 1 or 2, got {version!r}; omit it to use the one found")
    root = need_directory("read_vqa", root, SOURCE)
    files = _find(root, split, version, task)
    content = read_json("read_vqa", files.questions, SOURCE)
    questions_by_id = unique(
        "read_vqa", files.questions, records("read_vqa", files.questions, content, "questions"), "question_id"
    )
    answered = _annotations(files, questions_by_id)
    questions = tuple(_question(files, record, answered.get(name)) for name, record in questions_by_id.items())
    subset = field_text("read_vqa", files.questions, content, "data_subtype") or SUBSETS[split]
    subset = file_name("read_vqa", files.questions, subset)
    images = _images(root, subset, image_dir, questions, files.questions, need_images)
    return Dataset(f"vqa-v{files.version}" if files.version else "vqa", split, images, questions=questions)


def _find(root: Path, split: str, version: int | None, task: str) -> _Files:
    directories = [root, root / "Questions", root / "questions", root / "Annotations", root / "annotations"]
    versions = [version] if version else sorted(PREFIXES, reverse=True)
    names = {f"{PREFIXES[v]}{TASKS[task]}_mscoco_{SUBSETS[split]}_questions.json": v for v in versions}
    questions = find_file("read_vqa", directories, [*names, f"{split}_questions.json"], SOURCE)
    found = names.get(questions.name)
    if split.startswith("test") and not (questions.parent / f"{split}_annotations.json").is_file():
        return _Files(questions, None, found)
    name = f"{PREFIXES[found]}mscoco_{SUBSETS[split]}_annotations.json" if found else f"{split}_annotations.json"
    return _Files(questions, find_file("read_vqa", directories, [name], SOURCE), found)


def _annotations(files: _Files, questions_by_id: Mapping[Id, Mapping[str, Any]]) -> dict[Id, Mapping[str, Any]]:
    path = files.annotations
    if path is None:
        return {}
    content = read_json("read_vqa", path, SOURCE, object_hook=_only_answer)
    found = unique("read_vqa", path, records("read_vqa", path, content, "annotations"), "question_id")
    for name in questions_by_id.keys() ^ found.keys():
        there, missing = (files.questions, path) if name in questions_by_id else (path, files.questions)
        raise DataError(
            f"read_vqa: expected question {name!r} of {there} in {missing} too, got none; "
            "take both files from the same release"
        )
    return found


def _question(files: _Files, record: Mapping[str, Any], note: Mapping[str, Any] | None) -> Question:
    name, image = record["question_id"], field_id("read_vqa", files.questions, record, "image_id")
    text = field_value("read_vqa", files.questions, record, "question", str)
    choices = field_strings("read_vqa", files.questions, record, "multiple_choices")
    question = Question(name, image, text, choices=tuple(map(sys.intern, choices)))
    return question if note is None or files.annotations is None else _answered(files.annotations, question, note)


def _answered(path: Path, question: Question, note: Mapping[str, Any]) -> Question:
    if note.get("image_id", question.image_id) != question.image_id:
        raise DataError(
            f"read_vqa: expected image {question.image_id!r} for question {question.id!r}, got "
            f"{note['image_id']!r} in {path}; take both files from the same release"
        )
    kind = note.get("answer_type")
    if kind is not None and kind not in ANSWER_TYPES:
        raise DataError(
            f"read_vqa: expected answer_type to be one of {', '.join(ANSWER_TYPES)}, got {kind!r} for question "
            f"{question.id!r} in {path}; correct the record"
        )
    return replace(
        question,
        answers=_answers(path, note),
        answer=field_text("read_vqa", path, note, "multiple_choice_answer"),
        answer_type=kind,
        question_type=field_text("read_vqa", path, note, "question_type"),
    )


def _answers(path: Path, note: Mapping[str, Any]) -> tuple[str, ...]:
    given = field_value("read_vqa", path, note, "answers", list)
    if not all(isinstance(one, str) for one in given):
        raise DataError(
            f"read_vqa: expected answers as objects with 'answer', got {given!r:.80} for question "
            f"{note['question_id']!r} in {path}; correct the record"
        )
    return field_strings("read_vqa", path, note, "answers")


def _only_answer(record: dict[str, Any]) -> Any:
    """Keep only the text of an annotator's answer: the millions of objects around them would fill the memory."""
    answer = record.get("answer")
    return sys.intern(answer) if isinstance(answer, str) else record


def _images(
    root: Path, subset: str, image_dir: Path | None, questions: Iterable[Question], path: Path, need: bool
) -> tuple[ImageRecord, ...]:
    subset = "test2015" if subset.startswith("test") else subset
    directories = (
        coco_directories(root, subset) if image_dir is None else [need_directory("read_vqa", image_dir, SOURCE)]
    )
    found = index_images(directories, coco_id)
    images: dict[Id, ImageRecord] = {}
    for question in questions:
        image = question.image_id
        if image in images:
            continue
        if need and image not in found:
            raise DataError(
                f"read_vqa: expected the image {image!r} of question {question.id!r} in {path}, got none in "
                f"{', '.join(map(str, directories)) or root}; images come from cocodataset.org, or pass "
                "need_images=False to work with stored features"
            )
        name = f"COCO_{subset}_{image:012d}.jpg" if isinstance(image, int) else f"{image}.jpg"
        expected = (directories or [root])[0] / file_name("read_vqa", path, name)
        images[image] = ImageRecord(image, found.get(image, expected))
    return tuple(images.values())


HAT_SOURCE = "VQA-HAT publishes vqahat_train and vqahat_val, directories of <question_id>_<k>.png"
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
    root = need_directory("read_hat", root, HAT_SOURCE)
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
    directory = need_directory("index_maps", directory, HAT_SOURCE)
    found: dict[Id, list[tuple[int, Path]]] = {}
    for path in directory.iterdir():
        name = _NAME.fullmatch(path.name)
        if name:
            found.setdefault(int(name[1]), []).append((int(name[2]), path))
    if not found:
        raise DataError(f"index_maps: expected <question_id>_<k>.png in {directory}, got none; {HAT_SOURCE}")
    return {question: tuple(path for _, path in sorted(paths)) for question, paths in sorted(found.items())}


def read_map(path: Path) -> np.ndarray:
    """Read a map as (H, W) float32 brightness, at the size of the file."""
    return decode_grey(path).astype(np.float32)
