"""Scenes as a dataset: pictures, questions with regions, captions with boxes, objects; made, not read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from foveate.data.samples import Box, Caption, Dataset, Id, Object, Phrase, Picture, Question
from foveate.data.scenes.captions import Telling, tell
from foveate.data.scenes.desk import Draft, are_far
from foveate.data.scenes.language import SYNONYMS
from foveate.data.scenes.paint import bounds, outline, render
from foveate.data.scenes.people import poll
from foveate.data.scenes.questions import KINDS, ask
from foveate.data.scenes.world import SIDE, VALUES, Key, Scene, make_scene
from foveate.errors import DataError
from foveate.registry import lookup

SPLITS = ("train", "val", "test")
SIZES = {
    "scenes": {"train": 4000, "val": 500, "test": 500},
    "scenes-large": {"train": 24000, "val": 2000, "test": 2000},
}
# Written into the names of stored pictures; raised whenever a seed gives other pictures than before.
VERSION = 1
STRIDE = 1_000_000


def scenes(root: Path | None = None, split: str = "train", *, count: int | None = None) -> Dataset:
    """The default set: 4 000, 500 and 500 pictures of 112 x 112 pixels, about eight questions and five captions each.

    Args:
        root: folder that keeps the pictures; they are written there when it has none yet. None draws each picture anew
            whenever it is asked for, in about two milliseconds.
        split: "train", "val" or "test".
        count: only the first so many pictures.
    """
    return make_scenes("scenes", split, count=count, root=root)


def scenes_large(root: Path | None = None, split: str = "train", *, count: int | None = None) -> Dataset:
    """The large set, 24 000, 2 000 and 2 000 pictures, of which each split begins with that of the default set."""
    return make_scenes("scenes-large", split, count=count, root=root)


def make_scenes(
    size: str = "scenes", split: str = "train", *, count: int | None = None, seed: int = 0, root: Path | None = None
) -> Dataset:
    """A set of scenes of any length and seed.

    Args:
        size: "scenes" or "scenes-large"; sets the number of pictures.
        split: "train", "val" or "test"; different pictures in each.
        count: another number of pictures.
        seed: other pictures for every seed.
        root: as in `scenes`.

    >>> data = make_scenes(split="val", count=2)
    >>> len(data), len(data.captions), data.pictures[0].pixels().shape
    (2, 10, (112, 112, 3))
    """
    total = lookup("split", split, lookup("size", size, SIZES)) if count is None else count
    if not (0 <= total < STRIDE and seed >= 0):
        raise ValueError(
            f"make_scenes: expected 0 <= count < {STRIDE} and seed >= 0, got {total} and {seed}; choose others"
        )
    number = {name: position for position, name in enumerate(SPLITS)}
    keys = [Key(seed, lookup("split", split, number), index) for index in range(total)]
    stored = None if root is None else store_pictures(root, split, keys)
    pictures = tuple(
        Picture(
            image_id(key), partial(render, key) if stored is None else partial(_stored, stored, key.number), SIDE, SIDE
        )
        for key in keys
    )
    told = _tell(tuple(keys))
    return Dataset(size, split, pictures, told.questions, told.captions, told.objects)


class Told(NamedTuple):
    """All that is said about scenes."""

    questions: tuple[Question, ...]
    captions: tuple[Caption, ...]
    objects: Mapping[Id, tuple[Object, ...]]


@lru_cache(maxsize=2)  # a comparison asks for the same two splits at every training
def _tell(keys: tuple[Key, ...]) -> Told:
    questions: list[Question] = []
    captions: list[Caption] = []
    objects: dict[Id, tuple[Object, ...]] = {}
    for key in keys:
        scene = make_scene(key)
        boxes = {thing.id: bounds(thing) for thing in scene.things}
        questions += [_question(scene, boxes, n, draft) for n, draft in enumerate(ask(scene, key.dice(2)))]
        captions += [_caption(scene, boxes, n, telling) for n, telling in enumerate(tell(scene, key.dice(3)))]
        objects[image_id(key)] = tuple(_objects(scene, boxes))
    return Told(tuple(questions), tuple(captions), objects)


def image_id(key: Key) -> int:
    """A number for each picture, different in each split.

    >>> image_id(Key(0, 1, 7))
    1000007
    """
    return key.split * STRIDE + key.number


def _question(scene: Scene, boxes: dict[int, Box], number: int, draft: Draft) -> Question:
    question_id = image_id(scene.key) * 100 + number
    return Question(
        question_id,
        image_id(scene.key),
        draft.text,
        answers=poll(draft.answer, draft.rivals, scene.key.dice(100 + number)),
        answer=draft.answer,
        answer_type=KINDS[draft.kind].answer_type,
        question_type=draft.kind,
        objects=draft.needed,
        boxes=tuple(boxes[i] for i in draft.needed),
        region=partial(outline, scene.key, draft.needed),
        tags=frozenset(_tags(scene, draft)),
    )


def _tags(scene: Scene, draft: Draft) -> Iterator[str]:
    """Say "two-distant" when two things half a picture apart are needed, "small" for one small thing among five."""
    needed = [thing for thing in scene.things if thing.id in draft.needed]
    if len(needed) == 2 and are_far(*needed):
        yield "two-distant"
    if len(needed) == 1 and needed[0].size == "small" and len(scene.things) >= 5:
        yield "small"


def _caption(scene: Scene, boxes: dict[int, Box], number: int, telling: Telling) -> Caption:
    """The caption with phrases; an entity is one thing (its id) or a set of them (their ids, joined)."""
    phrases = tuple(
        Phrase(
            start,
            stop,
            entity="+".join(map(str, things)) or "background",
            kinds=("shape" if things else "scene",),
            boxes=tuple(boxes[i] for i in things),
            unlinked=None if things else "scene",
        )
        for start, stop, things in telling.mentions
    )
    return Caption(image_id(scene.key) * 10 + number, image_id(scene.key), telling.text, telling.words, phrases)


def _objects(scene: Scene, boxes: dict[int, Box]) -> Iterator[Object]:
    for thing in scene.things:
        attributes = {kind: getattr(thing, kind) for kind in VALUES if kind != "shape"}
        mask = partial(outline, scene.key, (thing.id,))
        yield Object(thing.id, thing.shape, boxes[thing.id], SYNONYMS[thing.shape][1:], attributes, mask)


def store_pictures(root: Path, split: str, keys: list[Key]) -> Path:
    """The file that holds the pictures of these keys, written first when it is not there.

    It appears under its name only when whole; a file of another length or kind raises DataError.
    """
    seed = keys[0].seed if keys else 0
    path = Path(root) / f"scenes-{split}-{len(keys)}-seed{seed}-v{VERSION}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_suffix(f".{os.getpid()}.part")
        try:
            with aside.open("wb") as file:
                _write_npy(file, (render(key) for key in keys), len(keys))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        _open.cache_clear()
    held = _open(path)
    if held.shape != (len(keys), SIDE, SIDE, 3) or held.dtype != np.uint8:
        raise DataError(
            f"scenes: expected {len(keys)} pictures in {path}, got {held.dtype} {held.shape}; "
            "delete the file to make it again"
        )
    return path


def _write_npy(file: IO[bytes], pictures: Iterable[np.ndarray], count: int) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, SIDE, SIDE, 3)}
    np.lib.format.write_array_header_1_0(file, header)
    for picture in pictures:
        file.write(picture.tobytes())


@lru_cache(maxsize=16)
def _open(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"scenes: expected stored pictures, got {path}, which cannot be read ({error}); delete it to make it again"
        ) from None


def _stored(path: Path, index: int) -> np.ndarray:
    return np.array(_open(path)[index])
