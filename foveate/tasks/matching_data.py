"""Pictures with their captions as examples and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.data.features import ImageFeatures, PictureFeatures
from foveate.data.samples import Caption, Dataset, Id
from foveate.data.vocabulary import SPECIAL, UNKNOWN, Vocabulary
from foveate.tasks.examples import PictureReader, pad_words, stack_pictures
from foveate.tasks.pictures import PictureSource


@dataclass(frozen=True)
class MatchingExample:
    """A picture with one or several of its captions.

    Attributes:
        id: of the picture.
        picture: (3, h, w) uint8, or its stored features.
        captions: of it.
    """

    id: Id
    picture: Tensor | PictureFeatures
    captions: tuple[Caption, ...]


@dataclass(frozen=True)
class MatchingBatch:
    """C captions of I pictures, every picture once.

    Attributes:
        pictures: (I, 3, h, w) uint8, or stored features.
        owner: (C,) the picture of each caption.
        tokens, mask: (C, T) word numbers, and True where there is a word.
        captions: as they were written.
    """

    pictures: Tensor | ImageFeatures
    owner: Tensor
    tokens: Tensor
    mask: Tensor
    captions: list[Caption]


class CaptionPairs:
    """The pictures of a split with their captions, by number; see `MatchingExample`.

    Args:
        data: the split.
        source: how a picture becomes pixels, the store of its features, or the encoder that makes them.
        each: captions an example, in their order; None puts all captions of a picture into one.
    """

    def __init__(self, data: Dataset, source: PictureSource, *, each: int | None) -> None:
        self.data, self.pictures = data, PictureReader(source)
        self.rows = [
            own[start : start + (each or len(own))]
            for own in (data.captions_of(picture.id) for picture in data.pictures)
            for start in range(0, len(own), each or max(1, len(own)))
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> MatchingExample:
        captions = self.rows[number]
        picture = self.data.picture(captions[0])
        return MatchingExample(picture.id, self.pictures(picture), captions)

    def fingerprint(self) -> str:
        """That of the annotations, and of the features where there are some."""
        return self.pictures.fingerprint(self.data)


def collate(examples: Sequence[MatchingExample], words: Vocabulary, max_words: int, *, marks: bool) -> MatchingBatch:
    """One batch of examples; see `MatchingBatch`."""
    pictures = {example.id: example.picture for example in examples}
    numbers = {identity: number for number, identity in enumerate(pictures)}
    captions = [caption for example in examples for caption in example.captions]
    owner = torch.tensor([numbers[caption.image_id] for caption in captions])
    tokens, mask = encode_sentences([caption.tokens for caption in captions], words, max_words, marks=marks)
    return MatchingBatch(stack_pictures(list(pictures.values())), owner, tokens, mask, captions)


def encode_sentences(
    sentences: Sequence[Sequence[str]], words: Vocabulary, max_words: int, *, marks: bool
) -> tuple[Tensor, Tensor]:
    """Sentences as (C, T) word numbers, and (C, T) True where there is a word; marks stand around each where wanted.

    >>> encode_sentences([["a", "dog"]], Vocabulary.from_tokens([["a", "dog"]]), 9, marks=True)[0].tolist()
    [[2, 4, 5, 3]]
    """
    return pad_words([words.encode(one, start=marks, end=marks, max_tokens=max_words) for one in sentences])


def forget(tokens: Tensor, probability: float) -> Tensor:
    """Words with some of them, drawn, read as unknown; marks stay.

    >>> forget(torch.tensor([[2, 4, 5, 3, 0]]), 1.0).tolist()
    [[2, 1, 1, 3, 0]]
    """
    drawn = torch.rand(tokens.shape, device=tokens.device) < probability
    return tokens.masked_fill(drawn & (tokens >= len(SPECIAL)), UNKNOWN)
