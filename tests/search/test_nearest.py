from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from foveate.errors import DataError, MissingExtra, ShapeError
from foveate.search import FaissIndex, nearest
from foveate.search.nearest import InMemory, _pack, _unpack

needs_faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs the extra search")


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


def test_refusals() -> None:
    space = InMemory(torch.ones(4, 3))
    with pytest.raises(ShapeError, match=r"nearest: expected queries \(Q, D\) of sizes \(any, 3\), got \(1, 2\)"):
        nearest(space, torch.ones(1, 2))
    with pytest.raises(ValueError, match="nearest: expected top >= 1, got 0"):
        nearest(space, torch.ones(1, 3), 0)
    with pytest.raises(ValueError, match="nearest: expected chunk > 0, got 0"):
        nearest(space, torch.ones(1, 3), chunk=0)
    with pytest.raises(ValueError, match="nearest: expected queries without NaN, got 1 of 3"):
        nearest(space, torch.tensor([[1.0, torch.nan, 0.0]]))
    with pytest.raises(ValueError, match="nearest: expected finite queries, got infinite ones; look at the run"):
        nearest(space, torch.tensor([[1.0, torch.inf, 0.0]]))
    with pytest.raises(ValueError, match="nearest: expected inner products below 3e38, got larger ones; bring"):
        nearest(space, torch.full((1, 3), 2e38))
    broken = torch.ones(4, 3)
    broken[2, 1] = torch.inf
    with pytest.raises(DataError, match="nearest: expected finite vectors, got others among 2 to 2; the index is dama"):
        nearest(InMemory(broken), torch.ones(1, 3), chunk=12)
    with pytest.raises(TypeError, match="InMemory: expected floating-point vectors"):
        InMemory(torch.ones(2, 2, dtype=torch.long))


@needs_faiss
def test_faiss_that_probes_all_lists_is_exact() -> None:
    g = torch.Generator().manual_seed(0)
    vectors, queries = torch.randn(500, 16, generator=g).half(), torch.randn(6, 16, generator=g)
    exact = nearest(InMemory(vectors), queries, 10)
    found = FaissIndex(InMemory(vectors), lists=20, probes=20).search(queries, 10)
    assert torch.equal(found.positions, exact.positions)
    torch.testing.assert_close(found.scores, exact.scores, atol=1e-3, rtol=1e-3)


@needs_faiss
def test_faiss_finds_most_with_few_probes() -> None:
    g = torch.Generator().manual_seed(0)
    centres = torch.randn(30, 16, generator=g)
    vectors = centres.repeat_interleave(40, 0) + 0.1 * torch.randn(1200, 16, generator=g)
    queries = vectors[::100] + 0.05
    space = InMemory(vectors)
    exact, one = nearest(space, queries, 10), FaissIndex(space, lists=30, probes=1, seed=1).search(queries, 10)
    few = FaissIndex(space, lists=30, probes=6, seed=1).search(queries, 10)

    def recall(found: Tensor) -> float:
        return (found[:, :, None] == exact.positions[:, None]).any(-1).float().mean().item()

    assert recall(few.positions) > 0.9
    assert recall(one.positions) < recall(few.positions) <= 1


@needs_faiss
def test_faiss_at_the_edge() -> None:
    space = InMemory(torch.eye(3))
    assert FaissIndex(space, probes=3).search(torch.eye(3), 1).positions.flatten().tolist() == [0, 1, 2]
    with pytest.raises(DataError, match="FaissIndex: expected at least one vector, got none"):
        FaissIndex(InMemory(torch.zeros(0, 3)))
    with pytest.raises(ValueError, match="FaissIndex: expected probes >= 1, got 0"):
        FaissIndex(space, probes=0)
    with pytest.raises(ValueError, match="FaissIndex: expected lists >= 1, got 0"):
        FaissIndex(space, lists=0)
    with pytest.raises(ShapeError, match=r"FaissIndex: expected queries \(Q, D\)"):
        FaissIndex(space).search(torch.ones(1, 2))


def test_without_faiss(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("foveate.registry.import_module", absent)
    with pytest.raises(
        MissingExtra, match=r'FaissIndex: expected the package .faiss., got none; run: pip install "fov'
    ):
        FaissIndex(InMemory(torch.eye(3)))
