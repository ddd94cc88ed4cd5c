"""The bidirectional focal attention network: both directions, with irrelevant fragments dropped altogether."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from foveate.models.matching import BUDGET, CrossLook, Fragments, Scorer
from foveate.models.matching_cross import Aggregate, CrossAttention, Focus, Mean, beside
from foveate.models.scan import by_locations, by_words, cross_look, pair_cosines
from foveate.registry import lookup

FocalType = Literal["equal", "prob"]


def focus_equal(weights: Tensor, keys: Tensor | None = None) -> Tensor:
    """Which keys to keep: those with more weight than the mean, `Σ_j (x_i − x_j) > 0`.

    Args:
        weights: (X, ..., K), at least zero.
        keys: (X, K) True where a key counts.

    Returns:
        (X, ..., K) True where a key is kept. Weights that equal the mean up to rounding are kept, so that equal ones
        all are and one at least is; where nothing has weight nothing is.

    Reference: Liu et al. 2019, eq. 6 with g = 1.

    >>> focus_equal(torch.tensor([[0.6, 0.3, 0.1]])).tolist(), focus_equal(torch.tensor([[0.5, 0.5]])).tolist()
    ([[True, False, False]], [[True, True]])
    """
    count = weights.shape[-1] if keys is None else beside(keys.sum(-1), weights)
    return _keep(weights, count, weights.sum(-1, keepdim=True))


def focus_prob(weights: Tensor, keys: Tensor | None = None) -> Tensor:
    """Which keys to keep: `Σ_j (x_i − x_j) √x_j > 0`, the heavier keys have more say.

    Args and returns as `focus_equal`; a key that does not count has no weight and so no say.

    Reference: Liu et al. 2019, eq. 6 with g(x) = √x.

    >>> focus_prob(torch.tensor([[0.5, 0.4, 0.1]])).tolist()
    [[True, True, False]]
    """
    say = weights.sqrt()
    return _keep(weights, say.sum(-1, keepdim=True), (weights * say).sum(-1, keepdim=True))


FOCUSES: Mapping[str, Focus] = MappingProxyType({"equal": focus_equal, "prob": focus_prob})


class BFAN(Scorer):
    """Scores of pictures with sentences by focal attention in both directions.

    S = mean_words r + mean_locations r, with r of `CrossAttention` and a focus on the relevant keys

    Args:
        attend: a discrete attention over the locations.
        attend_words: one over the words; words lie on no grid.
        focal: "prob" or "equal", see `focus_prob` and `focus_equal`.
        temperature: λ of the scores, inverse.
        aggregate: of each direction; the mean in the paper.
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
        """Scores (X, Y) of all with all, or (P, 1) of pairs; see `Scorer.score`."""
        both = pair_cosines(images, texts, paired=paired)
        words = self.aggregate(by_words(self.over_locations, both, images))
        mask = None if images.mask is None else images.mask[:, None]
        return words + self.aggregate(by_locations(self.over_words, both, images, texts, paired=paired), mask)

    def cross(self, images: Fragments, texts: Fragments) -> tuple[CrossLook, ...]:
        """Words at locations, then locations at words; see `Scorer.cross`."""
        return (
            cross_look(self.over_locations, images, texts, words=True),
            cross_look(self.over_words, images, texts, words=False),
        )


def _keep(weights: Tensor, say: Tensor | int, bar: Tensor) -> Tensor:
    """Weights above zero whose product with the say of all reaches the bar, up to rounding."""
    return (weights * say >= bar * (1 - 64 * torch.finfo(weights.dtype).eps)) & (weights > 0)
