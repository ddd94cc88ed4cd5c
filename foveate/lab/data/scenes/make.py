"""The Scenes dataset: generated images with questions and their regions, captions with boxes, and objects."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from foveate.errors import DataError, WrongValue
from foveate.io import atomic_write
from foveate.lab.data.samples import Caption, Dataset, Id, ImageRecord, Object, Phrase, Question
from foveate.lab.data.scenes.captions import CaptionDraft, write_captions
from foveate.lab.data.scenes.language import SYNONYMS, annotator_answers
from foveate.lab.data.scenes.questions import KINDS, QuestionDraft, are_far, write_questions
from foveate.lab.data.scenes.render import bounds, outline, render
from foveate.lab.data.scenes.scene import SIDE, VALUES, Key, Scene, make_scene
from foveate.ops.boxes import Box
from foveate.registry import lookup

SPLITS = ("train", "val", "test")
SIZES = {
    "scenes": {"train": 4000, "val": 500, "test": 500},
    "scenes-large": {"train": 24000, "val": 2000, "test": 2000},
}
# Part of the file name of stored images; incremented whenever the same seed yields different images.
VERSION = 1
STRIDE = 1_000_000


def scenes(root: Path | None = None, split: str = "train", *, count: int | None = None) -> Dataset:
    """Return the default set: 4000, 500 and 500 images of 112 x 112 pixels, eight questions and five captions each.

    Args:
        root: directory of the rendered images, written on first use. With None an image is rendered each time it is
            read, which takes about two milliseconds.
        split: "train", "val" or "test".
        count: use only the first `count` images.
    """
    return make_scenes("scenes", split, count=count, root=root)


def scenes_large(root: Path | None = None, split: str = "train", *, count: int | None = None) -> Dataset:
    """Return the large set: 24000, 2000 and 2000 images. Each split begins with the images of the default set."""
    return make_scenes("scenes-large", split, count=count, root=root)


def make_scenes(
    size: str = "scenes", split: str = "train", *, count: int | None = None, seed: int = 0, root: Path | None = None
) -> Dataset:
    """Generate a split of any length from any seed.

    Args:
        size: "scenes" or "scenes-large"; sets the number of images.
        split: "train", "val" or "test", which share no image.
        count: number of images, instead of the one that belongs to `size`.
        seed: each seed yields different images.
        root: see `scenes`.

    >>> data = make_scenes(split="val", count=2)
    >>> len(data), len(data.captions), data.images[0].pixels().shape
    (2, 10, (112, 112, 3))
    """
    total = lookup("split", split, lookup("size", size, SIZES)) if count is None else count
    if not (0 <= total < STRIDE and seed >= 0):
        raise WrongValue(
            f"make_scenes: expected 0 <= count < {STRIDE} and seed >= 0, got {total} and {seed}; change them"
        )
    number = {name: position for position, name in enumerate(SPLITS)}
    keys = [Key(seed, lookup("split", split, number), index) for index in range(total)]
    stored = None if root is None else store_images(root, split, keys)
    images = tuple(
        ImageRecord(
            image_id(key),
            partial(_rendered, key) if stored is None else partial(_stored, stored, key.number),
            SIDE,
            SIDE,
        )
        for key in keys
    )
    annotations = _annotate(tuple(keys))
    return Dataset(size, split, images, annotations.questions, annotations.captions, annotations.objects)


class Annotations(NamedTuple):
    """Questions, captions and objects of a set of scenes."""

    questions: tuple[Question, ...]
    captions: tuple[Caption, ...]
    objects: Mapping[Id, tuple[Object, ...]]


def _rendered(key: Key) -> np.ndarray:
    return _kept(key).copy()


@lru_cache(maxsize=4096)  # of 38 kB each; a comparison of mechanisms reads the same images for every run
def _kept(key: Key) -> np.ndarray:
    return render(key)


@lru_cache(maxsize=2)  # a comparison of mechanisms reads the same two splits for every run
def _annotate(keys: tuple[Key, ...]) -> Annotations:
    questions: list[Question] = []
    captions: list[Caption] = []
    objects: dict[Id, tuple[Object, ...]] = {}
    for key in keys:
        scene = make_scene(key)
        boxes = {thing.id: bounds(thing) for thing in scene.things}
        questions += [_question(scene, boxes, n, draft) for n, draft in enumerate(write_questions(scene, key.rng(2)))]
        captions += [_caption(scene, boxes, n, draft) for n, draft in enumerate(write_captions(scene, key.rng(3)))]
        objects[image_id(key)] = tuple(_objects(scene, boxes))
    return Annotations(tuple(questions), tuple(captions), objects)


def image_id(key: Key) -> int:
    """Return the id of an image, unique across splits.

    >>> image_id(Key(0, 1, 7))
    1000007
    """
    return key.split * STRIDE + key.number


def _question(scene: Scene, boxes: dict[int, Box], number: int, draft: QuestionDraft) -> Question:
    question_id = image_id(scene.key) * 100 + number
    return Question(
        question_id,
        image_id(scene.key),
        draft.text,
        answers=annotator_answers(draft.answer, draft.distractors, scene.key.rng(100 + number)),
        answer=draft.answer,
        answer_type=KINDS[draft.kind].answer_type,
        question_type=draft.kind,
        objects=draft.needed,
        boxes=tuple(boxes[i] for i in draft.needed),
        region=partial(outline, scene.key, draft.needed),
        tags=frozenset(_tags(scene, draft)),
    )


def _tags(scene: Scene, draft: QuestionDraft) -> Iterator[str]:
    """Yield "two-distant" for two needed things half an image apart, "small" for one small thing among five or more."""
    needed = [thing for thing in scene.things if thing.id in draft.needed]
    if len(needed) == 2 and are_far(*needed):
        yield "two-distant"
    if len(needed) == 1 and needed[0].size == "small" and len(scene.things) >= 5:
        yield "small"


def _caption(scene: Scene, boxes: dict[int, Box], number: int, draft: CaptionDraft) -> Caption:
    """Number a caption and link its phrases; an entity is one thing (its id) or several (their ids, joined by "+")."""
    phrases = tuple(
        Phrase(
            start,
            stop,
            entity="+".join(map(str, things)) or "background",
            kinds=("shape" if things else "scene",),
            boxes=tuple(boxes[i] for i in things),
            unlinked=None if things else "scene",
        )
        for start, stop, things in draft.mentions
    )
    return Caption(image_id(scene.key) * 10 + number, image_id(scene.key), draft.text, draft.words, phrases)


def _objects(scene: Scene, boxes: dict[int, Box]) -> Iterator[Object]:
    for thing in scene.things:
        attributes = {kind: getattr(thing, kind) for kind in VALUES if kind != "shape"}
        mask = partial(outline, scene.key, (thing.id,))
        yield Object(thing.id, thing.shape, boxes[thing.id], SYNONYMS[thing.shape][1:], attributes, mask)


def store_images(root: Path, split: str, keys: list[Key]) -> Path:
    """Return the file with the images of these keys, rendering it first if it does not exist.

    The file is written atomically. Raises DataError if an existing file has another number of images or another type.
    """
    seed = keys[0].seed if keys else 0
    path = Path(root) / f"scenes-{split}-{len(keys)}-seed{seed}-v{VERSION}.npy"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, shared=True) as temporary, temporary.open("wb") as file:
            _write_npy(file, (render(key) for key in keys), len(keys))
        _open.cache_clear()
    images = _open(path).images
    if images.shape != (len(keys), SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise DataError(
            f"scenes: expected {len(keys)} images in {path}, got {images.dtype} {images.shape}; "
            "delete the file to render it again"
        )
    return path


class StoredImages(NamedTuple):
    """A file of images: (n, 112, 112, 3) uint8, and the CRC-32 of each; None in files written without."""

    images: np.ndarray
    checksums: np.ndarray | None


def _write_npy(file: IO[bytes], images: Iterable[np.ndarray], count: int) -> None:
    """Write an .npy file, followed by one checksum per image, which other readers of .npy ignore."""
    checksums = []
    header = {"descr": "|u1", "fortran_order": False, "shape": (count, SIDE, SIDE, 3)}
    np.lib.format.write_array_header_1_0(file, header)
    for image in images:
        data = image.tobytes()
        checksums.append(zlib.crc32(data))
        file.write(data)
    file.write(np.array(checksums, "<u4").tobytes())


@lru_cache(maxsize=16)
def _open(path: Path) -> StoredImages:
    try:
        images: np.memmap = np.load(path, mmap_mode="r", allow_pickle=False)
        checksums = np.fromfile(path, "<u4", offset=images.offset + images.nbytes)
        rest = path.stat().st_size - images.offset - images.nbytes - checksums.nbytes
        if rest or len(checksums) not in (0, len(images)):
            raise WrongValue(f"got {rest} bytes after its checksums, of which it has {len(checksums)}")
    except Exception as error:  # a damaged header is parsed as Python, which fails in many ways
        raise DataError(
            f"scenes: expected stored images, got {path}, which cannot be read ({error}); delete it to render it again"
        ) from None
    return StoredImages(images, checksums if len(checksums) else None)


def _stored(path: Path, index: int) -> np.ndarray:
    stored = _open(path)
    image = np.array(stored.images[index])
    if stored.checksums is not None and zlib.crc32(image.tobytes()) != stored.checksums[index]:
        raise DataError(
            f"scenes: expected the checksum of image {index} in {path}, got another: the file is damaged; delete it to "
            "render it again"
        )
    return image
