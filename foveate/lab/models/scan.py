"""SCAN, stacked cross attention: words attend to locations, or locations to words; and the network around a scorer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor, nn

from foveate.checks import check_number
from foveate.errors import WrongValue
from foveate.lab.encoders import SentenceEncoder, Standardise, TextEncoder, WordsInContext
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.models.cross_attention import Aggregate, CrossAttention, LogSumExp, Mean
from foveate.lab.models.dual import Dual, DualSettings
from foveate.lab.models.families import MatchingModelSettings
from foveate.lab.models.fragments import BUDGET, CrossAttended, Fragments, MatchingModel, Scorer, check_fragments
from foveate.registry import lookup

Bidirectional = Literal["average", "concatenate"]
Direction = Literal["t2i", "i2t"]
ImageStart = Literal["default", "xavier"]
# Functions that reduce the relevance of all queries to one number, built from the factor of the log-sum-exp.
AGGREGATES: Mapping[str, Callable[[float], Aggregate]] = MappingProxyType({"lse": LogSumExp, "mean": lambda _: Mean()})


@dataclass(frozen=True)
class FragmentMatcherSettings(MatchingModelSettings):
    """Settings of a `FragmentMatcher`; a subclass adds the scorer.

    Attributes:
        hidden: D, size of the common space.
        bidirectional: how the two directions of the GRU are joined: "average" with `hidden` units each, or
            "concatenate" with half as many units each, which takes a quarter of the time.
        dropout, roots, image_start: as in `FragmentMatcher`.
        text: "gru" as in the papers, or "minilm", the states of a pretrained encoder (extra `sentences`).
        whole: settings of a dual encoder whose score is added, with the same text; None for none.
        whole_weight: of that score at the start; it is learnt if the sum of both scores is trained.
    """

    uses_bos_eos: ClassVar[bool] = True
    cross_attention: ClassVar[bool] = True

    hidden: int = 1024
    bidirectional: Bidirectional = "average"
    dropout: float = 0.0
    image_start: ImageStart = "default"
    roots: bool = False
    text: Literal["gru", "minilm"] = "gru"
    whole: DualSettings | None = None
    whole_weight: float = 1.0

    @property
    def reads_states(self) -> bool:
        return self.text == "minilm"

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("bidirectional", self.bidirectional, dict.fromkeys(get_args(Bidirectional)))
        if self.bidirectional == "concatenate" and self.hidden % 2:
            raise WrongValue(
                f"matching: expected an even hidden for concatenated directions, got {self.hidden}; add one"
            )
        lookup("text", self.text, dict.fromkeys(("gru", "minilm")))
        check_number(
            "matching", "whole_weight", self.whole_weight, above=0, advice="use whole=none for attention alone"
        )
        if self.whole is not None and self.whole.reads_states and not self.reads_states:
            raise WrongValue(
                f"matching: expected text=minilm if the whole reads its states, got {self.text!r}; use one text"
            )

    @abstractmethod
    def scorer(self, attend: nn.Module) -> Scorer:
        """The scorer with its attention."""

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module) -> FragmentMatcher:
        text, scorer = self._text(vocabulary, word_dim), self.scorer(attend)
        whole = None if self.whole is None else self.whole.build(vocabulary, word_dim, image, attend)
        start = self.image_start
        return FragmentMatcher(
            text,
            image,
            scorer,
            dropout=self.dropout,
            roots=self.roots,
            whole=whole,
            whole_weight=self.whole_weight,
            image_start=start,
        )

    def _text(self, vocabulary: int, word_dim: int) -> TextEncoder | WordsInContext:
        if self.reads_states:
            states = SentenceEncoder.dim
            return WordsInContext(vocabulary, word_dim, self.hidden, states=states, dropout=self.dropout)
        each = self.hidden if self.bidirectional == "average" else self.hidden // 2
        return TextEncoder(vocabulary, word_dim=word_dim, hidden=each, cell="gru", directions=self.bidirectional)


@dataclass(frozen=True)
class SCANSettings(FragmentMatcherSettings):
    """SCAN: words attend to locations, or locations to words; the defaults are the paper's t2i on Flickr30K.

    Attributes:
        direction, temperature: as in `SCAN`.
        aggregate, lse: "lse", the log-sum-exp with the factor `lse`, or "mean".
    """

    attended_rule: ClassVar[Literal["above-uniform", "above-zero"] | None] = "above-uniform"

    direction: Direction = "t2i"
    temperature: float = 9.0
    aggregate: Literal["lse", "mean"] = "lse"
    lse: float = 6.0

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("aggregate", self.aggregate, AGGREGATES)

    @property
    def words_attend(self) -> bool:
        return self.direction == "t2i"

    def scorer(self, attend: nn.Module) -> SCAN:
        aggregate = AGGREGATES[self.aggregate](self.lse)
        return SCAN(attend, direction=self.direction, temperature=self.temperature, aggregate=aggregate)


class FragmentMatcher(MatchingModel):
    """Maps locations and words to a common space and scores images with sentences by SCAN or BFAN.

    v_n = W x_n + b and the states w_t of the words, each divided by its length; scores = scorer(v, w)

    Args:
        text: encoder of the words, D = text.dim; a bidirectional GRU with averaged directions in the papers.
        image: encoder of the images, with features of any size `image.dim`.
        scorer: `SCAN` or `BFAN`.
        dropout: probability for the features and the states of the words, once each; the papers have none.
        roots: standardise the roots ±√|x| of the features instead of taking them as they are.
        whole: a dual encoder of whole images and sentences, whose cosine, times a learnt factor, is added to the score;
            attention then has to explain what the whole does not. None in the papers.
        whole_weight: the factor at the start.
        image_start: initial weights of W: torch's "default", or "xavier" with b = 0 as in the released SCAN and BFAN.

    Reference: Lee et al. 2018, §3; Liu et al. 2019, §3.

    >>> from foveate.attention import mechanism
    >>> from foveate.lab.encoders import StoredFeatures
    >>> from foveate.lab.models import SCAN
    >>> model = FragmentMatcher(TextEncoder(10, word_dim=4, hidden=8), StoredFeatures(6), SCAN(mechanism("softmax")))
    >>> tokens, mask = torch.ones(3, 5, dtype=torch.long), torch.ones(3, 5, dtype=torch.bool)
    >>> model(ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)), tokens, mask).shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        text: TextEncoder | WordsInContext,
        image: AnyImageEncoder,
        scorer: Scorer,
        *,
        dropout: float = 0.0,
        roots: bool = False,
        whole: Dual | None = None,
        whole_weight: float = 1.0,
        image_start: ImageStart = "default",
    ) -> None:
        super().__init__()
        self.text, self.image, self.scorer, self.whole = text, image, scorer, whole
        self.features = nn.Linear(image.dim, text.dim)
        if image_start == "xavier":
            nn.init.xavier_uniform_(self.features.weight)
            nn.init.zeros_(self.features.bias)
        self.dropout = nn.Dropout(dropout)
        self.standardise = Standardise(image.dim) if roots else None
        self.balance = None if whole is None else nn.Parameter(torch.tensor(float(whole_weight)))

    def freeze_whole(self) -> None:
        """Exclude the dual encoder and its factor from training; the image encoder, which both share, is not."""
        if self.whole is not None and self.balance is not None:
            self.whole.text.requires_grad_(False)
            self.whole.pooled.requires_grad_(False)
            self.balance.requires_grad_(False)

    def embed_image(self, images: ImageFeatures | Tensor) -> Fragments:
        """The locations of images as unit vectors (I, N, D)."""
        features = self.image(images)
        values = features.values
        if self.standardise is not None:
            values = self.standardise(values.sign() * values.abs().sqrt(), features.mask)
        whole = None
        if self.whole is not None and self.balance is not None:
            whole = self.balance * self.whole.pooled(features)
        return Fragments(self.features(self.dropout(values)), features.mask, features.grid, whole=whole).unit()

    def embed_text(
        self, tokens: Tensor, mask: Tensor, states: Tensor | None = None, *, dropout: bool = True
    ) -> Fragments:
        """The words of sentences (C, T) as unit vectors (C, T, D); see `MatchingModel.embed_text`."""
        encoded = self.text(tokens, mask) if states is None else self.text(tokens, mask, states)
        # Pretrained states were dropped inside the encoder; dropping their projection as well only adds noise.
        again = dropout and states is None
        words = self.dropout(encoded.states) if again else encoded.states
        whole = None
        if self.whole is not None:
            whole = self.whole.embed_text(tokens, mask, states, dropout=dropout).values[:, 0]
        return Fragments(words, mask, whole=whole).unit()


