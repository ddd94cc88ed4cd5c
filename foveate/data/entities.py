"""Flickr30k Entities: which words of a caption name what, and the boxes of it in the picture."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from foveate.data.files import need_folder, pixel_box
from foveate.data.samples import Box, Caption, Dataset, Id, Phrase
from foveate.data.tokens import align, pair_sentences
from foveate.errors import DataError

SOURCE = "Flickr30k Entities publishes annotations.zip with the folders Sentences and Annotations"
NO_ENTITY = "0"
_OPENING = re.compile(r"\[/EN#([^/\s]+)((?:/\S+)?)$")


class EntityPhrase(NamedTuple):
    """A phrase of an annotated sentence: `words[start:stop]`, the id of its entity and the entity's classes."""

    start: int
    stop: int
    entity: str
    kinds: tuple[str, ...]


class EntitySentence(NamedTuple):
    """An annotated sentence: its words as separated by spaces, and its phrases."""

    words: tuple[str, ...]
    phrases: tuple[EntityPhrase, ...]


@dataclass(frozen=True)
class EntityBoxes:
    """The annotation of one picture.

    Attributes:
        width, height: of the photograph that the annotators saw.
        boxes: of each entity that has any.
        scene: entities that are the whole scene.
        absent: entities without a box for another reason (`nobndbox`).
    """

    width: int
    height: int
    boxes: Mapping[str, tuple[Box, ...]]
    scene: frozenset[str]
    absent: frozenset[str]

    def reason(self, phrase: EntityPhrase) -> str | None:
        """Why a phrase has no box: "notvisual", "scene", "nobndbox", "no annotation"; None when it has one."""
        if phrase.entity in self.boxes:
            return None
        if phrase.entity == NO_ENTITY or "notvisual" in phrase.kinds:
            return "notvisual"
        if phrase.entity in self.scene:
            return "scene"
        return "nobndbox" if phrase.entity in self.absent else "no annotation"


class Linked(NamedTuple):
    """A dataset whose captions carry phrases, and what became of every annotated phrase.

    `counts` has "linked" and the reasons for the others: those of `EntityBoxes.reason`, "no words" for a phrase
    without a word of ours, "no caption" for phrases of sentences that the dataset does not have.
    """

    dataset: Dataset
    counts: Counter[str]


