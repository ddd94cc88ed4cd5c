"""The check of a directory of your own: its problems, with file and line, and the records it holds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from foveate.errors import DataError
from foveate.io import ProgressBar
from foveate.lab.data.files import need_directory
from foveate.lab.data.folder_files import ALL, KEYS, SPLITS, FolderAnnotations, Row, find_annotations
from foveate.lab.data.jsonl import SOURCE, FolderBuilder, choose_split, list_folder_images
from foveate.lab.data.samples import Dataset, ImageRecord


@dataclass
class FolderReport:
    """The findings of `check_folder`.

    Attributes:
        counts: numbers of what was found, by split: images, captions, questions and so on.
        problems: what must be corrected, each with its file and line.
        notes: what may be a mistake.
        data: the records that can be used, by split.
    """

    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    data: dict[str, Dataset] = field(default_factory=dict)


def check_folder(
    root: Path | None,
    *,
    allow_outside: bool = False,
    split_seed: int = 0,
    progress: bool = False,
) -> FolderReport:
    """Read all annotations and open every image of a directory, as `read_folder` would.

    Args:
        root: the directory.
        allow_outside, split_seed: as in `read_folder`.
        progress: show a progress bar.
    """
    root = need_directory("check", root, SOURCE)
    report, images = FolderReport(), dict[str, ImageRecord]()
    for split, found in _sources(root):
        builder = FolderBuilder(root, split, allow_outside, dict(found.images))
        for row in found.rows():
            _add(builder, row, report)
        images.update({str(name): image for name, image in builder.images.items()})
        _keep(report, builder, found, split_seed)
    _note_leaks(report)
    on_disk = all(isinstance(image.source, Path) for image in images.values())
    every = _files(root, report, allow_outside) if on_disk else {}
    used = {_place(root, image): image for image in images.values()}
    _open_images(report, every | used, progress)
    unused = sorted(every.keys() - used.keys()) if used else []
    if unused:
        report.notes.append(f"{len(unused)} image files have no annotation, for instance {unused[0]}")
    return report


def _sources(root: Path) -> Iterator[tuple[str, FolderAnnotations]]:
    """The annotations of each split that has its own, or those of all."""
    own = [(split, find_annotations(root, split)) for split in SPLITS]
    divided = [(split, found) for split, found in own if found is not None and found.divided]
    shared = find_annotations(root, ALL)
    yield from divided or ([(ALL, shared)] if shared is not None else [])


def _add(builder: FolderBuilder, row: Row, report: FolderReport) -> None:
    try:
        if row.error is not None:
            raise row.error
        builder.add(row)
    except DataError as error:
        report.problems.append(str(error).removeprefix("read_folder: "))
        return
    for key in row.record:
        if key not in KEYS:
            near = get_close_matches(key, KEYS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the keys are {', '.join(KEYS)}"
            report.notes.append(f"unknown key {key!r:.40} in {row.where}; {hint}")


def _keep(report: FolderReport, builder: FolderBuilder, found: FolderAnnotations, seed: int) -> None:
    """Keep the records of a source, divided into splits if it has none."""
    if not builder.images:
        report.problems.append(f"expected records in {' and '.join(map(str, found.files))}, got none that can be used")
        return
    try:
        whole = builder.dataset()
    except DataError as error:
        report.problems.append(str(error))
        return
    parts = {builder.split: whole}
    if builder.split == ALL:
        for split in SPLITS:
            with suppress(DataError):  # too few images for this split
                parts[split] = choose_split(whole, split, builder.splits, seed)
    for split, data in parts.items():
        report.data[split], report.counts[split] = data, _count(data)


def _count(data: Dataset) -> dict[str, int]:
    answered = sum(bool(question.answers) for question in data.questions)
    found = {
        "images": len(data),
        "captions": len(data.captions),
        "questions": len(data.questions),
        "questions with answers": answered,
        "objects": sum(map(len, data.objects.values())),
        "words": len({word for caption in data.captions for word in caption.tokens}),
    }
    return {name: count for name, count in found.items() if count}


def _note_leaks(report: FolderReport) -> None:
    """Images that are in several splits: what a model is tested on must not be what it was trained on."""
    seen = Counter(str(image.id) for split in SPLITS if split in report.data for image in report.data[split].images)
    twice = [name for name, count in seen.items() if count > 1]
    if twice:
        report.notes.append(f"{len(twice)} images are in several splits, for instance {twice[0]}")


def _files(root: Path, report: FolderReport, allow_outside: bool) -> dict[str, ImageRecord]:
    try:
        found = list_folder_images(root, allow_outside=allow_outside)
    except DataError as error:
        report.problems.append(str(error).removeprefix("read_folder: "))
        return {}
    if not report.data and not report.problems:
        data = Dataset(root.name, ALL, found)
        report.data[ALL], report.counts[ALL] = data, _count(data)
    return {_place(root, image): image for image in found}


def _place(root: Path, image: ImageRecord) -> str:
    """The name of an image in the report: its path in the directory, or its id if it is not a file."""
    if isinstance(image.source, Path) and image.source.is_relative_to(root):
        return image.source.relative_to(root).as_posix()
    return str(image.id)


def _open_images(report: FolderReport, images: dict[str, ImageRecord], progress: bool) -> None:
    contents: dict[str, str] = {}
    with ProgressBar("check", len(images), unit="image", show=progress) as bar:
        for name, image in images.items():
            try:
                digest = hashlib.sha256(image.pixels().tobytes()).hexdigest()
            except DataError as error:
                report.problems.append(str(error).partition(": ")[2])
            else:
                if contents.setdefault(digest, name) != name:
                    report.notes.append(f"{contents[digest]} and {name} are the same image")
            bar.update(1)
