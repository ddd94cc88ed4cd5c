"""What every dataset is made of: pictures, questions, captions with their phrases, objects; and the set itself.

Positions are fractions of the picture (the unit square, x right, y down), so that a box stays true when its picture is
stored at another size. Arrays (pixels, masks, maps of where people looked) are never held here: a sample keeps a path
or a loader and decodes when asked. A loader is a picklable callable without arguments, such as a `functools.partial`
of a module-level function, so that worker processes can carry it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from foveate.errors import DataError

Id: TypeAlias = int | str
Loader: TypeAlias = Callable[[], np.ndarray]

ANSWER_TYPES = ("yes/no", "number", "other")
# A file with more is refused before it is decoded.
MAX_PIXELS = 50_000_000


class Box(NamedTuple):
    """A rectangle in fractions of the picture: left, top, right, bottom, with x0 < x1 and y0 < y1.

    >>> Box(0.25, 0.5, 0.75, 1.0).area
    0.25
    """

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def from_pixels(cls, x0: float, y0: float, x1: float, y1: float, *, width: int, height: int) -> Box:
        """The box that covers pixels x0 ≤ x < x1, y0 ≤ y < y1 of a picture; DataError when it is empty or outside.

        Publishers that count the last pixel in (Flickr30k Entities) pass x1 + 1 and y1 + 1.

        >>> Box.from_pixels(10, 0, 20, 5, width=40, height=10)
        Box(x0=0.25, y0=0.0, x1=0.5, y1=0.5)
        """
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise DataError(
                f"Box: expected 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}, got {(x0, y0, x1, y1)}; "
                "check which picture size the boxes belong to"
            )
        return cls(x0 / width, y0 / height, x1 / width, y1 / height)

    @property
    def area(self) -> float:
        """Share of the picture that the box covers."""
        return (self.x1 - self.x0) * (self.y1 - self.y0)

    @property
    def centre(self) -> tuple[float, float]:
        """The middle, (x, y)."""
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2


@dataclass(frozen=True)
class Picture:
    """One picture, decoded when asked.

    Attributes:
        id: as the publisher numbers it (an integer for COCO and VQA, the file name for Flickr).
        source: a file, or a loader of (H, W, 3) uint8.
        width, height: in pixels as stored in `source`, where the annotations state it.
    """

    id: Id
    source: Path | Loader = field(compare=False)
    width: int | None = None
    height: int | None = None

    def pixels(self) -> np.ndarray:
        """The picture as (H, W, 3) uint8, RGB.

        >>> Picture(1, lambda: np.zeros((2, 3, 3), np.uint8)).pixels().shape
        (2, 3, 3)
        """
        from foveate.data.pictures import read_picture

        return read_picture(self.source) if isinstance(self.source, Path) else self.source()


@dataclass(frozen=True)
class Object:
    """A thing in a picture: a COCO instance, a shape of Scenes.

    Attributes:
        id: unique in its picture.
        name: what it is, one lower-case noun or noun phrase ("circle", "fire hydrant").
        box: where it is.
        synonyms: other nouns that name it.
        attributes: further words about it by kind, for instance {"colour": "red", "size": "large"}.
        mask: loader of its (H, W) boolean outline.
    """

    id: Id
    name: str
    box: Box
    synonyms: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    mask: Loader | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Question:
    """A question about a picture, with what people answered and where they, or the truth, say one must look.

    Attributes:
        id: unique in its dataset.
        image_id: of its picture.
        text: as written, with case and punctuation.
        answers: one raw answer a person (ten in VQA), empty when unknown, as in a test split.
        answer: the agreed one (`multiple_choice_answer` in VQA), None when unknown.
        answer_type: one of `ANSWER_TYPES`, None when unknown.
        question_type: the publisher's class of questions ("what color is the", or the kind of Scenes).
        choices: the candidates of the multiple-choice task, empty for open questions.
        objects: ids of the objects that must be looked at, where that is known.
        boxes: their boxes.
        region: loader of the (H, W) boolean mask of the region that must be looked at.
        looks: one loader a person of an (H, W) non-negative map of where that person looked.
        tags: subsets to report apart, for instance "two-distant".
    """

    id: Id
    image_id: Id
    text: str
    answers: tuple[str, ...] = ()
    answer: str | None = None
    answer_type: str | None = None
    question_type: str | None = None
    choices: tuple[str, ...] = ()
    objects: tuple[Id, ...] = ()
    boxes: tuple[Box, ...] = ()
    region: Loader | None = field(default=None, compare=False, repr=False)
    looks: tuple[Loader, ...] = field(default=(), compare=False, repr=False)
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Phrase:
    """Words of a caption that name something in the picture.

    Attributes:
        start, stop: the words are `caption.tokens[start:stop]`.
        entity: id shared by all phrases of the picture's captions that name the same thing.
        kinds: the publisher's classes of it ("people", "scene", ...).
        boxes: where it is: none, one or several.
        unlinked: why there is no box ("scene", "nobndbox", "notvisual", "no annotation"), None when there is one.
    """

    start: int
    stop: int
    entity: Id
    kinds: tuple[str, ...] = ()
    boxes: tuple[Box, ...] = ()
    unlinked: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.stop:
            raise DataError(
                f"Phrase: expected 0 <= start < stop, got {self.start}, {self.stop} for entity {self.entity!r}; "
                "a phrase holds at least one word"
            )
        if bool(self.boxes) == (self.unlinked is not None):
            raise DataError(
                f"Phrase: expected either boxes or a reason in unlinked, got boxes={self.boxes!r} and "
                f"unlinked={self.unlinked!r} for entity {self.entity!r}; give exactly one"
            )


@dataclass(frozen=True)
class Caption:
    """A sentence about a picture.

    Attributes:
        id: unique in its dataset.
        image_id: of its picture.
        text: as written, with case and punctuation.
        tokens: its lower-case words, what models read and `Phrase` counts.
        phrases: the words that name things, in order, where they are annotated.
    """

    id: Id
    image_id: Id
    text: str
    tokens: tuple[str, ...]
    phrases: tuple[Phrase, ...] = ()

    def __post_init__(self) -> None:
        for phrase in self.phrases:
            if phrase.stop > len(self.tokens):
                raise DataError(
                    f"Caption: expected phrases within its {len(self.tokens)} tokens, got {phrase.start}:{phrase.stop} "
                    f"in caption {self.id!r}; count the words of `tokens`"
                )

    def words(self, phrase: Phrase) -> tuple[str, ...]:
        """The words of a phrase.

        >>> caption = Caption(1, 1, "A red disc.", ("a", "red", "disc"), (Phrase(1, 3, 7, unlinked="scene"),))
        >>> caption.words(caption.phrases[0])
        ('red', 'disc')
        """
        return self.tokens[phrase.start : phrase.stop]


@dataclass(frozen=True)
class Dataset:
    """One split of a dataset: its pictures and all that is said about them. Its length is the number of pictures.

    Every loader of a format returns this class; what a format lacks stays empty. Ids are unique, and every question,
    caption and object belongs to a picture of the set; anything else raises DataError.

    Attributes:
        name, split: for instance "vqa-v2", "train".
        pictures, questions, captions: in the order of the files.
        objects: the objects of a picture by its id; pictures without any may be absent.

    >>> blank = Picture(1, lambda: np.zeros((2, 2, 3), np.uint8))
    >>> data = Dataset("mine", "train", (blank,), questions=(Question(10, 1, "What is this?"),))
    >>> len(data), data.picture(data.questions[0]).id, [q.id for q in data.questions_of(1)]
    (1, 1, [10])
    """

    name: str
    split: str
    pictures: Sequence[Picture]
    questions: Sequence[Question] = ()
    captions: Sequence[Caption] = ()
    objects: Mapping[Id, tuple[Object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("pictures", "questions", "captions"):
            self._check_unique(kind, [item.id for item in getattr(self, kind)])
        known = self._positions.keys()
        for kind, items in (("question", self.questions), ("caption", self.captions)):
            for item in items:
                if item.image_id not in known:
                    self._refuse(f"the picture {item.image_id!r} of {kind} {item.id!r}")
        for image_id in self.objects:
            if image_id not in known:
                self._refuse(f"the picture {image_id!r} of {len(self.objects[image_id])} objects")

    def __len__(self) -> int:
        return len(self.pictures)

    def picture(self, of: Question | Caption | Id) -> Picture:
        """The picture of a question, of a caption, or with an id."""
        image_id = of.image_id if isinstance(of, Question | Caption) else of
        try:
            return self.pictures[self._positions[image_id]]
        except KeyError:
            raise DataError(
                f"{self.name} {self.split}: expected the id of one of its {len(self)} pictures, got {image_id!r}; "
                "look in another split"
            ) from None

    def questions_of(self, image_id: Id) -> tuple[Question, ...]:
        """The questions about a picture, in order."""
        return self._questions_of.get(image_id, ())

    def captions_of(self, image_id: Id) -> tuple[Caption, ...]:
        """The captions of a picture, in order."""
        return self._captions_of.get(image_id, ())

    def objects_of(self, image_id: Id) -> tuple[Object, ...]:
        """The objects in a picture."""
        return self.objects.get(image_id, ())

    def first(self, count: int) -> Dataset:
        """The first so many pictures and what is said about them.

        >>> blank = Picture(1, lambda: np.zeros((2, 2, 3), np.uint8))
        >>> len(Dataset("mine", "train", (blank,), questions=(Question(10, 1, "What is this?"),)).first(0).questions)
        0
        """
        pictures = tuple(self.pictures[:count])
        kept = {picture.id for picture in pictures}
        return replace(
            self,
            pictures=pictures,
            questions=tuple(question for question in self.questions if question.image_id in kept),
            captions=tuple(caption for caption in self.captions if caption.image_id in kept),
            objects={image_id: things for image_id, things in self.objects.items() if image_id in kept},
        )

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that change with any id, question, answer, caption, phrase or object name.

        Pixels are not read: two sets with the same annotations and different files share a fingerprint.
        """
        digest = hashlib.sha256(f"{self.name}\n{self.split}\n".encode())
        for row in self._rows():
            digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()[:16]

    def _rows(self) -> Iterable[list]:
        yield from ([p.id] for p in self.pictures)
        yield from ([q.id, q.image_id, q.text, q.answers, q.answer, q.objects, q.boxes] for q in self.questions)
        for c in self.captions:
            yield [c.id, c.image_id, c.text, c.tokens, [(p.start, p.stop, p.entity, p.boxes) for p in c.phrases]]
        yield from ([key, [(o.id, o.name, o.box) for o in things]] for key, things in self.objects.items())

    @cached_property
    def _positions(self) -> dict[Id, int]:
        return {picture.id: position for position, picture in enumerate(self.pictures)}

    @cached_property
    def _questions_of(self) -> dict[Id, tuple[Question, ...]]:
        return _by_picture(self.questions)

    @cached_property
    def _captions_of(self) -> dict[Id, tuple[Caption, ...]]:
        return _by_picture(self.captions)

    def _check_unique(self, kind: str, ids: list[Id]) -> None:
        if len(set(ids)) == len(ids):
            return
        seen: set[Id] = set()
        twice = next(i for i in ids if i in seen or seen.add(i))  # type: ignore[func-returns-value]
        raise DataError(
            f"{self.name} {self.split}: expected {kind} with different ids, got {twice!r} twice; "
            "remove or renumber the second"
        )

    def _refuse(self, what: str) -> None:
        raise DataError(
            f"{self.name} {self.split}: expected {what} in the set, got none; add the picture or drop the record"
        )


