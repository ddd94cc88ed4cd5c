from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.errors import ShapeError, UnknownName
from foveate.lab.data.samples import Phrase
from foveate.metrics import (
    GroundingMetrics,
    attended_locations,
    attention_scores,
    relevant_cells,
    relevant_locations,
    relevant_regions,
)
from foveate.ops.boxes import Box

FINE = 240  # pixels per side of an image: boxes and cells below end on its pixels


def pixels(box: tuple[float, ...]) -> torch.Tensor:
    """The box painted on a fine image."""
    x0, y0, x1, y1 = (round(FINE * x) for x in box)
    painted = torch.zeros(FINE, FINE, dtype=torch.bool)
    painted[y0:y1, x0:x1] = True
    return painted


def some_boxes(count: int, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    ends = torch.stack([torch.randperm(FINE, generator=g)[:2].sort().values for _ in range(2 * count)])
    return ends.reshape(count, 2, 2).transpose(1, 2).reshape(count, 4).double() / FINE


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 3), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_cells_against_counted_pixels(H: int, W: int, count: int, seed: int) -> None:
    H, W = (min((d for d in range(1, 9) if FINE % d == 0), key=lambda d: abs(d - n)) for n in (H, W))
    boxes = some_boxes(count, seed)
    shares = []
    for box in boxes.tolist():
        cells = pixels(tuple(box)).reshape(H, FINE // H, W, FINE // W).float().mean((1, 3)).flatten()
        shares.append(cells)
    share = torch.stack(shares).amax(0)
    found = relevant_cells(H, W, boxes)
    if (share >= 0.5).any():
        assert torch.equal(found, share >= 0.5)
    else:
        assert found.sum() == 1
        assert share[found] == share.max()


@given(st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_regions_against_counted_pixels(seed: int) -> None:
    regions, boxes = some_boxes(6, seed), some_boxes(2, seed + 100)
    regions[0] = boxes[1]
    expected = []
    for region in regions.tolist():
        mine, best = pixels(tuple(region)), 0.0
        for box in boxes.tolist():
            other = pixels(tuple(box))
            best = max(best, ((mine & other).sum() / (mine | other).sum()).item())
        expected.append(best > 0.5)
    assert relevant_regions(regions, boxes).tolist() == expected
    assert torch.equal(relevant_locations(regions, boxes), relevant_regions(regions, boxes))


def test_half_a_cell_counts_and_less_does_not() -> None:
    grid, third = (1, 3), 1 / 3
    assert relevant_cells(*grid, torch.tensor([[0.0, 0.0, 1.5 * third, 1.0]])).tolist() == [True, True, False]
    assert relevant_cells(*grid, torch.tensor([[0.0, 0.0, 1.4 * third, 1.0]])).tolist() == [True, False, False]
    # two boxes do not add up: each alone covers less than half of the cell
    pair = torch.tensor([[0.0, 0.0, third, 0.4], [0.0, 0.6, third, 1.0], [0.4, 0.0, 0.6, 1.0]])
    assert relevant_cells(*grid, pair).tolist() == [False, True, False]
    assert relevant_cells(*grid, torch.zeros(0, 4)).tolist() == [False] * 3


def test_iou_of_a_half_is_not_enough() -> None:
    regions = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    assert relevant_regions(regions, torch.tensor([[0.0, 0.0, 0.5, 1.0]])).tolist() == [False, False]
    assert relevant_regions(regions, torch.tensor([[0.0, 0.0, 0.5, 1.0]]), above=0.4).tolist() == [True, False]


def test_what_is_attended() -> None:
    weights = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.5, 0.3, 0.2, 0.0]])
    assert attended_locations(weights).int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0]]
    assert attended_locations(weights, "above-zero").int().tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    assert attended_locations(weights > 0.2).int().tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]


def slow(attends: list[list[bool]], phrases: list[Phrase], relevant: list[list[bool]]) -> list[float]:
    """The metric with sets and loops: mean over phrases of the maximum over words of P, R, F1."""
    rows = []
    for phrase, mine in zip(phrases, relevant, strict=True):
        R = {n for n, there in enumerate(mine) if there}
        if not R:
            continue
        best = [0.0, 0.0, 0.0]
        for word in attends[phrase.start : phrase.stop]:
            A = {n for n, there in enumerate(word) if there}
            P, Q = (len(A & R) / len(A) if A else 0.0), len(A & R) / len(R)
            F = 2 * P * Q / (P + Q) if P + Q else 0.0
            best = [max(pair) for pair in zip(best, (P, Q, F), strict=True)]
        rows.append(best)
    return [sum(column) / len(rows) for column in zip(*rows, strict=True)]


def some_phrases(seed: int, words: int = 9) -> list[Phrase]:
    boxes = some_boxes(4, seed).tolist()
    spans = [(0, 2), (2, 5), (5, 6), (7, 7 + words)]  # the last reaches beyond the words
    return [Phrase(*span, i, ("people",), (Box(*boxes[i]),)) for i, span in enumerate(spans)]


