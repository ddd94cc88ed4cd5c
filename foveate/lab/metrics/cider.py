"""CIDEr-D of single captions with fixed idf, fast enough to be the reward of a training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Words = Sequence[str]
Ngram = tuple[str, ...]
LONGEST, SIGMA = 4, 6.0


@dataclass(frozen=True)
class CiderD:
    """CIDEr-D with the idf of a set of references, usually those of the training images.

    10 / 4 Σ_n mean_r [Σ_g min(h_g, r_g) r_g / (‖h‖ ‖r‖)] exp(−(|h| − |r|)² / 2σ²)

    where h and r are the tf-idf vectors of the n-grams of a caption and a reference, σ = 6 and |·| is the length.

    Attributes:
        images: number of images.
        counts: in how many of them each n-gram occurs.

    Reference: Vedantam et al. 2015, §5; the numbers are those of `pycocoevalcap`.

    >>> references = [[["a", "red", "star"]], [["a", "blue", "disc"]]]
    >>> rate = CiderD.from_references(references)
    >>> rate(["a", "red", "star"], references[0]) > rate(["a", "blue", "star"], references[0])
    True
    """

    images: int
    counts: Counter[Ngram]

    @classmethod
    def from_references(cls, references: Iterable[Sequence[Words]]) -> CiderD:
        """The idf of the references of many images."""
        counts: Counter[Ngram] = Counter()
        images = 0
        for own in references:
            counts.update({gram for words in own for grams in _ngrams(words) for gram in grams})
            images += 1
        return cls(images, counts)

    def __call__(self, caption: Words, references: Sequence[Words]) -> float:
        """CIDEr-D of one caption against the references of its image."""
        hypothesis = self._vectors(caption)
        total = 0.0
        for reference in references:
            others = self._vectors(reference)
            penalty = math.exp(-((len(caption) - len(reference)) ** 2) / (2 * SIGMA**2))
            total += penalty * sum(map(_similarity, hypothesis, others))
        return 10 * total / (LONGEST * max(1, len(references)))

    def _vectors(self, words: Words) -> list[dict[Ngram, float]]:
        """The tf-idf of the n-grams of each length."""
        log_images = math.log(max(1, self.images))
        return [
            {gram: count * (log_images - math.log(max(1, self.counts[gram]))) for gram, count in grams.items()}
            for grams in _ngrams(words)
        ]


def _similarity(hypothesis: dict[Ngram, float], reference: dict[Ngram, float]) -> float:
    """Cosine with every entry of the hypothesis clipped to the reference; zero if one of them is."""
    lengths = math.sqrt(sum(x * x for x in hypothesis.values()) * sum(x * x for x in reference.values()))
    if not lengths:
        return 0.0
    return sum(min(x, reference[g]) * reference[g] for g, x in hypothesis.items() if g in reference) / lengths


def _ngrams(words: Words) -> list[Counter[Ngram]]:
    """The n-grams of 1 to 4 words with their counts."""
    return [Counter(zip(*(words[start:] for start in range(n)), strict=False)) for n in range(1, LONGEST + 1)]
