"""The dual encoder: one vector per image and per sentence without any attention, the baseline of all matchers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from foveate.lab.encoders.bag_of_words import BagOfWords
from foveate.lab.encoders.sentences import SentenceEncoder
from foveate.lab.encoders.text import Standardise
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.models.families import MatchingModelSettings
from foveate.lab.models.fragments import Fragments, InnerProduct, MatchingModel
from foveate.ops.reading import masked_mean
from foveate.registry import lookup

DualText = Literal["words", "minilm"]


@dataclass(frozen=True)
class DualSettings(MatchingModelSettings):
    """The dual encoder: pooled features and a bag of words, each one vector, without attention.

    Attributes:
        hidden: D, size of the vectors.
        text: "words", a bag of words, or "minilm", which adds the states of a pretrained sentence encoder (extra
            `sentences`).
        image_dropout, text_dropout: probabilities for the pooled features and the sentence states.
    """

    uses_bos_eos: ClassVar[bool] = True
    attends: ClassVar[bool] = False
    pools: ClassVar[bool] = True

    hidden: int = 512
    text: DualText = "words"
    image_dropout: float = 0.6
    text_dropout: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("text", self.text, dict.fromkeys(get_args(DualText)))

    @property
    def reads_states(self) -> bool:
        return self.text == "minilm"

    def scorer(self, attend: nn.Module) -> InnerProduct:
        return InnerProduct()

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> Dual:
        states = SentenceEncoder.dim if self.reads_states else None
        text = BagOfWords(vocabulary, word_dim, self.hidden, states=states, dropout=self.text_dropout)
        return Dual(text, image, dropout=self.image_dropout)


class Dual(MatchingModel):
    """A dual encoder without attention: S = cos(image vector, sentence vector).

    The vector of an image is W dropout(standardise(±√|[mean; max]|)) over its locations, that of a sentence is from
    `BagOfWords`. Roots make features that are zero at most locations less extreme; the strong dropout and large batches
    with InfoNCE make this simple model a strong baseline on little data.

    Args:
        text: encoder of the sentences, D = text.dim.
        image: encoder of the images, with features of any size `image.dim`.
        dropout: probability for the pooled features.

    >>> from foveate.lab.encoders import StoredFeatures
    >>> model = Dual(BagOfWords(10, 4, 8), StoredFeatures(6))
    >>> tokens, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool)
    >>> model(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)), tokens, mask).shape
    torch.Size([2, 3])
    """

    def __init__(self, text: BagOfWords, image: AnyImageEncoder, *, dropout: float = 0.6) -> None:
        super().__init__()
        self.text, self.image, self.scorer = text, image, InnerProduct()
        self.pooled = PooledImage(image.dim, text.dim, dropout)

    def embed_image(self, images: ImageFeatures | Tensor) -> Fragments:
        """One unit vector per image, (I, 1, D); features of size 2 `image.dim` are means and maxima already."""
        if isinstance(images, ImageFeatures) and images.values.shape[1:] == (1, 2 * self.image.dim):
            return Fragments(self.pooled.project_pooled(images.values[:, 0].float())[:, None])
        return Fragments(self.pooled(self.image(images))[:, None])

    def embed_text(
        self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True
    ) -> Fragments:
        """One unit vector per sentence, (C, 1, D); see `MatchingModel.embed_text`."""
        return Fragments(functional.normalize(self.text(tokens, mask, states, dropout=dropout), dim=-1)[:, None])


class PooledImage(nn.Module):
    """One unit vector per image, from the mean and the maximum of its features; see `Dual`."""

    def __init__(self, dim: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.standardise, self.dropout = Standardise(2 * dim), nn.Dropout(dropout)
        self.project = nn.Linear(2 * dim, hidden)

    def forward(self, features: ImageFeatures) -> Tensor:
        """(I, D) unit vectors of features (I, N, F)."""
        values, mask = features.values, features.mask
        # An image without locations has a maximum of zero, not of minus infinity.
        largest = values if mask is None else values.where(mask[..., None] | ~mask.any(1)[:, None, None], -torch.inf)
        return self.project_pooled(torch.cat([masked_mean(values, mask), largest.amax(1)], -1))

    def project_pooled(self, pooled: Tensor) -> Tensor:
        """(I, D) unit vectors of means and maxima (I, 2 F)."""
        roots = self.standardise(pooled.sign() * pooled.abs().sqrt())
        return functional.normalize(self.project(self.dropout(roots)), dim=-1)
