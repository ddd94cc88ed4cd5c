"""What the models that answer questions have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from torch import Tensor

from foveate.attention import Attended
from foveate.checks import check_shape
from foveate.encoders import PictureEncoder, StoredFeatures
from foveate.encoders.images import ImageFeatures

ImageEncoder: TypeAlias = PictureEncoder | StoredFeatures


@dataclass(frozen=True)
class Reading:
    """The last attention to the picture taken apart, so that an answer can be made from other parts of the picture.

    Attributes:
        question: (B, D) what the question came to.
        scores: (B, N) of the locations, before the transform.
        values: (B, N, V) of the locations.
        mask: (B, N) True where a location counts; None when all do.
        answer: (B, A) scores of the answers from questions (B, D) and contexts (B, V).
    """

    question: Tensor
    scores: Tensor
    values: Tensor
    mask: Tensor | None
    answer: Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Answered:
    """What a model that answers questions returns.

    Attributes:
        scores: (B, A) one score an answer.
        image: attention over the picture, one a step; the last one is read for the answer.
        question: attention over the words, one a step.
        reading: the last step taken apart.
        layers: attention inside the model by name, one a layer, for models that have some.
    """

    scores: Tensor
    image: tuple[Attended, ...]
    question: tuple[Attended, ...]
    reading: Reading
    layers: Mapping[str, tuple[Attended, ...]] = field(default_factory=dict)


def of_questions(features: ImageFeatures, index: Tensor | None) -> ImageFeatures:
    """The features of each question's picture, from those of each picture.

    Several questions about a picture share its encoding: P pictures are encoded once and read B times.

    Args:
        features: of P pictures.
        index: (B,) which of the pictures each question is about; None when there is one picture a question.

    >>> import torch
    >>> features = ImageFeatures(torch.zeros(2, 4, 8), grid=(2, 2))
    >>> of_questions(features, torch.tensor([0, 0, 1])).values.shape
    torch.Size([3, 4, 8])
    """
    if index is None:
        return features
    check_shape("of_questions", "index", index, (None,), "(B,)")
    picked = {name: part[index] for name, part in vars(features).items() if isinstance(part, Tensor)}
    return replace(features, **picked)
