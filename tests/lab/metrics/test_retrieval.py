from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foveate.errors import ShapeError
from foveate.lab.metrics import RetrievalMetrics, rank_matrix, retrieval_metrics

Matrix = list[list[float]]


def slow_ranks(scores: Matrix, owner: list[int]) -> tuple[list[int], list[int]]:
    """Sort every list of candidates, the wrong ones first among equals, and look for the first right one."""
    i2t, t2i = [], []
    for i, row in enumerate(scores):
        order = sorted(range(len(owner)), key=lambda c: (-row[c], owner[c] == i))
        places = [place for place, c in enumerate(order, 1) if owner[c] == i]
        i2t += places[:1]
    for c, own in enumerate(owner):
        order = sorted(range(len(scores)), key=lambda i: (-scores[i][c], i == own))
        t2i.append(1 + order.index(own))
    return i2t, t2i


def slow_numbers(i2t: list[int], t2i: list[int]) -> dict[str, float]:
    result = {}
    for way, ranks in (("i2t", sorted(i2t)), ("t2i", sorted(t2i))):
        result |= {f"{way}_r{k}": 100 * sum(rank <= k for rank in ranks) / len(ranks) for k in (1, 5, 10)}
        middle = len(ranks) // 2
        result[f"{way}_median"] = ranks[middle] if len(ranks) % 2 else (ranks[middle - 1] + ranks[middle]) / 2
        result[f"{way}_mean"] = sum(ranks) / len(ranks)
    result["rsum"] = sum(value for name, value in result.items() if "_r" in name)
    return result


