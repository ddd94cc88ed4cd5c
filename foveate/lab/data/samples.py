"""The records of a dataset: images, questions, captions with their phrases, objects; and the dataset itself.

Positions are fractions of the image (the unit square, x right, y down), so that a box stays valid when the image is
resized. Arrays (pixels, masks, human attention maps) are not held in memory: a record keeps a path or a loader and
decodes on access. A loader is a picklable callable without arguments, such as a `functools.partial` of a module-level
function, so that it can be sent to worker processes.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np

from foveate.errors import DataError
from foveate.io import decode_image
from foveate.ops.boxes import Box

Id: TypeAlias = int | str
Loader: TypeAlias = Callable[[], np.ndarray]

ANSWER_TYPES = ("yes/no", "number", "other")


@dataclass(frozen=True)
class DataDirectory:
    """A directory of data and how far its files are trusted; a plain path stands for one with the defaults.

    These choices belong to one reading of the data, not to a run: they are never saved with its settings.

    Attributes:
        path: the directory; None for embedded data.
        verify: compare feature stores with their checksums.
        allow_outside: read images that lie outside the directory, where its files name any path.

    >>> DataDirectory.of(Path()).verify
    True
    """

    path: Path | None = None
    verify: bool = True
    allow_outside: bool = False

    def __post_init__(self) -> None:
        if self.path is not None and not self.path.expanduser().exists():
            raise DataError(
                f"data: expected the directory of the data, got {str(self.path)!r}, where nothing is; check --data, or "
                "leave it out for embedded data"
            )

    @classmethod
    def of(cls, root: DataRoot) -> DataDirectory:
        """The directory itself, or a path with the defaults."""
        return root if isinstance(root, DataDirectory) else cls(None if root is None else Path(root))


DataRoot: TypeAlias = Path | DataDirectory | None


@dataclass(frozen=True)
class ImageRecord:
    """One image, decoded on access.

    Attributes:
        id: the publisher's (an integer for COCO and VQA, the file name for Flickr).
        source: a file, or a loader that returns (H, W, 3) uint8.
        width, height: in pixels, where the annotations state them.
    """

    id: Id
    source: Path | Loader = field(compare=False)
    width: int | None = None
    height: int | None = None

    def pixels(self) -> np.ndarray:
        """Decode the image to (H, W, 3) uint8, RGB.

        >>> ImageRecord(1, lambda: np.zeros((2, 3, 3), np.uint8)).pixels().shape
        (2, 3, 3)
        """
        return decode_image(self.source) if isinstance(self.source, Path) else self.source()


@dataclass(frozen=True)
class Object:
    """An object in an image: a COCO instance or a shape of Scenes.

    Attributes:
        id: unique within its image.
        name: a lower-case noun or noun phrase ("circle", "fire hydrant").
        box: its position.
        synonyms: other nouns for it.
        attributes: further properties, for instance {"colour": "red", "size": "large"}.
        mask: loader of its (H, W) boolean mask.
    """

    id: Id
    name: str
    box: Box
    synonyms: tuple[str, ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)
    mask: Loader | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Question:
    """A question about an image, with the annotators' answers and, where known, the region needed to answer it.

    Attributes:
        id: unique within its dataset.
        image_id: of its image.
        text: as written, with case and punctuation.
        answers: one raw answer per annotator (ten in VQA), empty if unknown, as in a test split.
        answer: the consensus (`multiple_choice_answer` in VQA), None if unknown.
        answer_type: one of `ANSWER_TYPES`, None if unknown.
        question_type: the publisher's category ("what color is the", or the kind in Scenes).
        choices: the candidates of the multiple-choice task, empty for open questions.
        objects: ids of the objects needed to answer, where known.
        boxes: their boxes.
        region: loader of the (H, W) boolean mask of the region needed to answer.
        human_maps: one loader per annotator of an (H, W) non-negative map of where that annotator looked.
        tags: subsets to report separately, for instance "two-distant".
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
    human_maps: tuple[Loader, ...] = field(default=(), compare=False, repr=False)
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Phrase:
    """Words of a caption that name something in the image.

    Attributes:
        start, stop: the words are `caption.tokens[start:stop]`.
        entity: id shared by all phrases of an image's captions that refer to the same entity.
        kinds: the publisher's categories ("people", "scene", ...).
        boxes: of the entity: none, one or several.
        unlinked: why there is no box ("scene", "nobndbox", "notvisual", "no annotation"), None if there is one.
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
                "a phrase has at least one word"
            )
        if bool(self.boxes) == (self.unlinked is not None):
            raise DataError(
                f"Phrase: expected either boxes or a reason in unlinked, got boxes={self.boxes!r} and "
                f"unlinked={self.unlinked!r} for entity {self.entity!r}; pass exactly one"
            )


@dataclass(frozen=True)
class Caption:
    """A sentence that describes an image.

    Attributes:
        id: unique within its dataset.
        image_id: of its image.
        text: as written, with case and punctuation.
        tokens: its lower-case tokens, the input of models; `Phrase` positions refer to them.
        phrases: in order, where they are annotated.
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
                    f"in caption {self.id!r}; positions refer to `tokens`"
                )

    def words(self, phrase: Phrase) -> tuple[str, ...]:
        """Return the words of a phrase.

        >>> caption = Caption(1, 1, "A red disc.", ("a", "red", "disc"), (Phrase(1, 3, 7, unlinked="scene"),))
        >>> caption.words(caption.phrases[0])
        ('red', 'disc')
        """
        return self.tokens[phrase.start : phrase.stop]