@dataclass(frozen=True)
class Source:
    """A row of the table of datasets: how to read one and what is in it.

    Attributes:
        load: `load(root, split)` returns the `Dataset` of that split; `root` is the publisher's folder, None for
            embedded data that is made rather than read.
        splits: names that `load` knows.
        contents: what its samples carry, of "questions", "captions", "phrases", "objects", "regions", "looks".
        embedded: True when no folder is needed.
        takes: the options of `read` that `load` has too: "count" where pictures are made one by one, "need_pictures"
            where they are files.
    """

    load: Callable[..., Dataset]
    splits: tuple[str, ...]
    contents: tuple[str, ...]
    embedded: bool = False
    takes: tuple[str, ...] = ("need_pictures",)

    def read(self, root: Path | None, split: str, *, count: int | None = None, need_pictures: bool = True) -> Dataset:
        """The split.

        Args:
            root, split: as in `load`.
            count: only the first so many pictures.
            need_pictures: refuse what is said about a picture that is not on disk; False for work on stored features.
        """
        given = {"count": count, "need_pictures": need_pictures}
        data = self.load(root, split, **{name: given[name] for name in self.takes})
        return data if count is None else data.first(count)


Belonging = TypeVar("Belonging", Question, Caption)


def _by_picture(items: Sequence[Belonging]) -> dict[Id, tuple[Belonging, ...]]:
    groups: dict[Id, list[Belonging]] = {}
    for item in items:
        groups.setdefault(item.image_id, []).append(item)
    return {image_id: tuple(group) for image_id, group in groups.items()}