def some_scores(images: int, captions: int, levels: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Scores, with many ties when there are few levels, and owners in no order."""
    g = torch.Generator().manual_seed(seed)
    scores = torch.randn(images, captions, generator=g)
    if levels is not None:
        scores = torch.randint(levels, (images, captions), generator=g).float()
    return scores, torch.randint(images, (captions,), generator=g)


@given(st.integers(1, 7), st.integers(1, 12), st.sampled_from([None, 1, 2, 4]), st.integers(1, 8), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_ranks_against_sorting(images: int, captions: int, levels: int | None, rows: int, seed: int) -> None:
    scores, owner = some_scores(images, captions, levels, seed)
    i2t, t2i = rank_matrix(scores, owner)
    expected = slow_ranks(scores.tolist(), owner.tolist())
    assert (i2t.rank.tolist(), t2i.rank.tolist()) == expected
    result = retrieval_metrics(scores.__getitem__, owner, images, rows=rows, keep=40)
    numbers = slow_numbers(*expected)
    assert {name: result[name] for name in numbers} == pytest.approx(numbers)
    assert set(result) - set(numbers) == {"i2t_ties", "t2i_ties"}


def test_ties_count_against_the_model_and_are_told() -> None:
    owner = torch.arange(20) // 5
    result = retrieval_metrics(torch.zeros(4, 20).__getitem__, owner, 4)
    assert result["i2t_median"] == 16  # fifteen captions of others, then its own
    assert result["t2i_median"] == 4
    assert result["i2t_r10"] == result["t2i_r1"] == 0
    assert result["i2t_ties"] == result["t2i_ties"] == 100
    scores = torch.eye(4)[:, owner]
    scores[1, 0] = 1  # one wrong pair as good as the right one
    result = retrieval_metrics(scores.__getitem__, owner, 4)
    assert (result["i2t_ties"], result["t2i_ties"]) == (25, 5)
    assert (result["i2t_r1"], result["t2i_r1"]) == (75, 95)


def test_captions_of_the_same_image_do_not_compete() -> None:
    scores = torch.tensor([[0.9, 0.9, 0.5], [0.0, 0.0, 1.0]])
    i2t, t2i = rank_matrix(scores, torch.tensor([0, 0, 1]))
    assert i2t.rank.tolist() == [1, 1]
    assert not i2t.tied.any()
    assert t2i.rank.tolist() == [1, 1, 1]


@pytest.mark.parametrize("change", [lambda x: x - 1000, lambda x: x + 1000, lambda x: x.mul(3), torch.exp])
def test_only_the_order_counts(change) -> None:
    scores, owner = some_scores(30, 150)
    scores = scores.mul(64).round().double() / 64
    expected = retrieval_metrics(scores.__getitem__, owner, 30)
    assert retrieval_metrics(change(scores).__getitem__, owner, 30) == expected


@pytest.mark.parametrize("rows", [1, 7, 40, 99])
@pytest.mark.parametrize("keep", [0, 3000, 1 << 20])
def test_blocks_do_not_matter(rows: int, keep: int) -> None:
    scores, owner = some_scores(40, 90, levels=30)
    expected = retrieval_metrics(scores.__getitem__, owner, 40, folds=4)
    assert retrieval_metrics(scores.__getitem__, owner, 40, rows=rows, keep=keep, folds=4) == expected


def test_blocks_that_fit_are_made_once() -> None:
    scores, owner = some_scores(40, 90)
    calls: list[slice] = []

    def block(rows: slice) -> Tensor:
        calls.append(rows)
        return scores[rows].clone()

    for keep, times in ((1 << 20, 4), (0, 8), (2 * 10 * 90 * 4, 6)):
        calls.clear()
        retrieval_metrics(block, owner, 40, rows=10, keep=keep, folds=2)
        assert len(calls) == times
        assert all(rows.stop - rows.start == 10 for rows in calls)


@pytest.mark.parametrize("folds", [2, 3, 8])
def test_folds_are_the_mean_of_parts(folds: int) -> None:
    scores, owner = some_scores(24, 120)
    result = retrieval_metrics(scores.__getitem__, owner, 24, folds=folds)
    size, total = 24 // folds, {}
    for fold in range(folds):
        rows = slice(fold * size, (fold + 1) * size)
        mine = (owner >= rows.start) & (owner < rows.stop)
        part = retrieval_metrics(scores[rows][:, mine].__getitem__, owner[mine] - rows.start, size)
        total = {name: total.get(name, 0) + value / folds for name, value in part.items()}
    assert {name.removesuffix(f"/{folds} folds"): v for name, v in result.items() if "folds" in name} == pytest.approx(
        total
    )
    assert {name: v for name, v in result.items() if "folds" not in name} == retrieval_metrics(
        scores.__getitem__, owner, 24
    )


def test_images_without_captions_are_candidates_only() -> None:
    scores = torch.tensor([[0.5], [0.9]])
    i2t, t2i = rank_matrix(scores, torch.tensor([0]))
    assert (i2t.rank.tolist(), t2i.rank.tolist()) == ([1], [2])
    result = retrieval_metrics(scores.__getitem__, torch.tensor([0]), 2, folds=2)
    assert (result["t2i_r1"], result["t2i_r1/2 folds"]) == (0, 100)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_type_of_scores(dtype: torch.dtype) -> None:
    scores, owner = some_scores(12, 60, levels=50)
    expected = retrieval_metrics(scores.__getitem__, owner, 12)
    assert retrieval_metrics(scores.to(dtype).__getitem__, owner, 12) == expected


def test_nothing_to_rank() -> None:
    nobody = torch.zeros(0, dtype=torch.long)
    assert retrieval_metrics(torch.zeros(3, 0).__getitem__, nobody, 3) == {}
    assert retrieval_metrics(torch.zeros(0, 0).__getitem__, nobody, 0, folds=5) == {}
    i2t, t2i = rank_matrix(torch.zeros(0, 0), nobody)
    assert len(i2t.rank) == len(t2i.rank) == 0


def test_one_direction_alone_has_no_sum() -> None:
    i2t, t2i = rank_matrix(*some_scores(4, 9))
    metrics = RetrievalMetrics()
    metrics.update(i2t._replace(rank=i2t.rank[:0], tied=i2t.tied[:0]), t2i)
    assert "t2i_r1" in metrics.compute()
    assert not {"rsum", "i2t_r1"} & set(metrics.compute())


def test_errors() -> None:
    scores, owner = some_scores(4, 9)
    with pytest.raises(
        ValueError, match="retrieval_metrics: expected owners from 0 to 3, got 0 to 4; pass the row of each"
    ):
        retrieval_metrics(scores.__getitem__, torch.tensor([0, 4]), 4)
    with pytest.raises(ShapeError, match=r"rank_matrix: expected owner \(C,\) of integers, got \(4, 9\) torch.float32"):
        rank_matrix(scores, scores)
    with pytest.raises(ShapeError, match=r"expected scores \(rows, C\) of sizes \(4, 9\), got \(4, 8\)"):
        retrieval_metrics(scores[:, :8].__getitem__, owner, 4)
    with pytest.raises(ValueError, match="retrieval_metrics: expected folds >= 1, got 0; 5 yields the 1K numbers"):
        retrieval_metrics(scores.__getitem__, owner, 4, folds=0)
    with pytest.raises(ValueError, match="retrieval_metrics: expected rows >= 1, got 0"):
        retrieval_metrics(scores.__getitem__, owner, 4, rows=0)
    with pytest.raises(ValueError, match="retrieval_metrics: expected keep >= 0, got -1"):
        retrieval_metrics(scores.__getitem__, owner, 4, keep=-1)
    scores[2, 3] = torch.nan
    with pytest.raises(ValueError, match=r"retrieval_metrics: expected scores without NaN, got 1 of 9, the first"):
        retrieval_metrics(scores.__getitem__, owner, 4, rows=1)
    with pytest.raises(TypeError, match="rank_matrix: expected floating-point scores, got"):
        rank_matrix(torch.zeros(4, 9, dtype=torch.long), owner)