@dataclass(frozen=True)
class Dataset:
    """One split of a dataset: its images and their annotations. Its length is the number of images.

    All readers return this class; annotations that a format lacks stay empty. Raises DataError unless ids are unique
    and every question, caption and object belongs to an image of the dataset.

    Attributes:
        name, split: for instance "vqa-v2", "train".
        images, questions, captions: in file order.
        objects: objects by image id; images without objects may be absent.

    >>> blank = ImageRecord(1, lambda: np.zeros((2, 2, 3), np.uint8))
    >>> data = Dataset("mine", "train", (blank,), questions=(Question(10, 1, "What is this?"),))
    >>> len(data), data.image(data.questions[0]).id, [q.id for q in data.questions_of(1)]
    (1, 1, [10])
    """

    name: str
    split: str
    images: Sequence[ImageRecord]
    questions: Sequence[Question] = ()
    captions: Sequence[Caption] = ()
    objects: Mapping[Id, tuple[Object, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for kind in ("images", "questions", "captions"):
            self._check_unique(kind, [item.id for item in getattr(self, kind)])
        known = self._positions.keys()
        for kind, items in (("question", self.questions), ("caption", self.captions)):
            for item in items:
                if item.image_id not in known:
                    self._raise_missing(f"the image {item.image_id!r} of {kind} {item.id!r}")
        for image_id in self.objects:
            if image_id not in known:
                self._raise_missing(f"the image {image_id!r} of {len(self.objects[image_id])} objects")

    def __len__(self) -> int:
        return len(self.images)

    def image(self, of: Question | Caption | Id) -> ImageRecord:
        """Return the image of a question or caption, or the image with an id."""
        image_id = of.image_id if isinstance(of, Question | Caption) else of
        try:
            return self.images[self._positions[image_id]]
        except KeyError:
            raise DataError(
                f"{self.name} {self.split}: expected the id of one of its {len(self)} images, got {image_id!r}; "
                "search another split"
            ) from None

    def questions_of(self, image_id: Id) -> tuple[Question, ...]:
        """Return the questions about an image, in order."""
        return self._questions_of.get(image_id, ())

    def captions_of(self, image_id: Id) -> tuple[Caption, ...]:
        """Return the captions of an image, in order."""
        return self._captions_of.get(image_id, ())

    def caption_counts(self) -> np.ndarray:
        """Return (N,) the number of captions per image."""
        return np.array([len(self.captions_of(image.id)) for image in self.images], np.int64)

    def objects_of(self, image_id: Id) -> tuple[Object, ...]:
        """Return the objects in an image."""
        return self.objects.get(image_id, ())

    def first(self, count: int) -> Dataset:
        """Return the first `count` images and their annotations.

        >>> blank = ImageRecord(1, lambda: np.zeros((2, 2, 3), np.uint8))
        >>> len(Dataset("mine", "train", (blank,), questions=(Question(10, 1, "What is this?"),)).first(0).questions)
        0
        """
        return self.of_images(self.split, self.images[:count])

    def of_images(self, split: str, images: Sequence[ImageRecord]) -> Dataset:
        """Return some of the images with their annotations, as a split of their own."""
        kept = {image.id for image in images}
        return replace(
            self,
            split=split,
            images=tuple(images),
            questions=tuple(question for question in self.questions if question.image_id in kept),
            captions=tuple(caption for caption in self.captions if caption.image_id in kept),
            objects={image_id: things for image_id, things in self.objects.items() if image_id in kept},
        )

    def retokenized(self, tokenize: Callable[[str], tuple[str, ...]]) -> Dataset:
        """Return the dataset with captions that are tokenized in another way; their phrases cover the same letters."""
        from foveate.lab.data.tokenizers import retokenize

        return replace(self, captions=tuple(retokenize(caption, tokenize) for caption in self.captions))

    def fingerprint(self) -> str:
        """Return sixteen hexadecimal digits that change with any id, question, answer, caption, phrase or object name.

        Pixels are not read: two datasets with equal annotations but different image files have the same fingerprint.
        """
        digest = hashlib.sha256(f"{self.name}\n{self.split}\n".encode())
        for row in self._rows():
            digest.update(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        return digest.hexdigest()[:16]

    def _rows(self) -> Iterable[Sequence[object]]:
        yield from ([p.id] for p in self.images)
        yield from ([q.id, q.image_id, q.text, q.answers, q.answer, q.objects, q.boxes] for q in self.questions)
        for c in self.captions:
            yield [c.id, c.image_id, c.text, c.tokens, [(p.start, p.stop, p.entity, p.boxes) for p in c.phrases]]
        yield from ([key, [(o.id, o.name, o.box) for o in things]] for key, things in self.objects.items())

    @cached_property
    def _positions(self) -> dict[Id, int]:
        return {image.id: position for position, image in enumerate(self.images)}

    @cached_property
    def _questions_of(self) -> dict[Id, tuple[Question, ...]]:
        return _by_image(self.questions)

    @cached_property
    def _captions_of(self) -> dict[Id, tuple[Caption, ...]]:
        return _by_image(self.captions)

    def _check_unique(self, kind: str, ids: list[Id]) -> None:
        if len(set(ids)) == len(ids):
            return
        twice = next(name for name, count in Counter(ids).items() if count > 1)
        raise DataError(
            f"{self.name} {self.split}: expected {kind} with different ids, got {twice!r} twice; "
            "remove or renumber the second"
        )

    def _raise_missing(self, what: str) -> None:
        raise DataError(
            f"{self.name} {self.split}: expected {what} in the dataset, got none; add the image or remove the record"
        )


@dataclass(frozen=True)
class Source:
    """A row of the table of datasets: how to read a dataset and what it contains.

    Attributes:
        load: `load(root, split)` returns the `Dataset` of that split; `root` is the publisher's directory, None for
            embedded data that is generated rather than read.
        splits: the usual names of splits.
        contents: what its samples carry, of "questions", "captions", "phrases", "objects", "regions", "human maps".
        embedded: True if no directory is needed.
        takes: the options of `read` that `load` accepts: "count" where images are generated one by one, "need_images"
            where they are files, "allow_outside" where files name any path, "split_seed" and "fold" where splits are
            drawn.

    Splits joined by a plus ("train+val") are read one after the other, unless `load` knows them itself.
    """

    load: Callable[..., Dataset]
    splits: tuple[str, ...]
    contents: tuple[str, ...]
    embedded: bool = False
    takes: tuple[str, ...] = ("need_images",)

    @property
    def summary(self) -> str:
        """One line about the dataset, for `foveate list`."""
        kind = "embedded" if self.embedded else "read from a directory"
        return f"{', '.join(self.contents)}; splits {', '.join(self.splits)}; {kind}"

    def read(
        self,
        root: DataRoot,
        split: str,
        *,
        count: int | None = None,
        need_images: bool = True,
        split_seed: int = 0,
        fold: tuple[int, int] | None = None,
    ) -> Dataset:
        """Read a split.

        Args:
            root: directory of the data, or a `DataDirectory`, which may allow images outside the directory for
                formats whose files name any path.
            split: passed to `load`.
            count: keep only the first `count` images.
            need_images: raise DataError if an image is not on disk; False to work with stored features.
            split_seed: of splits that are drawn at random because the data has none.
            fold: (number, count) of a cross-validation over data without splits.
        """
        if fold is not None and "fold" not in self.takes:
            raise DataError("read: expected data without splits for folds, got a published split; use dataset=folder")
        home = DataDirectory.of(root)
        given = {
            "count": count,
            "need_images": need_images,
            "allow_outside": home.allow_outside,
            "split_seed": split_seed,
            "fold": fold,
        }
        known = {part for name in self.splits for part in name.split("+")}
        parts = [split] if split in self.splits or not set(split.split("+")) <= known else split.split("+")
        several = [self.load(home.path, part, **{name: given[name] for name in self.takes}) for part in parts]
        data = several[0] if len(several) == 1 else join_datasets(several)
        return data if count is None else data.first(count)


def join_datasets(parts: Sequence[Dataset]) -> Dataset:
    """Several splits of one dataset as one; an image that is in several of them counts once."""
    images = {image.id: image for part in parts for image in part.images}
    return Dataset(
        parts[0].name,
        "+".join(part.split for part in parts),
        tuple(images.values()),
        questions=tuple(question for part in parts for question in part.questions),
        captions=tuple(caption for part in parts for caption in part.captions),
        objects={image: things for part in parts for image, things in part.objects.items()},
    )


Belonging = TypeVar("Belonging", Question, Caption)


def _by_image(items: Sequence[Belonging]) -> dict[Id, tuple[Belonging, ...]]:
    groups: dict[Id, list[Belonging]] = {}
    for item in items:
        groups.setdefault(item.image_id, []).append(item)
    return {image_id: tuple(group) for image_id, group in groups.items()}
