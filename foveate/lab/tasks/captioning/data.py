"""Captions as examples and batches: an image or its features, all of its captions, and the objects in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.samples import Caption, Dataset, Id
from foveate.lab.encoders.views import caption_of_view
from foveate.lab.features import ImageFeatures
from foveate.lab.metrics.caption_quality import CiderD
from foveate.lab.tasks.images import ImageReader, ImageSource, stack_images
from foveate.lab.tasks.inputs import Inputs, pad_tokens

Names = tuple[str, ...]


@dataclass(frozen=True)
class CaptionExample:
    """An image with its captions.

    Attributes:
        id: of the image.
        image: (3, h, w) uint8, or its features.
        captions: written by annotators.
        objects: the names of each annotated object in it.
        rate: CIDEr-D with the idf of the split, for self-critical training.
    """

    id: Id
    image: Tensor | FeatureRecord
    captions: tuple[Caption, ...]
    objects: tuple[Names, ...] = ()
    rate: CiderD | None = None


@dataclass(frozen=True)
class CaptionBatch:
    """B captions of P images.

    Attributes:
        images: (P, 3, h, w) uint8, or features.
        index: (B,) the image of each caption.
        tokens, mask: (B, T) token ids beginning with bos, and True where there is a token.
        targets: (B, T) the token that follows each of them, eos at the end.
        examples: the P examples without pixels.
    """

    images: Tensor | ImageFeatures
    index: Tensor
    tokens: Tensor
    mask: Tensor
    targets: Tensor
    examples: list[CaptionExample]


class CaptionExamples:
    """The images of a split with all their captions, by position; images without captions are left out.

    Args:
        data: the split.
        source: where images come from, see `ImageReader`.
        views: views of an image; the examples of one view follow those of another.
        rated: examples carry a `CiderD` of the split.
    """

    def __init__(self, data: Dataset, source: ImageSource, *, views: int = 1, rated: bool = False) -> None:
        self.data, self.images = data, ImageReader(source, views)
        # Positions, since records of millions of images need not fit into memory.
        self.rows = self.images.readable(data, np.flatnonzero(data.caption_counts()))
        references = ([caption.tokens for caption in data.captions_of(data.images[row].id)] for row in self.rows)
        self.rate = CiderD.from_references(references) if rated else None

    def __len__(self) -> int:
        return len(self.rows) * self.images.views

    def __getitem__(self, number: int) -> CaptionExample:
        view, row = self.images.locate(number, len(self.rows))
        image = self.data.images[int(self.rows[row])]
        captions = tuple(caption_of_view(caption, view) for caption in self.data.captions_of(image.id))
        shown, objects = self.images(image, view), object_names(self.data, image.id)
        return CaptionExample(image.id, shown, captions, objects, self.rate)

    def fingerprint(self) -> str:
        """See `ImageReader.fingerprint`."""
        return self.images.fingerprint(self.data)


def object_names(data: Dataset, image: Id) -> tuple[Names, ...]:
    """The names of each kind of object in an image: of its objects, or of the entities that its captions mention.

    Objects of one name are one kind. An entity has boxes; its names are the last words of the phrases that mention it
    ("dog" of "the brown dog").

    >>> from foveate.lab.data.scenes import make_scenes
    >>> data = make_scenes(split="val", count=1)
    >>> len(object_names(data, data.images[0].id)) > 0
    True
    """
    objects = data.objects_of(image)
    if objects:
        return tuple(dict.fromkeys((each.name, *each.synonyms) for each in objects))
    entities: dict[Id, dict[str, None]] = {}
    for caption in data.captions_of(image):
        for phrase in caption.phrases:
            if phrase.boxes:
                entities.setdefault(phrase.entity, {})[caption.words(phrase)[-1]] = None
    return tuple(dict.fromkeys(tuple(names) for names in entities.values()))


def collate(examples: Sequence[CaptionExample], inputs: Inputs, max_words: int) -> CaptionBatch:
    """One batch of examples; see `CaptionBatch`. A caption that is truncated to `max_words` has no eos."""
    captions = [caption for example in examples for caption in example.captions]
    index = torch.tensor([row for row, example in enumerate(examples) for _ in example.captions])
    rows = [inputs.words.encode(caption.tokens, bos=True, eos=True)[: max_words + 1] for caption in captions]
    tokens, mask = pad_tokens([row[:-1] for row in rows])
    targets, _ = pad_tokens([row[1:] for row in rows])
    images = stack_images([example.image for example in examples])
    without_pixels = [replace(example, image=torch.empty(0)) for example in examples]
    return CaptionBatch(images, index, tokens, mask, targets, without_pixels)
