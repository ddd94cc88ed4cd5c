"""Images with their captions as examples and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.samples import Caption, Dataset, Id
from foveate.lab.data.vocabulary import SPECIAL, UNKNOWN
from foveate.lab.encoders import sentence_encoder
from foveate.lab.encoders.views import caption_of_view
from foveate.lab.features import ImageFeatures
from foveate.lab.tasks.images import ImageReader, ImageSource, stack_images
from foveate.lab.tasks.inputs import Inputs


@dataclass(frozen=True)
class MatchingExample:
    """An image with one or several of its captions.

    Attributes:
        id: of the image.
        image: (3, h, w) uint8, or its features.
        captions: of it.
    """

    id: Id
    image: Tensor | FeatureRecord
    captions: tuple[Caption, ...]


@dataclass(frozen=True)
class MatchingBatch:
    """C captions of I images, every image once.

    Attributes:
        images: (I, 3, h, w) uint8, or features.
        owner: (C,) the image of each caption.
        tokens, mask: (C, T) token ids, and True where there is a token.
        captions: as they were written.
        states: (C, T, S) of a pretrained encoder, see `SentenceEncoder`; None for models that do not read them.
    """

    images: Tensor | ImageFeatures
    owner: Tensor
    tokens: Tensor
    mask: Tensor
    captions: list[Caption]
    states: Tensor | None = None


class CaptionPairs:
    """The images of a split with their captions, by position; see `MatchingExample`.

    Args:
        data: the split.
        source: where images come from, see `ImageReader`.
        views: views of an image; the examples of one view follow those of another.
        each: captions per example, in their order; None puts all captions of an image into one example.
        pooled: as in `ImageReader`.
    """

    def __init__(
        self, data: Dataset, source: ImageSource, *, each: int | None, views: int = 1, pooled: bool = False
    ) -> None:
        self.data, self.images = data, ImageReader(source, views, pooled=pooled)
        counts = data.caption_counts()
        images = self.images.readable(data, np.flatnonzero(counts))
        self.each = each or int(counts.max(initial=1))
        # Positions, since records of millions of images need not fit into memory.
        pieces = -(-counts[images] // self.each)
        self.rows = np.repeat(images, pieces)
        self.starts = self.each * (np.arange(len(self.rows)) - np.repeat(pieces.cumsum() - pieces, pieces))

    def __len__(self) -> int:
        return len(self.rows) * self.images.views

    def __getitem__(self, number: int) -> MatchingExample:
        view, row = self.images.locate(number, len(self.rows))
        image, start = self.data.images[int(self.rows[row])], int(self.starts[row])
        captions = self.data.captions_of(image.id)[start : start + self.each]
        captions = tuple(caption_of_view(caption, view) for caption in captions)
        return MatchingExample(image.id, self.images(image, view), captions)

    def fingerprint(self) -> str:
        """See `ImageReader.fingerprint`."""
        return self.images.fingerprint(self.data)


def collate(
    examples: Sequence[MatchingExample], inputs: Inputs, max_words: int, *, bos_eos: bool, reads_states: bool = False
) -> MatchingBatch:
    """One batch of examples; see `MatchingBatch`."""
    images = {example.id: example.image for example in examples}
    places = {identity: place for place, identity in enumerate(images)}
    captions = [caption for example in examples for caption in example.captions]
    owner = torch.tensor([places[caption.image_id] for caption in captions])
    tokens, mask = inputs.encode([caption.tokens for caption in captions], max_words, bos_eos=bos_eos)
    states = pretrained_states([caption.tokens for caption in captions], max_words) if reads_states else None
    return MatchingBatch(stack_images(list(images.values())), owner, tokens, mask, captions, states)


def pretrained_states(sentences: Sequence[Sequence[str]], max_words: int) -> Tensor:
    """(C, T, S) states of sentences that are truncated to `max_words`, with those of bos and eos around them."""
    return sentence_encoder()([tuple(sentence[:max_words]) for sentence in sentences])


def drop_words(tokens: Tensor, probability: float) -> Tensor:
    """Word dropout: each token becomes the unknown token with some probability; special tokens stay.

    >>> drop_words(torch.tensor([[2, 4, 5, 3, 0]]), 1.0).tolist()
    [[2, 1, 1, 3, 0]]
    """
    drawn = torch.rand(tokens.shape, device=tokens.device) < probability
    return tokens.masked_fill(drawn & (tokens >= len(SPECIAL)), UNKNOWN)
