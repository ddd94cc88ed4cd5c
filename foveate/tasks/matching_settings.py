"""Everything about matching pictures with sentences that can be chosen: data, model, pictures, attention, losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.checks import check_number
from foveate.encoders import TextEncoder
from foveate.losses.ranking import NEGATIVES, Negatives
from foveate.metrics.grounding import Attending
from foveate.models import BFAN, SCAN, FragmentMatcher, InnerProduct, LogSumExp, MatchingDAN, Mean, Scorer
from foveate.models.answering import ImageEncoder
from foveate.models.bfan import FocalType
from foveate.models.matching_cross import Aggregate
from foveate.models.scan import Direction
from foveate.registry import lookup
from foveate.tasks.attending import build_attention
from foveate.tasks.examples import check_data
from foveate.tasks.pictures import Conv, Images

Directions = Literal["average", "concatenate"]

# From the factor of the log-sum-exp to how the numbers of the queries become one.
AGGREGATES: Mapping[str, Callable[[float], Aggregate]] = MappingProxyType({"lse": LogSumExp, "mean": lambda _: Mean()})


@dataclass(frozen=True)
class Scan:
    """A SCAN: 1 024 dimensions and t2i with λ₁ = 9 and the log-sum-exp of λ₂ = 6 are the paper's for Flickr30K.

    `directions` of the text encoder: "average", both of size `hidden`; or "concatenate", each of half that size, which
    takes a quarter of the time.
    """

    attended: ClassVar[Attending | None] = "share"
    reads_marks: ClassVar[bool] = True

    hidden: int = 1024
    directions: Directions = "average"
    dropout: float = 0.0
    direction: Direction = "t2i"
    temperature: float = 9.0
    aggregate: Literal["lse", "mean"] = "lse"
    lse: float = 6.0

    def __post_init__(self) -> None:
        lookup("aggregate", self.aggregate, AGGREGATES)
        _check_size(self)

    def scorer(self, attend: nn.Module) -> Scorer:
        """What scores fragments; it has no weights."""
        aggregate = AGGREGATES[self.aggregate](self.lse)
        return SCAN(attend, direction=self.direction, temperature=self.temperature, aggregate=aggregate)

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module) -> nn.Module:
        """The network, for so many words."""
        return _matcher(self, words, word_dim, image, attend)


@dataclass(frozen=True)
class Bfan:
    """A BFAN; its locations attend to words with the mechanism `word_mechanism`, which needs no grid.

    `directions` as in `Scan`.
    """

    attended: ClassVar[Attending | None] = "kept"
    reads_marks: ClassVar[bool] = True

    hidden: int = 1024
    directions: Directions = "average"
    dropout: float = 0.0
    focal: FocalType = "prob"
    temperature: float = 20.0
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        lookup("mechanism", self.word_mechanism, MECHANISMS)
        _check_size(self)

    def scorer(self, attend: nn.Module) -> Scorer:
        """What scores fragments; it has no weights."""
        return BFAN(attend, mechanism(self.word_mechanism), focal=self.focal, temperature=self.temperature)

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module) -> nn.Module:
        """The network, for so many words."""
        return _matcher(self, words, word_dim, image, attend)


@dataclass(frozen=True)
class Mdan:
    """An m-DAN, and the mechanism with which it attends to the words."""

    attended: ClassVar[Attending | None] = None
    reads_marks: ClassVar[bool] = False

    hidden: int = 512
    dropout: float = 0.5
    steps: int = 2
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        lookup("mechanism", self.word_mechanism, MECHANISMS)

    def scorer(self, attend: nn.Module) -> InnerProduct:
        """What scores vectors; it has no weights."""
        return InnerProduct()

    def build(self, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module) -> nn.Module:
        """The network, for so many words."""
        text = TextEncoder(words, word_dim=word_dim, hidden=self.hidden, directions="sum")
        return MatchingDAN(text, image, attend, mechanism(self.word_mechanism), steps=self.steps, dropout=self.dropout)


def _check_size(chosen: Scan | Bfan) -> None:
    lookup("directions", chosen.directions, dict.fromkeys(get_args(Directions)))
    if chosen.directions == "concatenate" and chosen.hidden % 2:
        raise ValueError(f"matching: expected an even hidden to concatenate two halves, got {chosen.hidden}; add one")


def _matcher(chosen: Scan | Bfan, words: int, word_dim: int, image: ImageEncoder, attend: nn.Module) -> nn.Module:
    each = chosen.hidden if chosen.directions == "average" else chosen.hidden // 2
    text = TextEncoder(words, word_dim=word_dim, hidden=each, cell="gru", directions=chosen.directions)
    return FragmentMatcher(text, image, chosen.scorer(attend), dropout=chosen.dropout)


Model: TypeAlias = Scan | Bfan | Mdan


@dataclass(frozen=True)
class MatchingSettings:
    """Everything about matching pictures with sentences that can be chosen.

    Attributes:
        data: a row of `DATASETS` that has captions.
        train_split: the split to train on, "train+restval" for COCO.
        model: which network, and its size.
        images: how pictures become features.
        mechanism, mechanism_options: the attention over the picture, a row of `MECHANISMS`.
        margin: of the ranking.
        negatives: of the ranking: "hardest", "random", "all" or "soft".
        softness: of the soft ones, see `ranking_hinge`.
        easy_batches, easy: so many batches from the start take these negatives in the place of `negatives`: the hardest
            ones alone teach little to a model that knows nothing. The loss of "all" is tens of times that of the
            hardest, so that Adam's steps stay small for long after it; that of "soft" is as large.
        ccr, ccs: weights of the constraints on attention, 0 leaves them out; for models whose fragments look.
        ccr_margin, ccs_margin: γ₂ and γ₃.
        ccr_after, ccs_after: they begin after so many batches. A model that does not know where to look learns nothing
            from what it happens to attend to, and by CCS to look everywhere.
        word_dim: size of a word vector.
        words: where word vectors come from: "glove" or a text file; None starts at random.
        word_std: standard deviation of the numbers that start at random.
        min_count: a word must be in so many places of the training captions to be known.
        max_words: words of a caption that are read.
        forget: in training, each word is read as unknown with this probability.
        captions_each: in training, so many captions make an example with their picture, so that it is encoded once for
            them; a picture with more makes several examples.
        folds: of an evaluation, 5 gives the 1K numbers of COCO beside the 5K ones.
        limit: use only the first so many pictures of every split; None uses all.

    >>> MatchingSettings(negatives="hard")
    Traceback (most recent call last):
    foveate.errors.UnknownName: negatives: expected a known name, got 'hard'; did you mean 'hardest'?
    """

    data: str = "scenes"
    train_split: str = "train"
    model: Model = field(default_factory=Scan)
    images: Images = field(default_factory=Conv)
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    margin: float = 0.2
    negatives: Negatives = "hardest"
    softness: float = 0.05
    easy_batches: int = 0
    easy: Negatives = "all"
    ccr: float = 0.0
    ccs: float = 0.0
    ccr_margin: float = 0.2
    ccs_margin: float = 0.2
    ccr_after: int = 0
    ccs_after: int = 0
    word_dim: int = 300
    words: str | None = None
    word_std: float = 1.0
    min_count: int = 4
    max_words: int = 50
    forget: float = 0.0
    captions_each: int = 1
    folds: int = 1
    limit: int | None = None

    def __post_init__(self) -> None:
        check_data(self.data, "captions")
        for chosen in (self.negatives, self.easy):
            lookup("negatives", chosen, NEGATIVES)
        row = lookup("mechanism", self.mechanism, MECHANISMS)
        names = (
            "margin",
            "easy_batches",
            "ccr",
            "ccs",
            "ccr_margin",
            "ccs_margin",
            "ccr_after",
            "ccs_after",
            "word_std",
            "forget",
        )
        for name in names:
            check_number("matching", name, getattr(self, name), least=0, advice="use zero or more")
        if self.forget > 1:
            raise ValueError(f"matching: expected forget <= 1, got {self.forget:g}; give a probability, 0.1 is a start")
        check_number("matching", "softness", self.softness, above=0, advice="0.05 is a good start for cosines")
        for name in ("max_words", "captions_each", "folds", "min_count"):
            check_number("matching", name, getattr(self, name), least=1, advice="use at least one")
        if isinstance(self.model, Mdan):
            if self.ccr or self.ccs:
                raise ValueError(
                    f"matching: expected ccr=0 and ccs=0 for m-DAN, got {self.ccr:g} and {self.ccs:g}; "
                    "use model=scan or model=bfan, whose fragments look at each other"
                )
        elif row.continuous:
            raise ValueError(
                f"matching: expected a mechanism with discrete weights, got {self.mechanism!r}; "
                "use softmax, sparsemax, tvmax or another transform, or model=mdan"
            )

    def attention(self) -> nn.Module:
        """The mechanism with its options."""
        return build_attention(self.mechanism, self.mechanism_options)
