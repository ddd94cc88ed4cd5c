"""Everything about visual question answering that can be chosen: data, model, pictures, attention, losses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.encoders import TextEncoder
from foveate.losses import LOSSES
from foveate.metrics.vqa import RULES, Rule
from foveate.models import MCAN, ReasoningDAN
from foveate.models.answering import ImageEncoder
from foveate.registry import lookup
from foveate.tasks.attending import build_attention
from foveate.tasks.examples import check_data
from foveate.tasks.pictures import Conv, Images


@dataclass(frozen=True)
class Mcan:
    """The size of an MCAN: hidden 512, 8 heads and 6 layers are the paper's small one."""

    hidden: int = 512
    heads: int = 8
    layers: int = 6
    dropout: float = 0.1

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module, answers: int) -> nn.Module:
        """The network, for so many words and answers."""
        text = TextEncoder(words, word_dim=word_dim, hidden=self.hidden)
        return MCAN(text, image, attend, answers=answers, heads=self.heads, layers=self.layers, dropout=self.dropout)


@dataclass(frozen=True)
class Rdan:
    """The size of an r-DAN, and the mechanism with which it attends to the words."""

    hidden: int = 512
    steps: int = 2
    dropout: float = 0.5
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        lookup("mechanism", self.word_mechanism, MECHANISMS)

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module, answers: int) -> nn.Module:
        """The network, for so many words and answers."""
        text = TextEncoder(words, word_dim=word_dim, hidden=self.hidden, directions="sum")
        reads = mechanism(self.word_mechanism)
        return ReasoningDAN(text, image, attend, reads, answers=answers, steps=self.steps, dropout=self.dropout)


Model: TypeAlias = Mcan | Rdan


@dataclass(frozen=True)
class VQASettings:
    """Everything about visual question answering that can be chosen.

    Attributes:
        data: a row of `DATASETS` that has questions.
        model: which network, and its size.
        images: how pictures become features.
        mechanism, mechanism_options: the attention over the picture, a row of `MECHANISMS`. A basis is written as the
            arguments of `GaussianBasis.grid`, for instance {"count": 49, "variance": 0.001}.
        loss: "bce" over every answer, or "cross-entropy" over the softmax of them.
        guidance: weight of the loss that pulls attention towards the true region or people's maps; 0 leaves it free.
        guidance_loss: which one, "kl" or "js".
        ccr, ccs: weights of the contrastive constraints on what is looked at, see `vqa_constraints`; 0 leaves them out.
        ccr_margin, ccs_margin: their margins, in probability of the right answers.
        word_dim: size of a word vector.
        words: where word vectors come from: "glove" or a text file; None starts at random.
        max_tokens: words of a question that are read.
        min_count: an answer must be the agreed one of so many training questions.
        max_answers: keep only so many of the most frequent answers; None keeps all.
        group: one example is a picture with all its questions, so that it is encoded once; otherwise one question.
        limit: use only the first so many pictures of every split; None uses all.
        rule: how answers are counted, "official" or "lenient".
        look_size: rows and columns of the grid on which attention is compared with the truth.

    >>> VQASettings(mechanism="tvmx")
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'?
    """

    data: str = "scenes"
    model: Model = field(default_factory=Mcan)
    images: Images = field(default_factory=Conv)
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    loss: Literal["bce", "cross-entropy"] = "bce"
    guidance: float = 0.0
    guidance_loss: Literal["kl", "js"] = "kl"
    ccr: float = 0.0
    ccs: float = 0.0
    ccr_margin: float = 0.2
    ccs_margin: float = 0.2
    word_dim: int = 300
    words: str | None = None
    max_tokens: int = 14
    min_count: int = 9
    max_answers: int | None = None
    group: bool = False
    limit: int | None = None
    rule: Rule = "official"
    look_size: tuple[int, int] = (14, 14)

    def __post_init__(self) -> None:
        check_data(self.data, "questions")
        lookup("mechanism", self.mechanism, MECHANISMS)
        lookup("loss", self.loss, LOSSES)
        lookup("loss", self.guidance_loss, LOSSES)
        lookup("rule", self.rule, RULES)

    def attention(self) -> nn.Module:
        """The mechanism with its options."""
        return build_attention(self.mechanism, self.mechanism_options)
