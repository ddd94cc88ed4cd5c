"""Where people looked: fixations as JSON, JSONL, CSV and MATLAB files, and maps of people as images."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from foveate.errors import DataError
from foveate.io import decode_grey
from foveate.lab.data.files import IMAGE_SUFFIXES, need_directory
from foveate.lab.data.samples import ImageRecord
from foveate.ops.boxes import Box
from foveate.registry import optional
from foveate.watch.cases import Gaze

SOURCE = (
    "it holds images/ and fixations.json (COCO-Search18), .jsonl, .csv or .mat, or maps/ with an image of where people "
    "looked for each image"
)
# COCO-Search18 was recorded on this screen, and is also published at the smaller size.
SCREENS = ((512, 320), (1680, 1050))


@dataclass
class _Trial:
    """One person before one image: fixations in fractions, or in pixels of `size`."""

    image: str
    task: str
    subject: str
    x: np.ndarray
    y: np.ndarray
    split: str | None = None
    found: bool = True
    box: Sequence[float] | None = None  # x, y, width, height in the same units


def read_fixations(root: Path | None, split: str | None = None, *, drop_first: bool = True) -> list[Gaze]:
    """Read where people looked, one entry per image and task, in the order of the file.

    The directory holds `images/` (also with subdirectories) and one of

    - `fixations.json`, in the form of COCO-Search18: a list of trials with `name, subject, task, bbox, X, Y, correct,
      split`, in pixels of the image or of the screen. Trials that are not correct are left out.
    - `fixations.jsonl`: one trial per line, `{"image": ..., "task": ..., "subject": ..., "x": [...], "y": [...]}`, in
      fractions of the image; optional `split`, `found`, and `box` as x, y, width, height.
    - `fixations.csv`: one fixation per line, columns image, x, y and optionally subject, task, split; in fractions if
      none exceeds 1, else in pixels.
    - `fixations.mat`, in the form of OSIE: `fixations{i}.img` and `.subjects{j}.fix_x`, `.fix_y`, in pixels.
    - `maps/`: `<image>.png`, `<image>_<person>.png` or `<person>/<image>.png`, bright where people looked (VQA-HAT,
      AiR-D, SALICON).

    Args:
        root: the directory.
        split: of the trials, where the file has splits; None for all.
        drop_first: leave out the first fixation of every trial, which experiments force to the centre of the screen.

    Raises DataError if the files are missing or hold no fixation of an image that is there.
    """
    root = need_directory("read_fixations", root, SOURCE)
    images = _index_images(need_directory("read_fixations", root / "images", SOURCE))
    for name, reader in _READERS.items():
        path = root / f"fixations{name}"
        if path.is_file():
            trials = [trial for trial in reader(path) if split is None or trial.split in (None, split)]
            found = _gather(trials, images, drop_first)
            break
    else:
        found = _read_maps(need_directory("read_fixations", root / "maps", SOURCE), images)
    if not found:
        raise DataError(
            f"read_fixations: expected fixations or maps of the {len(images)} images in {root}, got none"
            f"{'' if split is None else f' of split {split!r}'}; {SOURCE}"
        )
    return found


def _index_images(directory: Path) -> dict[str, Path]:
    """Images by their path below the directory, by their name, and by their name without its ending."""
    paths = sorted(path for path in directory.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    index: dict[str, Path] = {}
    for path in paths:
        for name in (str(path.relative_to(directory)), path.name, path.stem):
            index.setdefault(name, path)
    return index


def _from_json(path: Path) -> Iterator[_Trial]:
    for number, row in enumerate(_parse(path, path.read_text(encoding="utf-8"))):
        with_task = f"{row.get('task', '')}/{row.get('name', '')}"
        yield _trial(path, number, row, {"image": "name", "x": "X", "y": "Y", "box": "bbox"}, with_task)


def _from_jsonl(path: Path) -> Iterator[_Trial]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        if line.strip():
            yield _trial(path, number, _parse(path, line), {})


def _from_csv(path: Path) -> Iterator[_Trial]:
    with path.open(encoding="utf-8", newline="") as lines:
        trials: dict[tuple[str, ...], dict[str, Any]] = {}
        for row in csv.DictReader(lines):
            key = tuple(row.get(name) or "" for name in ("image", "task", "subject", "split"))
            trial = trials.setdefault(key, {**row, "x": [], "y": []})
            for axis in "xy":
                trial[axis].append(row.get(axis))
    for number, trial in enumerate(trials.values()):
        yield _trial(path, number, trial, {})


def _from_mat(path: Path) -> Iterator[_Trial]:
    loaded = optional("read_fixations", "scipy.io", extra="tables").loadmat(path, simplify_cells=True)
    for number, row in enumerate(_as_list(loaded.get("fixations"))):
        for person, subject in enumerate(_as_list(row.get("subjects") if isinstance(row, Mapping) else None)):
            values = {"image": row.get("img"), "subject": str(person)}
            axes = {axis: np.atleast_1d(subject[f"fix_{axis}"]).tolist() for axis in "xy"}
            yield _trial(path, number, {**values, **axes}, {})


_READERS: dict[str, Callable[[Path], Iterable[_Trial]]] = {
    ".json": _from_json,
    ".jsonl": _from_jsonl,
    ".csv": _from_csv,
    ".mat": _from_mat,
}


def _parse(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"read_fixations: expected JSON in {path}, got {error}; {SOURCE}") from None


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(np.atleast_1d(np.asarray(value, dtype=object)))


def _trial(path: Path, number: int, row: Any, names: Mapping[str, str], other_image: str = "") -> _Trial:
    if not isinstance(row, Mapping):
        _raise_row(path, number, "an object", row)
    get = {key: row.get(names.get(key, key)) for key in ("image", "x", "y", "box")}
    if not isinstance(get["image"], str):
        _raise_row(path, number, f"the name of an image in {names.get('image', 'image')!r}", get["image"])
    try:
        x, y = (np.asarray(get[axis], dtype=float) for axis in "xy")
    except (TypeError, ValueError):
        _raise_row(path, number, "lists of numbers x and y", (get["x"], get["y"]))
    if x.ndim != 1 or x.shape != y.shape or not np.isfinite([x, y]).all():
        _raise_row(path, number, "as many finite numbers x as y", (x.shape, y.shape))
    found = row.get("correct", row.get("found", 1)) not in (0, False, "0")
    split = None if row.get("split") in (None, "") else str(row["split"])
    trial = _Trial(get["image"], str(row.get("task") or ""), str(row.get("subject") or ""), x, y, split, found)
    trial.box = get["box"]
    if other_image:
        trial.image = f"{other_image}\n{trial.image}"
    return trial


def _raise_row(path: Path, number: int, wanted: str, got: Any) -> None:
    raise DataError(f"read_fixations: expected {wanted} in entry {number} of {path}, got {got!r:.80}; {SOURCE}")


def _gather(trials: Sequence[_Trial], images: Mapping[str, Path], drop_first: bool) -> list[Gaze]:
    """One entry per image and task, of the trials that ended well."""
    grouped: dict[tuple[Path, str], list[_Trial]] = {}
    for trial in trials:
        path = next((images[name] for name in trial.image.split("\n") if name in images), None)
        path = path or images.get(Path(trial.image.split("\n")[-1]).stem)
        if path is not None and trial.found:
            grouped.setdefault((path, trial.task), []).append(trial)
    found = []
    for (path, task), own in grouped.items():
        width, height = _size(path, own)
        people: dict[str, list[np.ndarray]] = {}
        for trial in own:
            points = np.stack([trial.x / width, trial.y / height], -1)[int(drop_first) :]
            inside = ((points >= 0) & (points <= 1)).all(-1)
            people.setdefault(trial.subject, []).append(points[inside])
        kept = tuple(points for points in map(np.concatenate, people.values()) if len(points))
        boxes = tuple(_box(trial.box, width, height) for trial in own[:1] if trial.box is not None)
        if kept:
            found.append(Gaze(ImageRecord(f"{path.name}", path), task, kept, boxes=boxes))
    return found


def _size(path: Path, trials: Sequence[_Trial]) -> tuple[float, float]:
    """The size in whose pixels the fixations are: 1 for fractions, the image, or the screen."""
    most = [max((float(np.max(getattr(trial, axis), initial=0)) for trial in trials), default=0.0) for axis in "xy"]
    if max(most) <= 1:
        return 1.0, 1.0
    from PIL import Image

    with Image.open(path) as image:
        sizes = [image.size, *SCREENS]
    # Gaze may leave the image by a little.
    fits = [size for size in sizes if most[0] <= 1.05 * size[0] and most[1] <= 1.05 * size[1]]
    if not fits:
        raise DataError(
            f"read_fixations: expected fixations within {path.name} of {sizes[0][0]} x {sizes[0][1]} pixels, got up to "
            f"x = {most[0]:g} and y = {most[1]:g}; give them in pixels of the image or in fractions"
        )
    return fits[0]


def _box(box: Sequence[float], width: float, height: float) -> Box:
    x, y, w, h = (float(value) for value in box)
    return Box(x / width, y / height, min((x + w) / width, 1.0), min((y + h) / height, 1.0))


def _read_maps(directory: Path, images: Mapping[str, Path]) -> list[Gaze]:
    """Maps of people by the names of their files."""
    grouped: dict[Path, list[Path]] = {}
    for path in sorted(path for path in directory.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES):
        name = path.stem if path.stem in images else path.stem.rpartition("_")[0]
        if name in images:
            grouped.setdefault(images[name], []).append(path)
    return [
        Gaze(ImageRecord(image.name, image), maps=tuple(partial(decode_grey, path) for path in paths))
        for image, paths in grouped.items()
    ]
