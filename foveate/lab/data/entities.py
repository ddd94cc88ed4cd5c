"""Flickr30k Entities: phrases of captions and the boxes of what they name."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from foveate.errors import DataError
from foveate.lab.data.files import MAX_SIDE, file_name, need_directory, pixel_box, read_lines
from foveate.lab.data.samples import Caption, Dataset, Id, Phrase
from foveate.lab.data.tokenizers import align, pair_sentences
from foveate.ops.boxes import Box

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SOURCE = "Flickr30k Entities publishes annotations.zip with the directories Sentences and Annotations"
NO_ENTITY = "0"
MAX_XML = 1 << 20  # bytes of an annotation, which has a few thousand; its tree takes a hundred times as much
MAX_LETTERS = 2000  # of a sentence: aligning it with a caption takes time quadratic in its length
_OPENING = re.compile(r"\[/EN#([^/\s]+)((?:/\S+)?)$")


class EntityPhrase(NamedTuple):
    """A phrase of an annotated sentence: `words[start:stop]`, the id of its entity and the categories of the entity."""

    start: int
    stop: int
    entity: str
    kinds: tuple[str, ...]


class EntitySentence(NamedTuple):
    """An annotated sentence: its words, separated by spaces, and its phrases."""

    words: tuple[str, ...]
    phrases: tuple[EntityPhrase, ...]


@dataclass(frozen=True)
class EntityBoxes:
    """The annotation of one image.

    Attributes:
        width, height: of the image that the annotators saw.
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
        """Return why a phrase has no box: "notvisual", "scene", "nobndbox", "no annotation"; None if it has one."""
        if phrase.entity in self.boxes:
            return None
        if phrase.entity == NO_ENTITY or "notvisual" in phrase.kinds:
            return "notvisual"
        if phrase.entity in self.scene:
            return "scene"
        return "nobndbox" if phrase.entity in self.absent else "no annotation"


class Linked(NamedTuple):
    """A dataset whose captions have phrases, and how many annotated phrases were linked.

    `counts` has "linked" and the reasons for the others: those of `EntityBoxes.reason`, "no words" for a phrase without
    a token of the caption, "no caption" for phrases of sentences that the dataset does not have. `missing` are the
    images without annotation, whose captions have no phrases.
    """

    dataset: Dataset
    counts: Counter[str]
    missing: tuple[Id, ...] = ()


def read_sentences(path: Path) -> tuple[EntitySentence, ...]:
    """Read the sentences of one `Sentences/<id>.txt`.

    A line has words separated by spaces, and phrases as `[/EN#<entity>/<category>/<category> word word]`.
    """
    lines = read_lines("read_sentences", Path(path), SOURCE)
    if any(len(line) > MAX_LETTERS for line in lines):
        raise DataError(
            f"read_sentences: expected lines of at most {MAX_LETTERS} characters in {path}, got more; {SOURCE}"
        )
    return tuple(parse_sentence(line, f"line {n} of {path}") for n, line in enumerate(lines, 1) if line.strip())


def parse_sentence(line: str, name: str = "the line") -> EntitySentence:
    """Parse one annotated sentence; `name` is for the error message.

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
    """Read the boxes of one `Annotations/<id>.xml`, in fractions of the image.

    An object has one or several ids and either a box or the flags `scene` and `nobndbox`; an id may have boxes in
    several objects. Boxes count pixels from one and include the last, in an image of the file's `<size>`; as fractions
    they are valid for the same image at any size.
    """
    root = _parse_xml(path)
    width, height = _number(root, "size/width", path, "the image"), _number(root, "size/height", path, "the image")
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


def link_phrases(dataset: Dataset, directory: Path) -> Linked:
    """Add the phrases and boxes of Flickr30k Entities to the captions of a Flickr dataset.

    The annotated sentences are in another order than the captions and sometimes spelt differently: each is paired with
    the caption of the same letters, or else with the most similar one of its image; its words are then aligned with the
    tokens of the caption letter by letter (`tokens.align`).

    Args:
        dataset: images named as on Flickr; the part of the name before the first "_" or "." is the annotation's id.
        directory: with `Sentences` and `Annotations`.

    Returns:
        The dataset with phrases, the number of phrases linked, or not linked by reason, and the images without files.
    """
    directory = need_directory("link_phrases", directory, SOURCE)
    counts: Counter[str] = Counter()
    captions: dict[Id, Caption] = {}
    missing: list[Id] = []
    for image in dataset.images:
        stem = file_name("link_phrases", directory, re.split(r"[_.]", str(image.id), maxsplit=1)[0])
        files = directory / "Sentences" / f"{stem}.txt", directory / "Annotations" / f"{stem}.xml"
        if not all(map(os.path.isfile, files)):
            missing.append(image.id)
            continue
        sentences, boxes = read_sentences(files[0]), read_boxes(files[1])
        own = dataset.captions_of(image.id)
        pairs = pair_sentences([c.text for c in own], [" ".join(s.words) for s in sentences])
        for caption, pair in zip(own, pairs, strict=True):
            if pair is not None:
                phrases = _phrases(sentences[pair], boxes, caption.tokens, counts)
                captions[caption.id] = replace(caption, phrases=phrases)
        for j in set(range(len(sentences))) - set(pairs):
            counts["no caption"] += len(sentences[j].phrases)
    linked = replace(dataset, captions=tuple(captions.get(c.id, c) for c in dataset.captions))
    return Linked(linked, counts, tuple(missing))


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


def _parse_xml(path: Path) -> Element:
    from defusedxml.common import DefusedXmlException
    from defusedxml.ElementTree import fromstring

    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_XML + 1)
        # Entities and default attributes may grow without bound or read other files: no declarations, in any encoding.
        root: Element | None = fromstring(content, forbid_dtd=True) if len(content) <= MAX_XML else None
    except FileNotFoundError:
        raise DataError(f"read_boxes: expected the file {path}, got none; {SOURCE}") from None
    except DefusedXmlException:
        raise DataError(f"read_boxes: expected plain XML in {path}, got a document type; {SOURCE}") from None
    except Exception as error:  # unknown encodings raise LookupError, ValueError or UnicodeError
        raise DataError(
            f"read_boxes: expected XML in {path}, got {error}; the file may be truncated; {SOURCE}"
        ) from None
    if root is None:
        raise DataError(f"read_boxes: expected at most {MAX_XML} bytes in {path}, got more; {SOURCE}")
    return root


def _number(element: Element, tag: str, path: Path, record: str) -> int:
    text = element.findtext(tag) or ""
    try:
        found = int(text)
    except ValueError:
        found = MAX_SIDE + 1
    if abs(found) > MAX_SIDE:
        raise DataError(
            f"read_boxes: expected a whole number in <{tag}>, got {text!r:.40} for {record:.80} in {path}; {SOURCE}"
        )
    return found