@pytest.mark.parametrize("attended", ["above-uniform", "above-zero"])
@pytest.mark.parametrize("seed", range(5))
def test_the_whole_against_sets(attended: str, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    weights = torch.randn(9, 12, generator=g).softmax(-1)
    weights = torch.where(weights > 0.05, weights, 0.0)
    phrases, regions = some_phrases(seed), torch.cat([some_boxes(10, seed + 50), some_boxes(4, seed)[:2]])
    for locations in ((3, 4), regions):
        metrics = GroundingMetrics(attended)  # type: ignore[arg-type]
        metrics.update(weights, phrases, locations)
        attends = (weights > (1 / 12 if attended == "above-uniform" else 0)).tolist()
        relevant = [relevant_locations(locations, phrase.boxes).tolist() for phrase in phrases]
        result = metrics.compute()
        names = ("attention_precision", "attention_recall", "attention_f1")
        assert [result[name] for name in names] == pytest.approx(slow(attends, phrases, relevant))
        known = sum(any(row) for row in relevant)
        assert (result["phrases"], result["phrases_skipped"]) == (known, len(phrases) - known)
        assert result["best_f1"] == pytest.approx(known / len(phrases))
        rule = "cells" if isinstance(locations, tuple) else "regions"
        assert result[f"attention_f1/{rule}"] == result["attention_f1"] == result["attention_f1/people"]


def test_each_of_the_three_has_its_own_best_word() -> None:
    attends = torch.tensor([[True, False, False, False], [True, True, True, True]])
    phrase = Phrase(0, 2, 1, (), (Box(0.0, 0.0, 0.75, 1.0),))
    metrics = GroundingMetrics()
    metrics.update(attends, [phrase], (1, 4))
    result = metrics.compute()
    assert (result["attention_precision"], result["attention_recall"]) == (1, 1)
    assert result["attention_f1"] == pytest.approx(2 * 0.75 / 1.75)


def test_phrases_that_cannot_be_judged_are_counted() -> None:
    small, unlinked = Phrase(0, 1, 1, (), (Box(0.0, 0.0, 0.01, 0.01),)), Phrase(0, 1, 2, (), (), "scene")
    metrics = GroundingMetrics()
    metrics.update(torch.ones(1, 1), [small, unlinked, unlinked], torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
    result = metrics.compute()
    assert (result["phrases"], result["phrases_skipped"], result["phrases_unlinked"]) == (0, 1, 2)
    assert "attention_f1" not in result
    assert result["best_f1"] == 0


def test_words_that_were_not_read_attend_to_nothing() -> None:
    phrase = Phrase(3, 5, 1, (), (Box(0.0, 0.0, 0.5, 1.0),))
    for read in (0, 3):
        metrics = GroundingMetrics()
        metrics.update(torch.full((read, 2), 0.5), [phrase], (1, 2))
        assert metrics.compute()["attention_recall"] == 0
        assert metrics.compute()["phrases"] == 1


def test_best_where_everything_is_relevant() -> None:
    phrase = Phrase(0, 1, 1, (), (Box(0.0, 0.0, 1.0, 1.0),))
    for attended, recall in (("above-uniform", 0.75), ("above-zero", 1.0)):
        metrics = GroundingMetrics(attended)  # type: ignore[arg-type]
        metrics.update(torch.full((1, 4), 0.25), [phrase], (2, 2))
        result = metrics.compute()
        assert (result["best_precision"], result["best_recall"]) == (1, recall)
        assert result["attention_recall"] <= result["best_recall"]


def test_the_rule_is_told() -> None:
    phrase = Phrase(0, 1, 1, (), (Box(0.0, 0.0, 1.0, 1.0),))
    metrics = GroundingMetrics("above-zero")
    assert metrics.rule == "a location is attended to when its weight is above 0"
    metrics.update(torch.ones(1, 1), [phrase], (1, 1))
    assert "its weight is above 0; relevant when at least half of it lies inside a box" in metrics.rule
    assert "IoU" not in metrics.rule
    metrics.update(torch.ones(1, 1), [phrase], torch.tensor([[0.0, 0.0, 1.0, 1.0]]))
    assert "its IoU with a box of the entity is above 0.5" in metrics.rule
    assert "above 1/n" in GroundingMetrics().rule


def test_errors() -> None:
    phrase = Phrase(0, 1, 1, (), (Box(0.0, 0.0, 1.0, 1.0),))
    with pytest.raises(
        UnknownName,
        match="GroundingMetrics attended: expected a known name, got 'above-zer'; did you mean 'above-zero'",
    ):
        GroundingMetrics("above-zer")  # type: ignore[arg-type]
    with pytest.raises(
        ShapeError, match=r"GroundingMetrics: expected weights \(T, N\) of sizes \(any, 4\), got \(1, 3"
    ):
        GroundingMetrics().update(torch.ones(1, 3), [phrase], (2, 2))
    with pytest.raises(TypeError, match="attended_locations: expected floating-point weights, got"):
        attended_locations(torch.ones(3, dtype=torch.long))
    with pytest.raises(
        ShapeError, match=r"relevant_regions: expected boxes \(N, 4\) of sizes \(any, 4\), got \(2, 3\)"
    ):
        relevant_regions(torch.zeros(2, 3), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="relevant_regions: expected above >= 0, got -1"):
        relevant_regions(torch.zeros(2, 4), torch.zeros(1, 4), above=-1)
    with pytest.raises(ShapeError, match=r"expected attended and relevant over the same locations, got \(1, 3\) and"):
        attention_scores(torch.ones(1, 3).bool(), torch.ones(4).bool())
