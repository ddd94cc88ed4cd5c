"""VQA v1 and v2: questions and ten people's answers about COCO pictures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data.files import (
    coco_folders,
    coco_id,
    find_file,
    index_pictures,
    need_folder,
    read_json,
    records,
    unique,
    value,
)
from foveate.data.samples import ANSWER_TYPES, Dataset, Id, Picture, Question
from foveate.errors import DataError, UnknownName

SOURCE = "questions and annotations come from visualqa.org, pictures from cocodataset.org"
SUBSETS = {
    "train": "train2014",
    "val": "val2014",
    "test": "test2015",
    "test-dev": "test-dev2015",
}
TASKS = {"open": "OpenEnded", "choice": "MultipleChoice"}
PREFIXES = {1: "", 2: "v2_"}


class _Files(NamedTuple):
    """The files of a split, and the version that their names tell (None for the plain names)."""

    questions: Path
    annotations: Path | None
    version: int | None


def read_vqa(
    root: Path | None,
    split: str,
    *,
    version: int | None = None,
    task: str = "open",
    images: Path | None = None,
    need_pictures: bool = True,
) -> Dataset:
    """Questions with people's answers and their pictures, from the files as published.

    In `root`, or in its folders `Questions` and `Annotations`, are expected
    `v2_OpenEnded_mscoco_train2014_questions.json` and `v2_mscoco_train2014_annotations.json` (without `v2_` for
    version 1), or the plain names `train_questions.json` and `train_annotations.json`. Test splits have no answers.

    Args:
        root: the folder.
        split: "train", "val", "test" or "test-dev".
        version: 1 or 2; by default the newest that is there. The plain names do not tell it.
        task: "open", or "choice" for the questions of version 1 with 18 candidates each.
        images: folder of the pictures; by default `images`, `train2014` or `Images/mscoco/train2014` in `root`.
        need_pictures: refuse a question whose picture is not on disk. False for work on stored features: pictures
            that are not there then fail when opened.

    Returns:
        The dataset; its pictures are those that the questions ask about, in that order.
    """
    if split not in SUBSETS:
        raise UnknownName("split of VQA", split, SUBSETS)
    if task not in TASKS:
        raise UnknownName("task of VQA", task, TASKS)
    if version not in (None, *PREFIXES):
        raise ValueError(f"read_vqa: expected version 1 or 2, got {version!r}; leave it out to take what is there")
    root = need_folder("read_vqa", root, SOURCE)
    files = _find(root, split, version, task)
    content = read_json("read_vqa", files.questions, SOURCE)
    asked = unique(
        "read_vqa", files.questions, records("read_vqa", files.questions, content, "questions"), "question_id"
    )
    answered = _annotations(files, asked)
    questions = tuple(_question(files, record, answered.get(name)) for name, record in asked.items())
    subset = content.get("data_subtype") or SUBSETS[split]
    pictures = _pictures(root, subset, images, questions, files.questions, need_pictures)
    return Dataset(f"vqa-v{files.version}" if files.version else "vqa", split, pictures, questions=questions)


def _find(root: Path, split: str, version: int | None, task: str) -> _Files:
    folders = [root, root / "Questions", root / "questions", root / "Annotations", root / "annotations"]
    versions = [version] if version else sorted(PREFIXES, reverse=True)
    names = {f"{PREFIXES[v]}{TASKS[task]}_mscoco_{SUBSETS[split]}_questions.json": v for v in versions}
    questions = find_file("read_vqa", folders, [*names, f"{split}_questions.json"], SOURCE)
    found = names.get(questions.name)
    if split.startswith("test") and not (questions.parent / f"{split}_annotations.json").is_file():
        return _Files(questions, None, found)
    name = f"{PREFIXES[found]}mscoco_{SUBSETS[split]}_annotations.json" if found else f"{split}_annotations.json"
    return _Files(questions, find_file("read_vqa", folders, [name], SOURCE), found)


def _annotations(files: _Files, asked: Mapping[Id, Mapping[str, Any]]) -> dict[Id, Mapping[str, Any]]:
    path = files.annotations
    if path is None:
        return {}
    content = read_json("read_vqa", path, SOURCE, shorten=_only_answer)
    found = unique("read_vqa", path, records("read_vqa", path, content, "annotations"), "question_id")
    for name in asked.keys() ^ found.keys():
        there, missing = (files.questions, path) if name in asked else (path, files.questions)
        raise DataError(
            f"read_vqa: expected question {name!r} of {there} in {missing} too, got none; "
            "take both files from the same release"
        )
    return found


def _question(files: _Files, record: Mapping[str, Any], note: Mapping[str, Any] | None) -> Question:
    name, image = record["question_id"], value("read_vqa", files.questions, record, "image_id", (int, str))
    text = value("read_vqa", files.questions, record, "question", str)
    question = Question(name, image, text, choices=tuple(map(sys.intern, record.get("multiple_choices", ()))))
    return question if note is None or files.annotations is None else _answered(files.annotations, question, note)


def _answered(path: Path, question: Question, note: Mapping[str, Any]) -> Question:
    if note.get("image_id", question.image_id) != question.image_id:
        raise DataError(
            f"read_vqa: expected picture {question.image_id!r} for question {question.id!r}, got "
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
        answer=note.get("multiple_choice_answer"),
        answer_type=kind,
        question_type=note.get("question_type"),
    )


def _answers(path: Path, note: Mapping[str, Any]) -> tuple[str, ...]:
    given = value("read_vqa", path, note, "answers", list)
    if not all(isinstance(one, str) for one in given):
        raise DataError(
            f"read_vqa: expected answers as objects with 'answer', got {given!r:.80} for question "
            f"{note['question_id']!r} in {path}; correct the record"
        )
    return tuple(given)


def _only_answer(record: dict[str, Any]) -> Any:
    """Of one person's answer keep the text: the millions of objects around them would fill the memory."""
    answer = record.get("answer")
    return sys.intern(answer) if isinstance(answer, str) else record


def _pictures(
    root: Path, subset: str, images: Path | None, questions: Iterable[Question], path: Path, need: bool
) -> tuple[Picture, ...]:
    subset = "test2015" if subset.startswith("test") else subset
    folders = coco_folders(root, subset) if images is None else [need_folder("read_vqa", images, SOURCE)]
    found = index_pictures(folders, coco_id)
    pictures: dict[Id, Picture] = {}
    for question in questions:
        image = question.image_id
        if image in pictures:
            continue
        if need and image not in found:
            raise DataError(
                f"read_vqa: expected the picture {image!r} of question {question.id!r} in {path}, got none in "
                f"{', '.join(map(str, folders)) or root}; pictures come from cocodataset.org, or pass "
                "need_pictures=False to work on stored features"
            )
        name = f"COCO_{subset}_{image:012d}.jpg" if isinstance(image, int) else f"{image}.jpg"
        pictures[image] = Picture(image, found.get(image, (folders or [root])[0] / name))
    return tuple(pictures.values())
