"""The stacked cross attention network: words look at locations, or locations at words."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from foveate.models.matching import BUDGET, CrossLook, Fragments, Scorer, check_fragments
from foveate.models.matching_cross import Aggregate, CrossAttention, LogSumExp

Direction = Literal["t2i", "i2t"]


class SCAN(Scorer):
    """Scores of pictures with sentences by stacked cross attention.

    S = AGG_q r_q with r of `CrossAttention`; the queries are words ("t2i") or locations ("i2t").

    Args:
        attend: a discrete attention over the keys; one that needs a grid reads pictures only.
        direction: "t2i", words look at locations; "i2t", locations look at words.
        temperature: λ of the scores, inverse: 9 for t2i and 4 for i2t in the paper.
        aggregate: `LogSumExp(6)` for t2i and `LogSumExp(5)` for i2t on Flickr30K in the paper, or `Mean()`.
        budget: bytes, see `Scorer`.

    Reference: Lee et al. 2018, §3.1 (their λ₁ is `temperature`, λ₂ the factor of `LogSumExp`).

    >>> import torch
    >>> from foveate.attention import mechanism
    >>> from foveate.models.matching_cross import Mean
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
            raise ValueError(f"SCAN: expected direction 't2i' or 'i2t', got {direction!r}; correct the name")
        self.direction: Direction = direction
        self.attention = CrossAttention(attend, temperature=temperature)
        self.aggregate = LogSumExp(6.0) if aggregate is None else aggregate

    def score(self, images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
        """Scores (X, Y) of all with all, or (P, 1) of pairs; see `Scorer.score`."""
        both = pair_cosines(images, texts, paired=paired)
        if self.direction == "t2i":
            return self.aggregate(by_words(self.attention, both, images))
        mask = None if images.mask is None else images.mask[:, None]
        return self.aggregate(by_locations(self.attention, both, images, texts, paired=paired), mask)

    def cross(self, images: Fragments, texts: Fragments) -> tuple[CrossLook, ...]:
        """The one direction there is; see `Scorer.cross`."""
        return (cross_look(self.attention, images, texts, words=self.direction == "t2i"),)


def pair_cosines(images: Fragments, texts: Fragments, *, paired: bool) -> Tensor:
    """Inner products (X, Y, T, N) of all words with all locations; paired (P, 1, T, N), each with its own."""
    if paired:
        return (texts.values @ images.values.mT)[:, None]
    Y, T, D = texts.values.shape
    return (texts.values.reshape(Y * T, D) @ images.values.mT).view(len(images), Y, T, -1)


def by_words(attention: CrossAttention, cosines: Tensor, images: Fragments) -> Tensor:
    """(X, Y, T) relevance of what each word reads in the picture."""
    return attention.relevance(cosines, images.gram[:, None], images.grid, images.mask, None)


def by_locations(
    attention: CrossAttention, cosines: Tensor, images: Fragments, texts: Fragments, *, paired: bool
) -> Tensor:
    """(X, Y, N) relevance of what each location reads in the sentence."""
    gram = texts.gram[:, None] if paired else texts.gram[None]
    return attention.relevance(cosines.mT, gram, None, None, images.mask)


def cross_look(attention: CrossAttention, images: Fragments, texts: Fragments, *, words: bool) -> CrossLook:
    """How the words of P sentences look at their P pictures, or the locations at the words; at least in float32."""
    check_fragments("cross_look", images, texts, paired=True)
    seen, read = images.at_least_float32(), texts.at_least_float32()
    queries, keys = (read, seen) if words else (seen, read)
    with torch.autocast(seen.values.device.type, enabled=False):
        cosines = (queries.values @ keys.values.mT)[:, None]
        scores = attention.scores(cosines, queries.mask)
        weights = attention.weigh(scores, keys.grid, keys.mask)
        attended = attention.attended(weights, keys.mask)
    return CrossLook(queries, keys, scores[:, 0], weights[:, 0], attended[:, 0], by_words=words)
