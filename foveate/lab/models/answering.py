"""The interface shared by models that answer questions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import Tensor, nn

from foveate.attention import Attended
from foveate.lab.encoders import ImageEncoder, StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures

AnyImageEncoder: TypeAlias = ImageEncoder | StoredFeatures


@dataclass(frozen=True)
class Reading:
    """The parts of the last attention over the image, from which an answer can be computed for any other context.

    Attributes:
        question: (B, D) summary of the question.
        scores: (B, N) scores of the locations, before the transform.
        values: (B, N, V) values of the locations.
        mask: (B, N) True where a location counts; None if all do.
        answer: maps questions (B, D) and contexts (B, V) to scores of the answers (B, A).
        attend: the attention that read the values, `attend(scores, values, grid, mask)`.
    """

    question: Tensor
    scores: Tensor
    values: Tensor
    mask: Tensor | None
    answer: Callable[[Tensor, Tensor], Tensor]
    attend: nn.Module


@dataclass(frozen=True)
class Answered:
    """Output of a model that answers questions.

    Attributes:
        scores: (B, A) one score per answer.
        image: attention over the image, one per step; the answer is computed from the last one.
        question: attention over the words, one per step.
        reading: the parts of the last step.
        layers: attention inside the model by name, one per layer, for models that have inner attention.
    """

    scores: Tensor
    image: tuple[Attended, ...]
    question: tuple[Attended, ...]
    reading: Reading
    layers: Mapping[str, tuple[Attended, ...]] = field(default_factory=dict)


class AnsweringModel(nn.Module, ABC):
    """A model that answers questions about images.

    Attributes:
        text: encodes the words.
        image: encodes the images.
    """

    text: TextEncoder
    image: AnyImageEncoder

    @abstractmethod
    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Answered:
        """Answer B questions about P images.

        Args:
            images: input of the image encoder, P images.
            tokens: (B, T) token ids, padded at the end.
            mask: (B, T) True where there is a token.
            index: (B,) the image that each question is about; None if question b is about image b.
        """
