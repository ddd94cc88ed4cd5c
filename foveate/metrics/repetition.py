"""How much captions repeat themselves, in words and in where the model looks while it writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from foveate.checks import check_floating, check_mask, check_number, check_shape
from foveate.errors import DataError
from foveate.metrics.maps import support_area
from foveate.metrics.means import Averaged
from foveate.ops.divergence import js_divergence

Words = Sequence[str]


def repetition_score(captions: Sequence[Words], references: Sequence[Sequence[Words]], n: int = 2) -> float:
    """REP: repetitions that people do not make, in hundredths of the words that people use.

    σ = Σ_{s: c(s) ≥ 2} max(0, c(s) − r(s)) + 2 Σ_w max(0, c(w w) − r(w w)),   REP = 100 Σ σ / Σ |r|

    c(s) is how often an n-gram s is in the caption and r(s) how often it is in the reference; the first sum is over
    n-grams that the caption has at least twice, the second over words that follow themselves. The metric was made for
    one reference. With several, ours: r(s) is the most that any of them has, |r| the mean of their lengths; 003 does
    not say what it does.

    Args:
        captions: the words of each caption.
        references: for each caption one or several references, the words of each.
        n: length of the n-grams.

    Returns:
        0 without repetitions; there is no upper bound.

    Reference: Malaviya et al. 2018, §4 (n = 2, λ₁ = 1, λ₂ = 2).

    >>> repetition_score(["a bowl of fruit and a bowl of fruit".split()], [["a bowl of fruit".split()]])
    75.0
    """
    check_number("repetition_score", "n", n, least=1, advice="2 is the one that is reported")
    total = words = 0.0
    for caption, own in zip(captions, references, strict=True):
        if not own:
            raise DataError("repetition_score: expected a reference for every caption, got none; leave the caption out")
        spans, twins = _excess(caption, own, n, least=2), _excess(caption, own, 2, least=1)
        total += sum(spans.values()) + 2 * sum(more for (a, b), more in twins.items() if a == b)
        words += sum(map(len, own)) / len(own)
    return 100 * total / words if words else 0.0


def distinct_share(captions: Sequence[Words], n: int = 1) -> float:
    """Different n-grams of all captions together as a share of their n-grams: 1 when none comes twice; 0 without any.

    Reference: Li et al. 2016 (distinct-n).

    >>> distinct_share([["a", "dog"], ["a", "cat"]])
    0.75
    """
    check_number("distinct_share", "n", n, least=1, advice="1 counts words")
    found = Counter(gram for caption in captions for gram in ngrams(caption, n))
    return len(found) / found.total() if found else 0.0


def ngrams(words: Words, n: int) -> Iterator[tuple[str, ...]]:
    """Every n words in a row.

    >>> list(ngrams(["a", "red", "star"], 2))
    [('a', 'red'), ('red', 'star')]
    """
    return (tuple(words[start : start + n]) for start in range(len(words) - n + 1))


def mentioned(words: Words, things: Sequence[Sequence[str]]) -> int:
    """How many of the things a caption mentions, by any of their names, in singular or plural.

    A name is one or several words in a row; its plural ends in -s or -es.

    Args:
        words: of the caption.
        things: the names of each.

    >>> mentioned("two dogs near a fire hydrant".split(), [("dog", "puppy"), ("fire hydrant",), ("cat",)])
    2
    """
    longest = max((len(name.split()) for names in things for name in names), default=0)
    said = {" ".join(gram) for n in range(1, longest + 1) for gram in ngrams(words, n)}
    return sum(any({name, f"{name}s", f"{name}es"} & said for name in names) for names in things)


def successive_divergence(maps: Tensor, mask: Tensor, base: float = 2.0) -> Tensor:
    """Mean Jensen-Shannon divergence between the attention of a word and of the word before it, (B,).

    Args:
        maps: (B, T, H, W) one distribution a word.
        mask: (B, T) True where there is a word, padding at the end.
        base: of the logarithm; 003 reports 0.12, 0.29 and 0.34 without one.

    Returns:
        NaN for captions of fewer than two words.

    Reference: Martins et al. 2020 (003), §4.

    >>> import torch
    >>> maps = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]]])
    >>> successive_divergence(maps, torch.ones(1, 3, dtype=torch.bool)).tolist()
    [0.5]
    """
    _check("successive_divergence", maps, mask)
    both = mask[:, 1:] & mask[:, :-1]
    each = js_divergence(maps[:, 1:], maps[:, :-1], base=base)
    return each.where(both, 0).sum(1) / both.sum(1)


def zero_area(maps: Tensor, mask: Tensor) -> Tensor:
    """Mean share of the picture that gets no attention at all, over the words of a caption, (B,).

    Args and returns as `successive_divergence`; NaN for captions without words. Softmax and Gaussians: 0.

    >>> import torch
    >>> zero_area(torch.tensor([[[[1.0, 0.0]], [[0.5, 0.5]]]]), torch.ones(1, 2, dtype=torch.bool)).tolist()
    [0.25]
    """
    _check("zero_area", maps, mask)
    return (1 - support_area(maps)).where(mask, 0).sum(1) / mask.sum(1)


@dataclass
class WordLooks(Averaged):
    """Where a captioner looks from word to word, over a split: the means "js between words" and "zero area".

    >>> import torch
    >>> looks = WordLooks()
    >>> looks.update(torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]]), torch.ones(1, 2, dtype=torch.bool))
    >>> looks.compute()
    {'js between words': 1.0, 'zero area': 0.5}
    """

    base: float = 2.0

    def update(self, maps: Tensor, mask: Tensor) -> None:
        """Add the maps (B, T, H, W) of captions whose words are where mask (B, T) is True."""
        self.means.add(
            {"js between words": successive_divergence(maps, mask, self.base), "zero area": zero_area(maps, mask)}
        )


def _excess(caption: Words, references: Sequence[Words], n: int, least: int) -> Counter[tuple[str, ...]]:
    """The n-grams that the caption has `least` times or more, with how often it has them beyond any reference."""
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= Counter(ngrams(reference, n))
    return Counter({gram: c for gram, c in Counter(ngrams(caption, n)).items() if c >= least}) - allowed


def _check(where: str, maps: Tensor, mask: Tensor) -> None:
    check_floating(where, "maps", maps)
    check_shape(where, "maps", maps, (None, None, None, None), "(B, T, H, W)")
    check_mask(where, mask, maps.shape[:2])
    check_shape(where, "mask", mask, tuple(maps.shape[:2]), "(B, T)")
