from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foveate.errors import DataError, ShapeError
from foveate.lab.search import nearest
from foveate.lab.search.nearest import _pack, _unpack
from tests.lab.search.runs import InMemory


def slow(vectors: Tensor, queries: Tensor, top: int) -> tuple[list[list[int]], list[list[float]]]:
    """Score all, sort by score and position."""
    positions, scores = [], []
    for query in queries.tolist():
        products = [sum(a * b for a, b in zip(query, row, strict=True)) for row in vectors.tolist()]
        order = sorted(range(len(products)), key=lambda n: (-products[n], n))[:top]
        positions.append(order)
        scores.append([products[n] for n in order])
    return positions, scores


@given(
    st.integers(1, 30), st.integers(1, 4), st.integers(1, 40), st.integers(1, 200), st.booleans(), st.integers(0, 99)
)
@settings(max_examples=60, deadline=None)
def test_against_sorting(count: int, dim: int, top: int, chunk: int, half: bool, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    vectors = torch.randint(-3, 4, (count, dim), generator=g).float()  # exact products, many of them equal
    queries = torch.randint(-3, 4, (3, dim), generator=g).float()
    found = nearest(InMemory(vectors.half() if half else vectors), queries, top, chunk=chunk)
    positions, scores = slow(vectors, queries, top)
    assert found.positions.tolist() == positions
    assert found.scores.tolist() == scores


def test_many_queries_are_searched_in_parts() -> None:
    g = torch.Generator().manual_seed(0)
    vectors, queries = torch.randn(40, 8, generator=g), torch.randn(1100, 8, generator=g)
    found = nearest(InMemory(vectors), queries, 3)
    values, places = (queries @ vectors.T).topk(3)
    assert torch.equal(found.positions, places)
    torch.testing.assert_close(found.scores, values)


@pytest.mark.parametrize("chunk", [1, 64, 1 << 20])
def test_chunks_do_not_matter(chunk: int) -> None:
    g = torch.Generator().manual_seed(1)
    vectors, queries = torch.randn(300, 16, generator=g).half(), torch.randn(4, 16, generator=g)
    found, expected = (nearest(InMemory(vectors), queries, 20, chunk=c) for c in (chunk, 1 << 24))
    assert torch.equal(found.positions, expected.positions)
    torch.testing.assert_close(found.scores, expected.scores)


def test_keys_are_in_the_order_of_scores_and_give_them_back() -> None:
    tiny = torch.tensor(1e-45)
    scores = torch.tensor([[-3e38, -2.0, -1.0, -tiny, -0.0, 0.0, tiny, 1.0, 2.0, 3e38]])
    keys = _pack(scores, start=5)
    order = keys[0].argsort(descending=True).tolist()
    assert order == [9, 8, 7, 6, 4, 5, 3, 2, 1, 0]  # the two zeros are equal: lower position first
    positions, back = _unpack(keys)
    assert positions[0].tolist() == list(range(5, 15))
    assert torch.equal(back, scores)


def test_sizes_at_the_edge() -> None:
    assert nearest(InMemory(torch.zeros(0, 3)), torch.ones(2, 3)).positions.shape == (2, 0)
    assert nearest(InMemory(torch.ones(4, 3)), torch.ones(0, 3), 2).scores.shape == (0, 2)
    assert nearest(InMemory(torch.ones(1, 3)), torch.ones(1, 3), 10).positions.tolist() == [[0]]


def test_errors() -> None:
    space = InMemory(torch.ones(4, 3))
    with pytest.raises(ShapeError, match=r"nearest: expected queries \(Q, D\) of sizes \(any, 3\), got \(1, 2\)"):
        nearest(space, torch.ones(1, 2))
    with pytest.raises(ValueError, match="nearest: expected top >= 1, got 0"):
        nearest(space, torch.ones(1, 3), 0)
    with pytest.raises(ValueError, match="nearest: expected chunk > 0, got 0"):
        nearest(space, torch.ones(1, 3), chunk=0)
    with pytest.raises(ValueError, match="nearest: expected queries without NaN, got 1 of 3"):
        nearest(space, torch.tensor([[1.0, torch.nan, 0.0]]))
    with pytest.raises(ValueError, match="nearest: expected finite queries, got infinite ones; check the run"):
        nearest(space, torch.tensor([[1.0, torch.inf, 0.0]]))
    with pytest.raises(ValueError, match="nearest: expected inner products below 3e38, got larger ones; normalise"):
        nearest(space, torch.full((1, 3), 2e38))
    broken = torch.ones(4, 3)
    broken[2, 1] = torch.inf
    with pytest.raises(
        DataError,
        match="nearest: expected finite vectors, got others at positions 2 to 2; the index or the run that embedded it",
    ):
        nearest(InMemory(broken), torch.ones(1, 3), chunk=12)