class SCAN(Scorer):
    """Scores of images with sentences by stacked cross attention.

    S = AGG_q r_q with r of `CrossAttention`; the queries are words ("t2i") or locations ("i2t").

    Args:
        attend: a discrete attention over the keys; one that needs a grid requires direction "t2i".
        direction: "t2i", words attend to locations; "i2t", locations attend to words.
        temperature: λ, the inverse temperature of the scores: 9 for t2i and 4 for i2t in the paper.
        aggregate: `LogSumExp(6)` for t2i and `LogSumExp(5)` for i2t on Flickr30K in the paper, or `Mean()`.
        budget: bytes, see `Scorer`.

    Reference: Lee et al. 2018, §3.1 (their λ₁ is `temperature`, λ₂ the factor of `LogSumExp`).

    >>> import torch
    >>> from foveate.attention import mechanism
    >>> from foveate.lab.models.cross_attention import Mean
    >>> words, cells = Fragments(torch.eye(3)[None]), Fragments(torch.eye(3)[None], grid=(1, 3))
    >>> scan = SCAN(mechanism("sparsemax"), aggregate=Mean())
    >>> scan(cells, words).tolist(), scan.look(cells, words).weights[0].tolist()
    ([[1.0]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    """

    def __init__(
        self,
        attend: nn.Module,
        *,
        direction: Direction = "t2i",
        temperature: float = 9.0,
        aggregate: Aggregate | None = None,
        budget: int = BUDGET,
    ) -> None:
        super().__init__(budget)
        if direction not in ("t2i", "i2t"):
            raise WrongValue(f"SCAN: expected direction 't2i' or 'i2t', got {direction!r}; correct the name")
        self.direction: Direction = direction
        self.attention = CrossAttention(attend, temperature=temperature)
        self.aggregate = LogSumExp(6.0) if aggregate is None else aggregate

    def score(self, images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
        """Scores (X, Y) of all pairs, or (P, 1) if `paired`; see `Scorer.score`."""
        cosines = pair_cosines(images, texts, paired=paired)
        if self.direction == "t2i":
            return self.aggregate(word_relevance(self.attention, cosines, images))
        mask = None if images.mask is None else images.mask[:, None]
        return self.aggregate(location_relevance(self.attention, cosines, images, texts, paired=paired), mask)

    def cross_attend(self, images: Fragments, texts: Fragments) -> tuple[CrossAttended, ...]:
        """Attention in the direction of the model; see `Scorer.cross_attend`."""
        return (attend_pairs(self.attention, images, texts, from_words=self.direction == "t2i"),)


def pair_cosines(images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
    """Inner products of words and locations: (X, Y, T, N) of all pairs, or (P, 1, T, N) if `paired`."""
    if paired:
        return (texts.values @ images.values.mT)[:, None]
    # One large matrix product is faster than one small product per pair.
    Y, T, D = texts.values.shape
    return (texts.values.reshape(Y * T, D) @ images.values.mT).view(images.values.shape[0], Y, T, -1)


def word_relevance(attention: CrossAttention, cosines: Tensor, images: Fragments) -> Tensor:
    """(X, Y, T) relevance of the image to each word."""
    return attention.relevance(cosines, images.gram[:, None], images.grid, images.mask, None)


def location_relevance(
    attention: CrossAttention, cosines: Tensor, images: Fragments, texts: Fragments, *, paired: bool
) -> Tensor:
    """(X, Y, N) relevance of the sentence to each location."""
    gram = texts.gram[:, None] if paired else texts.gram[None]
    return attention.relevance(cosines.mT, gram, None, None, images.mask)


def attend_pairs(attention: CrossAttention, images: Fragments, texts: Fragments, *, from_words: bool) -> CrossAttended:
    """Cross attention of P images with P sentences, in float32 or higher.

    Args:
        attention: over the keys.
        images, texts: (P, N, D) locations and (P, T, D) words; pair p is image p with sentence p.
        from_words: words attend to locations; otherwise locations attend to words.
    """
    check_fragments("attend_pairs", images, texts, paired=True)
    images, texts = images.at_least_float32(), texts.at_least_float32()
    queries, keys = (texts, images) if from_words else (images, texts)
    with torch.autocast(images.values.device.type, enabled=False):
        cosines = (queries.values @ keys.values.mT)[:, None]
        scores = attention.scores(cosines, queries.mask)
        weights = attention.weigh(scores, keys.grid, keys.mask)
    return CrossAttended(queries, keys, scores[:, 0], weights[:, 0], attention.attended, queries_are_words=from_words)
