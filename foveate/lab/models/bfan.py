"""BFAN, the bidirectional focal attention network: attention in both directions, without irrelevant fragments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from foveate.attention import MECHANISMS
from foveate.lab.models.cross_attention import Aggregate, CrossAttention, Focus, Mean, expand_count
from foveate.lab.models.fragments import BUDGET, CrossAttended, Fragments, Scorer
from foveate.lab.models.scan import (
    FragmentMatcherSettings,
    attend_pairs,
    location_relevance,
    pair_cosines,
    word_relevance,
)
from foveate.registry import lookup

FocalType = Literal["equal", "prob"]


def focus_equal(weights: Tensor, keys: Tensor | None = None) -> Tensor:
    """Keep the keys with more weight than the mean: `Σ_j (x_i − x_j) > 0`.

    Args:
        weights: (X, ..., K) non-negative weights.
        keys: (X, K) True where a key counts.

    Returns:
        (X, ..., K) True where a key is kept. Weights that equal the mean up to rounding are kept, so that equal weights
        are all kept and at least one key is; rows without any weight keep nothing.

    Reference: Liu et al. 2019, eq. 6 with g = 1.

    >>> focus_equal(torch.tensor([[0.6, 0.3, 0.1]])).tolist(), focus_equal(torch.tensor([[0.5, 0.5]])).tolist()
    ([[True, False, False]], [[True, True]])
    """
    count = weights.shape[-1] if keys is None else expand_count(keys.sum(-1), weights)
    return _keep(weights, count, weights.sum(-1, keepdim=True))


def focus_prob(weights: Tensor, keys: Tensor | None = None) -> Tensor:
    """Keep the keys with `Σ_j (x_i − x_j) √x_j > 0`, a mean in which heavier keys count more.

    Arguments and result as in `focus_equal`; a masked key has no weight and does not contribute.

    Reference: Liu et al. 2019, eq. 6 with g(x) = √x.

    >>> focus_prob(torch.tensor([[0.5, 0.4, 0.1]])).tolist()
    [[True, True, False]]
    """
    # Σ_j (x_i − x_j) √x_j > 0  ⇔  x_i Σ_j √x_j > Σ_j x_j √x_j: no pairwise differences are needed.
    importance = weights.sqrt()
    return _keep(weights, importance.sum(-1, keepdim=True), (weights * importance).sum(-1, keepdim=True))


FOCUSES: Mapping[str, Focus] = MappingProxyType({"equal": focus_equal, "prob": focus_prob})


@dataclass(frozen=True)
class BFANSettings(FragmentMatcherSettings):
    """BFAN: words attend to locations and locations to words, without irrelevant fragments.

    Attributes:
        focal, temperature: as in `BFAN`.
        word_mechanism: attention of locations over the words, a row of `MECHANISMS` that needs no grid.
    """

    attended_rule: ClassVar[Literal["above-uniform", "above-zero"] | None] = "above-zero"

    focal: FocalType = "prob"
    temperature: float = 20.0
    word_mechanism: str = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        lookup("mechanism", self.word_mechanism, MECHANISMS)

    def scorer(self, attend: nn.Module) -> BFAN:
        return BFAN(attend, MECHANISMS[self.word_mechanism].build(), focal=self.focal, temperature=self.temperature)


class BFAN(Scorer):
    """Scores of images with sentences by focal attention in both directions.

    S = mean_words r + mean_locations r, with r of `CrossAttention` and a focus on the relevant keys

    Args:
        attend: a discrete attention over the locations.
        attend_words: a discrete attention over the words that needs no grid.
        focal: "prob" or "equal", see `focus_prob` and `focus_equal`.
        temperature: λ, the inverse temperature of the scores.
        aggregate: reduces the relevance of all queries to one number; the mean in the paper.
        budget: bytes, see `Scorer`.

    Reference: Liu et al. 2019, §3.2-3.3.

    >>> from foveate.attention import mechanism
    >>> bfan = BFAN(mechanism("softmax"), mechanism("softmax"))
    >>> bfan(Fragments(torch.eye(3)[None]), Fragments(torch.eye(3)[None])).tolist()
    [[2.0]]
    """

    def __init__(
        self,
        attend: nn.Module,
        attend_words: nn.Module,
        *,
        focal: FocalType = "prob",
        temperature: float = 20.0,
        aggregate: Aggregate | None = None,
        budget: int = BUDGET,
    ) -> None:
        super().__init__(budget)
        focus = lookup("focal", focal, FOCUSES)
        self.over_locations = CrossAttention(attend, temperature=temperature, focus=focus)
        self.over_words = CrossAttention(attend_words, temperature=temperature, focus=focus)
        self.aggregate = Mean() if aggregate is None else aggregate

    def score(self, images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
        """Scores (X, Y) of all pairs, or (P, 1) if `paired`; see `Scorer.score`."""
        cosines = pair_cosines(images, texts, paired=paired)
        words = self.aggregate(word_relevance(self.over_locations, cosines, images))
        mask = None if images.mask is None else images.mask[:, None]
        locations = location_relevance(self.over_words, cosines, images, texts, paired=paired)
        return words + self.aggregate(locations, mask)

    def cross_attend(self, images: Fragments, texts: Fragments) -> tuple[CrossAttended, ...]:
        """Words over locations, then locations over words; see `Scorer.cross_attend`."""
        return (
            attend_pairs(self.over_locations, images, texts, from_words=True),
            attend_pairs(self.over_words, images, texts, from_words=False),
        )


def _keep(weights: Tensor, total: Tensor | int, threshold: Tensor) -> Tensor:
    """Positive weights with `weight · total >= threshold`, up to rounding."""
    # Rounding must not drop weights that equal the mean: a row of equal weights would lose all of them.
    return (weights * total >= threshold * (1 - 64 * torch.finfo(weights.dtype).eps)) & (weights > 0)