def read_sentences(path: Path) -> tuple[EntitySentence, ...]:
    """The sentences of one `Sentences/<id>.txt`.

    A line holds words separated by spaces, phrases as `[/EN#<entity>/<class>/<class> word word]`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise DataError(f"read_sentences: expected the file {path}, got none; {SOURCE}") from None
    return tuple(parse_sentence(line, f"line {n} of {path}") for n, line in enumerate(lines, 1) if line.strip())


def parse_sentence(line: str, name: str = "the line") -> EntitySentence:
    """The words and phrases of one annotated sentence; `name` is for the error.

    >>> parse_sentence("[/EN#1/people A child] sleeps .")
    EntitySentence(words=('A', 'child', 'sleeps', '.'),
                   phrases=(EntityPhrase(start=0, stop=2, entity='1', kinds=('people',)),))
    """
    words: list[str] = []
    phrases: list[EntityPhrase] = []
    opened: tuple[int, str, tuple[str, ...]] | None = None
    for piece in line.split():
        opening = _OPENING.match(piece)
        if opening and opened is None:
            opened = len(words), opening[1], tuple(filter(None, opening[2].split("/")))
        elif opened is not None and piece.endswith("]"):
            words.append(piece[:-1])
            phrases.append(EntityPhrase(opened[0], len(words), *opened[1:]))
            opened = None
        else:
            words.append(piece)
    if opened is not None:
        raise DataError(
            f"read_sentences: expected every phrase closed by ']', got one of entity {opened[1]} open at the end of "
            f"{name}; {SOURCE}"
        )
    return EntitySentence(tuple(words), tuple(phrases))


def read_boxes(path: Path) -> EntityBoxes:
    """The boxes of one `Annotations/<id>.xml`, in fractions of the picture.

    An object has one or several ids and either a box or the flags `scene` and `nobndbox`; an id has boxes in several
    objects. Boxes are pixels counted from one, the last included, of a photograph of the file's `<size>`, so that they
    hold for the same picture at any size.
    """
    root = _parse_xml(path)
    width, height = _number(root, "size/width", path, "the picture"), _number(root, "size/height", path, "the picture")
    boxes: dict[str, list[Box]] = {}
    scene: set[str] = set()
    absent: set[str] = set()
    for thing in root.iter("object"):
        names = [name.text or "" for name in thing.findall("name")]
        record = f"entity {', '.join(names) or 'without a name'}"
        for found in thing.findall("bndbox"):
            x0, y0, x1, y1 = (_number(found, side, path, record) for side in ("xmin", "ymin", "xmax", "ymax"))
            box = pixel_box("read_boxes", path, record, (x0 - 1, y0 - 1, x1, y1), (width, height))
            for name in names:
                boxes.setdefault(name, []).append(box)
        scene.update(names if thing.findtext("scene", "0").strip() == "1" else ())
        absent.update(names if thing.findtext("nobndbox", "0").strip() == "1" else ())
    return EntityBoxes(
        width, height, {name: tuple(b) for name, b in boxes.items()}, frozenset(scene), frozenset(absent)
    )


def link_phrases(dataset: Dataset, folder: Path) -> Linked:
    """Give the captions of a Flickr dataset the phrases and boxes of Flickr30k Entities.

    The annotated sentences are in another order and sometimes spelt otherwise than the captions: each is paired with
    the caption of the same letters, or else the most similar one of its picture; its words are then matched to the
    caption's tokens letter by letter (`tokens.align`).

    Args:
        dataset: pictures named as on Flickr; what comes before the first "_" or "." is the annotation's id.
        folder: with `Sentences` and `Annotations`.

    Returns:
        The dataset with phrases, and the number of phrases linked or not by reason.
    """
    folder = need_folder("link_phrases", folder, SOURCE)
    counts: Counter[str] = Counter()
    captions: dict[Id, Caption] = {}
    for picture in dataset.pictures:
        stem = re.split(r"[_.]", str(picture.id), maxsplit=1)[0]
        sentences = read_sentences(folder / "Sentences" / f"{stem}.txt")
        boxes = read_boxes(folder / "Annotations" / f"{stem}.xml")
        own = dataset.captions_of(picture.id)
        pairs = pair_sentences([c.text for c in own], [" ".join(s.words) for s in sentences])
        for caption, pair in zip(own, pairs, strict=True):
            if pair is not None:
                phrases = _phrases(sentences[pair], boxes, caption.tokens, counts)
                captions[caption.id] = replace(caption, phrases=phrases)
        for j in set(range(len(sentences))) - set(pairs):
            counts["no caption"] += len(sentences[j].phrases)
    return Linked(replace(dataset, captions=tuple(captions.get(c.id, c) for c in dataset.captions)), counts)


def _phrases(
    sentence: EntitySentence, boxes: EntityBoxes, tokens: Sequence[str], counts: Counter[str]
) -> tuple[Phrase, ...]:
    spans = align(sentence.words, tokens)
    found = []
    for phrase in sentence.phrases:
        covered = [span for span in spans[phrase.start : phrase.stop] if span is not None]
        reason = boxes.reason(phrase)
        counts["no words" if not covered else reason or "linked"] += 1
        if covered:
            start, stop = min(s for s, _ in covered), max(s for _, s in covered)
            where = boxes.boxes.get(phrase.entity, ())
            found.append(Phrase(start, stop, phrase.entity, phrase.kinds, where, reason))
    return tuple(found)


def _parse_xml(path: Path) -> ElementTree.Element:
    try:
        text = Path(path).read_bytes()
    except FileNotFoundError:
        raise DataError(f"read_boxes: expected the file {path}, got none; {SOURCE}") from None
    # Annotations declare no entities; refusing them keeps a file from growing without bound while it is read.
    if b"<!ENTITY" in text:
        raise DataError(f"read_boxes: expected plain XML in {path}, got entity declarations; {SOURCE}")
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(
            f"read_boxes: expected XML in {path}, got {error}; the file may be cut short; {SOURCE}"
        ) from None


def _number(element: ElementTree.Element, tag: str, path: Path, record: str) -> int:
    text = element.findtext(tag)
    try:
        return int(text or "")
    except ValueError:
        raise DataError(
            f"read_boxes: expected a whole number in <{tag}>, got {text!r} for {record} in {path}; {SOURCE}"
        ) from None
