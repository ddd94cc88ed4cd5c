"""Everything about matching images with sentences that can be chosen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from foveate.attention import MECHANISMS
from foveate.checks import check_number
from foveate.errors import WrongValue
from foveate.lab.losses.ranking import NEGATIVES, Negatives, info_nce, ranking_hinge
from foveate.lab.models import MatchingModelSettings, SCANSettings
from foveate.lab.tasks.task_settings import Content, TaskSettings
from foveate.registry import lookup


@dataclass(frozen=True)
class Ranking:
    """The ranking loss; see `ranking_hinge` and `info_nce`.

    Attributes:
        loss: "hinge", that of the papers, or "infonce", which needs large batches and uses only the temperature.
        parts: of a matcher beside a dual encoder, "sum" ranks by the sum of both scores; "fragments" ranks by attention
            alone, which then has to match images by itself, and the dual encoder stays as it started.
        temperature: of InfoNCE.
        margin: by how much an image and its caption must score higher than other pairs.
        negatives: "hardest", "random", "sampled", "all" or "soft".
        softness: of the soft negatives.
        warmup_steps, warmup_negatives: number of steps at the start of training that use other negatives, and which,
            since the hardest negatives alone teach little to an untrained model. The loss with "all" is tens of times
            that with the hardest, so that the steps of Adam stay small long after it; with "soft" it has the same size.
    """

    loss: Literal["hinge", "infonce"] = "hinge"
    parts: Literal["sum", "fragments"] = "sum"
    temperature: float = 0.05
    margin: float = 0.2
    negatives: Negatives = "hardest"
    softness: float = 0.05
    warmup_steps: int = 0
    warmup_negatives: Negatives = "all"

    def __post_init__(self) -> None:
        lookup("loss", self.loss, dict.fromkeys(("hinge", "infonce")))
        lookup("parts", self.parts, dict.fromkeys(("sum", "fragments")))
        check_number("matching", "temperature", self.temperature, above=0, advice="0.05 is a good start for cosines")
        for negatives in (self.negatives, self.warmup_negatives):
            lookup("negatives", negatives, NEGATIVES)
        for name in ("margin", "warmup_steps"):
            check_number("matching", name, getattr(self, name), least=0, advice="use zero or more")
        check_number("matching", "softness", self.softness, above=0, advice="0.05 is a good start for cosines")

    def compute(self, scores: Tensor, owner: Tensor, step: int) -> Tensor:
        """The loss of scores (I, C) at a training step."""
        if self.loss == "infonce":
            return info_nce(scores, owner, temperature=self.temperature)
        negatives = self.negatives_at(step)
        return ranking_hinge(scores, owner, margin=self.margin, negatives=negatives, softness=self.softness)

    def negatives_at(self, step: int) -> Negatives:
        """The negatives of a training step."""
        return self.warmup_negatives if step < self.warmup_steps else self.negatives


@dataclass(frozen=True)
class MatchingSettings(TaskSettings):
    """Settings of matching, besides those of `TaskSettings`.

    Attributes:
        model: a row of `MODELS` that matches images with sentences, with its sizes.
        ranking: the ranking loss.
        guidance: weight of the loss that pulls the attention of words towards the boxes of their phrases, where the
            training captions have any (Flickr30k Entities, Scenes); 0, as in the papers, learns it from matching alone.
        word_dim: size of a word vector.
        words: source of the word vectors: "glove" or a text file; None starts at random.
        word_std: standard deviation of word vectors that start at random.
        word_range: word vectors that start at random are uniform in [-word_range, word_range] instead; SCAN uses 0.1.
        min_count: a word must occur at least this often in the training captions to be known; None chooses
            it by the number of captions.
        max_words: captions are truncated to this many words.
        word_dropout: in training, each word is replaced by the unknown token with this probability.
        captions_per_example: in training, this many captions form an example with their image, so that it is encoded
            once for them; an image with more captions forms several examples.
        dual_start: directory of a run of `dual` that SCAN or BFAN with `text=minilm` start from, see `start_from_dual`.
        rank_parts: consecutive parts of the images in which ranks are measured too; 5 adds the 1K numbers of COCO.

    The constraints need a model with cross attention, SCAN or BFAN.

    >>> Ranking(negatives="hard")
    Traceback (most recent call last):
    foveate.errors.UnknownName: negatives: expected a known name, got 'hard'; did you mean 'hardest'?
    """

    content: ClassVar[Content] = "captions"

    model: MatchingModelSettings = field(default_factory=SCANSettings)
    ranking: Ranking = field(default_factory=Ranking)
    guidance: float = 0.0
    word_dim: int = 300
    words: str | None = None
    word_std: float = 1.0
    word_range: float | None = None
    min_count: int | None = 4
    max_words: int = 50
    word_dropout: float = 0.0
    captions_per_example: int = 1
    dual_start: str | None = None
    rank_parts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("guidance", "word_std", "word_dropout"):
            check_number("matching", name, getattr(self, name), least=0, advice="use zero or more")
        if self.word_range is not None:
            check_number("matching", "word_range", self.word_range, above=0, advice="SCAN uses 0.1")
        if self.word_dropout > 1:
            raise WrongValue(f"matching: expected word_dropout <= 1, got {self.word_dropout:g}; pass a probability")
        for name in ("captions_per_example", "rank_parts"):
            check_number("matching", name, getattr(self, name), least=1, advice="use at least one")
        if self.ccs.weight and self.model.reads_states:
            raise WrongValue(
                f"matching: expected ccs=0 for text=minilm, got {self.ccs.weight:g}; CCS reads sentences with swapped "
                "words, whose states would have to be computed in every step: use text=gru"
            )
        if self.dual_start is not None and not (self.model.cross_attention and self.model.reads_states):
            raise WrongValue(
                "matching: expected a model of words and locations with text=minilm for dual_start, got another; use "
                "model=scan or model=bfan with model.text=minilm"
            )
        if self.guidance:
            self._check_guidance()
        if self.min_count is not None:
            check_number("matching", "min_count", self.min_count, least=1, advice="use at least one")
        if self.model.cross_attention:
            self._check_mechanism()
        elif self.ccr.weight or self.ccs.weight:
            raise WrongValue(
                f"matching: expected ccr=0 and ccs=0 for a model without cross attention, got {self.ccr.weight:g} and "
                f"{self.ccs.weight:g}; use model=scan or model=bfan"
            )

    def _check_guidance(self) -> None:
        if not (self.model.cross_attention and self.model.words_attend):
            raise WrongValue(
                f"matching: expected words that attend to images for guidance={self.guidance:g}, got another model; "
                "use model=scan with model.direction=t2i, or model=bfan"
            )

    def _check_mechanism(self) -> None:
        if MECHANISMS[self.mechanism].continuous:
            raise WrongValue(
                f"matching: expected a mechanism with discrete weights, got {self.mechanism!r}; "
                "use softmax, sparsemax, tvmax or another transform, or model=mdan"
            )
