"""Repetition in captions: in their words, and in where the model looks while it writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from foveate.checks import check_floating, check_mask, check_number, check_shape
from foveate.errors import DataError
from foveate.metrics.maps import support_area
from foveate.metrics.means import ExampleKey, MeanMetric
from foveate.ops.divergence import js_divergence

Words = Sequence[str]


def repetition_score(captions: Sequence[Words], references: Sequence[Sequence[Words]], n: int = 2) -> float:
    """REP: repetitions beyond those of the references, per 100 words of the references.

    σ = Σ_{s: c(s) ≥ 2} max(0, c(s) − r(s)) + 2 Σ_w max(0, c(w w) − r(w w)),   REP = 100 Σ σ / Σ |r|

    c(s) and r(s) are the counts of an n-gram s in the caption and in the reference; the first sum is over n-grams that
    occur at least twice in the caption, the second over words that follow themselves. The metric was defined for a
    single reference. Our extension to several: r(s) is the largest count in any of them and |r| the mean of their
    lengths; Martins et al. 2020 do not say how they treat them.

    Args:
        captions: the words of each caption.
        references: for each caption the words of one or more references.
        n: length of the n-grams.

    Returns:
        0 without repetitions; there is no upper bound.

    Reference: Malaviya et al. 2018, §4 (n = 2, λ₁ = 1, λ₂ = 2).

    >>> repetition_score(["a bowl of fruit and a bowl of fruit".split()], [["a bowl of fruit".split()]])
    75.0
    """
    check_number("repetition_score", "n", n, least=1, advice="published numbers use 2")
    total = words = 0.0
    for caption, own in zip(captions, references, strict=True):
        if not own:
            raise DataError("repetition_score: expected a reference for every caption, got none; remove the caption")
        spans, twins = _excess(caption, own, n, least=2), _excess(caption, own, 2, least=1)
        total += sum(spans.values()) + 2 * sum(more for (a, b), more in twins.items() if a == b)
        words += sum(map(len, own)) / len(own)
    return 100 * total / words if words else 0.0


def distinct_fraction(captions: Sequence[Words], n: int = 1) -> float:
    """Fraction of distinct n-grams among all n-grams of all captions: 1 if none occurs twice; 0 without any.

    Reference: Li et al. 2016 (distinct-n).

    >>> distinct_fraction([["a", "dog"], ["a", "cat"]])
    0.75
    """
    check_number("distinct_fraction", "n", n, least=1, advice="1 counts words")
    found = Counter(gram for caption in captions for gram in ngrams(caption, n))
    return len(found) / found.total() if found else 0.0


def ngrams(words: Words, n: int) -> Iterator[tuple[str, ...]]:
    """All runs of n successive words.

    >>> list(ngrams(["a", "red", "star"], 2))
    [('a', 'red'), ('red', 'star')]
    """
    return (tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def count_mentions(words: Words, objects: Sequence[Sequence[str]]) -> int:
    """Number of objects that a caption mentions by any of their names, in singular or plural.

    A name is one or several successive words; its plural ends in -s, in -es, or in -ies after -y. The objects of one
    category are passed once.

    Args:
        words: of the caption.
        objects: the names of each object.

    >>> count_mentions("two dogs near a fire hydrant".split(), [("dog", "puppy"), ("fire hydrant",), ("cat",)])
    2
    """
    longest = max((len(name.split()) for names in objects for name in names), default=0)
    phrases = {" ".join(gram) for n in range(1, longest + 1) for gram in ngrams(words, n)}
    return sum(any(_forms(name) & phrases for name in names) for names in objects)


def _forms(name: str) -> set[str]:
    """The singular of a name and its regular plurals."""
    return {name, f"{name}s", f"{name}es", f"{name[:-1]}ies" if name.endswith("y") else name}


def successive_divergence(maps: Tensor, mask: Tensor, base: float = 2.0) -> Tensor:
    """Mean Jensen-Shannon divergence between the attention maps of successive words, (B,).

    Args:
        maps: (B, T, H, W), one distribution per word.
        mask: (B, T), True where there is a word; padding at the end.
        base: of the logarithm; Martins et al. 2020 report 0.12, 0.29 and 0.34 without naming it.

    Returns:
        (B,); NaN for captions of fewer than two words.

    Reference: Martins et al. 2020, §4.

    >>> import torch
    >>> maps = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]]])
    >>> successive_divergence(maps, torch.ones(1, 3, dtype=torch.bool)).tolist()
    [0.5]
    """
    _check("successive_divergence", maps, mask)
    both = mask[:, 1:] & mask[:, :-1]
    # Masked before the sum, since the divergence of padding may be NaN; 0 / 0 marks captions without a pair of words.
    each = js_divergence(maps[:, 1:], maps[:, :-1], base=base)
    return each.where(both, 0).sum(1) / both.sum(1)


def zero_area(maps: Tensor, mask: Tensor) -> Tensor:
    """Mean fraction of the image that receives no attention at all, over the words of a caption, (B,).

    Arguments as in `successive_divergence`; NaN for captions without words, 0 for softmax and for Gaussians.

    >>> import torch
    >>> zero_area(torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [0.25]
    """
    _check("zero_area", maps, mask)
    return (1 - support_area(maps)).where(mask, 0).sum(1) / mask.sum(1)


@dataclass
class WordAttentionMetrics(MeanMetric):
    """The movement of a captioner's attention from word to word, over a split: "js between words" and "zero area".

    See `successive_divergence` and `zero_area`.

    >>> import torch
    >>> metrics = WordAttentionMetrics()
    >>> metrics.update(torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]]), torch.ones(1, 2, dtype=torch.bool))
    >>> metrics.compute()
    {'js between words': 1.0, 'zero area': 0.5}
    """

    base: float = 2.0

    def update(self, maps: Tensor, mask: Tensor, keys: Sequence[ExampleKey] | None = None) -> None:
        """Add the maps (B, T, H, W) of captions, with their keys; `mask` (B, T) is True where there is a word."""
        numbers = {"js between words": successive_divergence(maps, mask, self.base), "zero area": zero_area(maps, mask)}
        self.means.add(numbers, keys=keys)


def _excess(caption: Words, references: Sequence[Words], n: int, least: int) -> Counter[tuple[str, ...]]:
    """The n-grams that occur at least `least` times in the caption, with their counts beyond those of any reference."""
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= Counter(ngrams(reference, n))
    # Subtracting counters drops what is not positive, which is the max(0, ·) of the formula.
    return Counter({gram: c for gram, c in Counter(ngrams(caption, n)).items() if c >= least}) - allowed


def _check(where: str, maps: Tensor, mask: Tensor) -> None:
    """Raises TypeError or ShapeError unless maps are floating-point (B, T, H, W) and the mask boolean (B, T)."""
    check_floating(where, "maps", maps)
    check_shape(where, "maps", maps, (None, None, None, None), "(B, T, H, W)")
    check_mask(where, mask, maps.shape[:2])
    check_shape(where, "mask", mask, tuple(maps.shape[:2]), "(B, T)")
