"""Everything about captioning that can be chosen: data, pictures, model, attention, how captions are searched for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from foveate.attention import MECHANISMS
from foveate.registry import lookup
from foveate.tasks.attending import build_attention
from foveate.tasks.examples import check_data
from foveate.tasks.pictures import Conv, Images


@dataclass(frozen=True)
class CaptioningSettings:
    """Everything about captioning that can be chosen.

    Attributes:
        data: a row of `DATASETS` that has captions.
        train_split: the split to train on, "train+restval" for COCO.
        images: how pictures become features.
        mechanism, mechanism_options: the output attention, a row of `MECHANISMS`. A basis is written as the arguments
            of `GaussianBasis.grid`, for instance {"count": 49, "variance": 0.001}.
        word_dim, hidden, score_dim, dropout: of the `Captioner`.
        min_count: a word must be in so many places of the training captions to be known.
        max_words: words of a caption that are read, and the most that are written.
        beams, length_penalty, no_repeat: of the search, see `beam_search`.
        ccr, ccs: weights of the contrastive constraints on the output attention, see `captioning_constraints`; 0 leaves
            them out. They are told by one word of each caption and, like the loss, divided by the number of words.
        ccr_margin, ccs_margin: their margins, in probability of the word that came.
        limit: use only the first so many pictures of every split; None uses all.
        spice: add SPICE when a trained run is measured.

    >>> CaptioningSettings(mechanism="sparsmax")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'sparsmax'; did you mean 'sparsemax'?
    """

    data: str = "scenes"
    train_split: str = "train"
    images: Images = field(default_factory=Conv)
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    word_dim: int = 256
    hidden: int = 512
    score_dim: int | None = None
    dropout: float = 0.0
    min_count: int = 5
    max_words: int = 20
    beams: int = 3
    length_penalty: float = 0.0
    no_repeat: int | None = None
    ccr: float = 0.0
    ccs: float = 0.0
    ccr_margin: float = 0.2
    ccs_margin: float = 0.2
    limit: int | None = None
    spice: bool = False

    def __post_init__(self) -> None:
        check_data(self.data, "captions")
        lookup("mechanism", self.mechanism, MECHANISMS)

    def attention(self) -> nn.Module:
        """The mechanism with its options."""
        return build_attention(self.mechanism, self.mechanism_options)
