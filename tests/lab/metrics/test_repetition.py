"""Repetition of words and of attention, against counts written out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from foveate.errors import DataError, ShapeError
from foveate.lab.metrics import (
    WordAttentionMetrics,
    count_mentions,
    distinct_fraction,
    repetition_score,
    successive_divergence,
    zero_area,
)


def slow_rep(captions: list[str], references: list[str], n: int) -> float:
    """Malaviya et al. for one reference: every n-gram of the caption looked up by hand."""
    score = words = 0
    for caption, reference in zip(captions, references, strict=True):
        c, r = caption.split(), reference.split()
        for length, weight, least in ((n, 1, 2), (2, 2, 1)):
            own = Counter(" ".join(c[i : i + length]) for i in range(len(c) - length + 1))
            people = Counter(" ".join(r[i : i + length]) for i in range(len(r) - length + 1))
            for gram, count in own.items():
                twin = len(set(gram.split())) == 1
                if count >= least and (weight == 1 or twin):
                    score += weight * max(0, count - people[gram])
        words += len(r)
    return 100 * score / words


CAPTIONS = ["a bowl of fruit and a bowl of fruit", "a dog dog runs", "the the the end", "a cat", ""]
REFERENCES = ["a bowl of fruit next to a bowl", "a dog dog runs runs", "the end of the road", "two cats sit", "rain"]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_rep_is_the_published_score_with_one_reference(n: int) -> None:
    found = repetition_score([c.split() for c in CAPTIONS], [[r.split()] for r in REFERENCES], n)
    assert found == pytest.approx(slow_rep(CAPTIONS, REFERENCES, n))
    assert found > 0


def test_rep_forgives_what_any_reference_has() -> None:
    caption = ["a", "star", "and", "a", "star"]
    first, second = ["a", "star"], ["a", "star", "on", "a", "star"]
    assert repetition_score([caption], [[first]]) == pytest.approx(100 * 1 / 2)
    assert repetition_score([caption], [[first, second]]) == 0
    # words are counted as the mean length of the references
    other = ["b", "star", "b", "star"]
    assert repetition_score([other], [[first, second]]) == pytest.approx(100 * 2 / 3.5)


def test_rep_of_nothing_and_without_references() -> None:
    assert repetition_score([], []) == 0
    with pytest.raises(DataError, match="repetition_score: expected a reference for every caption, got none"):
        repetition_score([["a"]], [[]])
    with pytest.raises(ValueError, match="repetition_score: expected n >= 1, got 0"):
        repetition_score([["a"]], [[["a"]]], n=0)


def test_distinct_shares() -> None:
    captions = [["a", "b", "a"], ["a", "b"], []]
    assert distinct_fraction(captions) == pytest.approx(2 / 5)
    assert distinct_fraction(captions, 2) == pytest.approx(2 / 3)
    assert distinct_fraction([[]], 2) == 0
    with pytest.raises(ValueError, match="distinct_fraction: expected n >= 1, got 0"):
        distinct_fraction(captions, 0)


@pytest.mark.parametrize(
    ("caption", "count"),
    [
        ("a dog and a puppy", 1),
        ("two dogs", 1),
        ("doggy", 0),
        ("three puppies", 1),
        ("a fire hydrant near boxes", 2),
        ("a fire near a hydrant", 0),
        ("", 0),
    ],
)
def test_things_mentioned(caption: str, count: int) -> None:
    assert count_mentions(caption.split(), [("dog", "puppy"), ("fire hydrant",), ("box",)]) == count


def slow_js(p: list[float], q: list[float], base: float) -> float:
    def kl(a: list[float], m: list[float]) -> float:
        return sum(x * math.log(x / y, base) for x, y in zip(a, m, strict=True) if x > 0)

    m = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    return (kl(p, m) + kl(q, m)) / 2


def some_maps() -> tuple[torch.Tensor, torch.Tensor]:
    maps = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).relu()
    maps[..., 0] += 0.1
    maps = (maps / maps.sum(-1, keepdim=True)).reshape(3, 4, 2, 3)
    return maps, torch.arange(4)[None] < torch.tensor([4, 2, 1])[:, None]


@pytest.mark.parametrize("base", [2.0, math.e])
def test_divergence_between_successive_words(base: float) -> None:
    maps, mask = some_maps()
    found = successive_divergence(maps, mask, base)
    rows = maps.flatten(-2).tolist()
    assert found[0].item() == pytest.approx(sum(slow_js(rows[0][t], rows[0][t + 1], base) for t in range(3)) / 3)
    assert found[1].item() == pytest.approx(slow_js(rows[1][0], rows[1][1], base))
    assert found[2].isnan()


def test_area_without_attention() -> None:
    maps, mask = some_maps()
    found = zero_area(maps, mask)
    for b, T in enumerate((4, 2, 1)):
        zeros = sum(value == 0 for t in range(T) for value in maps[b, t].flatten().tolist())
        assert found[b].item() == pytest.approx(zeros / (6 * T))
    assert zero_area(maps, torch.zeros_like(mask)).isnan().all()


def test_word_looks_leave_out_what_is_not_known() -> None:
    maps, mask = some_maps()
    metrics, nats = WordAttentionMetrics(), WordAttentionMetrics(base=math.e)
    metrics.update(maps, mask)
    nats.update(maps, mask)
    expected = successive_divergence(maps, mask)[:2].mean().item()
    assert metrics.compute()["js between words"] == pytest.approx(expected)
    assert nats.compute()["js between words"] == pytest.approx(expected * math.log(2))
    assert metrics.compute()["zero area"] == pytest.approx(zero_area(maps, mask).mean().item())


@pytest.mark.parametrize("measure", [successive_divergence, zero_area])
def test_maps_and_masks_that_do_not_fit_raise_an_error(measure) -> None:
    with pytest.raises(ShapeError, match=rf"{measure.__name__}: expected maps \(B, T, H, W\)"):
        measure(torch.zeros(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ShapeError, match=rf"{measure.__name__}: expected mask \(B, T\)"):
        measure(torch.zeros(2, 3, 4, 4), torch.ones(3, dtype=torch.bool))
    with pytest.raises(TypeError, match=f"{measure.__name__}: expected floating-point maps"):
        measure(torch.zeros(2, 3, 4, 4, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool))
