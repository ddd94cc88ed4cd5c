"""Captions as examples and batches: a picture or its features, all that people wrote about it, the things in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.data.features import ImageFeatures, PictureFeatures
from foveate.data.samples import Caption, Dataset, Id
from foveate.data.vocabulary import Vocabulary
from foveate.tasks.examples import PictureReader, pad_words, stack_pictures
from foveate.tasks.pictures import PictureSource

Names = tuple[str, ...]


@dataclass(frozen=True)
class CaptionExample:
    """A picture with its captions.

    Attributes:
        id: of the picture.
        picture: (3, h, w) uint8, or its stored features.
        captions: what people wrote about it.
        things: the names of each thing in it, as far as things are annotated.
    """

    id: Id
    picture: Tensor | PictureFeatures
    captions: tuple[Caption, ...]
    things: tuple[Names, ...] = ()


@dataclass(frozen=True)
class CaptionBatch:
    """B captions of P pictures.

    Attributes:
        pictures: (P, 3, h, w) uint8, or stored features.
        index: (B,) which picture each caption is about.
        tokens, mask: (B, T) word numbers with the start mark first, and True where there is one.
        targets: (B, T) the word, or end mark, that comes after each of them.
        examples: P, as they were read, without pixels.
    """

    pictures: Tensor | ImageFeatures
    index: Tensor
    tokens: Tensor
    mask: Tensor
    targets: Tensor
    examples: list[CaptionExample]


class CaptionExamples:
    """The pictures of a split with all their captions, by number; pictures without captions are left out.

    Args:
        data: the split.
        source: how a picture becomes pixels, the store of its features, or the encoder that makes them.
    """

    def __init__(self, data: Dataset, source: PictureSource) -> None:
        self.data, self.pictures = data, PictureReader(source)
        self.rows = [picture for picture in data.pictures if data.captions_of(picture.id)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> CaptionExample:
        picture = self.rows[number]
        captions = self.data.captions_of(picture.id)
        return CaptionExample(picture.id, self.pictures(picture), captions, things_of(self.data, picture.id))

    def fingerprint(self) -> str:
        """That of the annotations, and of the features where there are some."""
        return self.pictures.fingerprint(self.data)


def things_of(data: Dataset, image: Id) -> tuple[Names, ...]:
    """The names of each kind of thing in a picture: of its objects, or of the entities that its captions name.

    Objects of one name are one kind. An entity has boxes; its names are the last words of the phrases that name it
    ("dog" of "the brown dog").

    >>> from foveate.data.scenes import make_scenes
    >>> data = make_scenes(split="val", count=1)
    >>> len(things_of(data, data.pictures[0].id)) > 0
    True
    """
    objects = data.objects_of(image)
    if objects:
        return tuple(dict.fromkeys((thing.name, *thing.synonyms) for thing in objects))
    entities: dict[Id, dict[str, None]] = {}
    for caption in data.captions_of(image):
        for phrase in caption.phrases:
            if phrase.boxes:
                entities.setdefault(phrase.entity, {})[caption.words(phrase)[-1]] = None
    return tuple(dict.fromkeys(tuple(names) for names in entities.values()))


def collate(examples: Sequence[CaptionExample], words: Vocabulary, max_words: int) -> CaptionBatch:
    """One batch of examples; see `CaptionBatch`. A caption that is cut off after `max_words` has no end mark."""
    captions = [caption for example in examples for caption in example.captions]
    index = torch.tensor([row for row, example in enumerate(examples) for _ in example.captions])
    rows = [words.encode(caption.tokens, start=True, end=True)[: max_words + 1] for caption in captions]
    tokens, mask = pad_words([row[:-1] for row in rows])
    targets, _ = pad_words([row[1:] for row in rows])
    pictures = [example.picture for example in examples]
    told = [CaptionExample(e.id, torch.empty(0), e.captions, e.things) for e in examples]
    return CaptionBatch(stack_pictures(pictures), index, tokens, mask, targets, told)
