"""Nearest neighbours by inner product: exactly, a few megabytes at a time, or approximately with faiss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape, raise_nan
from foveate.errors import DataError
from foveate.registry import optional

# Converted to float32 a chunk stays in the processor's cache: eight times as much takes twice the time.
CHUNK = 8 << 20
QUERIES = 512
SAMPLE = 64  # vectors a list that faiss learns its lists from


class Vectors(Protocol):
    """What can be searched: N vectors of D numbers, read in slices."""

    @property
    def dim(self) -> int: ...

    def __len__(self) -> int: ...

    def blocks(self, rows: int) -> Iterable[tuple[int, Tensor]]:
        """The vectors in order, at most `rows` at a time, each block with the position of its first."""
        ...


class Hits(NamedTuple):
    """The nearest of each query, best first.

    Attributes:
        positions: (Q, k) in the index.
        scores: (Q, k) inner products, float32.
    """

    positions: Tensor
    scores: Tensor


def nearest(vectors: Vectors, queries: Tensor, top: int = 10, *, chunk: int = CHUNK) -> Hits:
    """The `top` vectors with the largest inner product with each query, exactly.

    Products are in float32, whatever the vectors are kept in; of equal products the lower position comes first.

    Args:
        vectors: what to search, N of them.
        queries: (Q, D).
        top: how many to return, fewer when there are fewer vectors.
        chunk: bytes of vectors, as float32, that are looked at together; memory grows with it and not with N.

    Vectors that are not finite raise DataError, queries ValueError.

    >>> found = nearest(InMemory(torch.eye(3)), torch.tensor([[0.1, 0.9, 0.5]]), top=2)
    >>> found.positions.tolist()
    [[1, 2]]
    """
    queries = _check_queries("nearest", vectors, queries, top)
    check_number("nearest", "chunk", chunk, above=0, advice=f"{CHUNK} is a good start")
    rows = max(1, int(chunk) // (4 * max(vectors.dim, 1)))
    found = [_search(vectors, part, min(top, len(vectors)), rows) for part in queries.split(QUERIES)]
    keys = torch.cat(found) if found else queries.new_zeros(0, min(top, len(vectors)), dtype=torch.long)
    return Hits(*_unpack(keys))


class InMemory:
    """A tensor (N, D) to search.

    >>> len(InMemory(torch.eye(3)))
    3
    """

    def __init__(self, vectors: Tensor) -> None:
        check_floating("InMemory", "vectors", vectors)
        check_shape("InMemory", "vectors", vectors, (None, None), "(N, D)")
        self.vectors = vectors

    @property
    def dim(self) -> int:
        """D."""
        return self.vectors.shape[1]

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """The vectors in order, at most `rows` at a time."""
        for start in range(0, len(self), rows):
            yield start, self.vectors[start : start + rows]


class FaissIndex:
    """Approximate nearest neighbours: the vectors in lists around centres, of which the nearest few are searched.

    Held in memory as float16, N·D·2 bytes; never written, since faiss cannot tell a harmful file from a good one.

    Args:
        vectors: what to search; read once.
        lists: how many lists; about 4√N when absent.
        probes: lists searched a query; as many as `lists` gives the exact answer.
        seed: of the choice of the vectors that the centres are learnt from.

    Without the extra `search`, MissingExtra.
    """

    def __init__(self, vectors: Vectors, *, lists: int | None = None, probes: int = 16, seed: int = 0) -> None:
        faiss = optional("FaissIndex", "faiss", extra="search")
        if len(vectors) == 0:
            raise DataError("FaissIndex: expected at least one vector, got none; add some to the index first")
        if lists is None:
            lists = max(1, round(4 * math.sqrt(len(vectors))))
        check_number("FaissIndex", "probes", probes, least=1, advice="more is slower and nearer to exact")
        check_number("FaissIndex", "lists", lists, least=1, advice="leave it out for about 4√N")
        wanted = min(len(vectors), lists)
        self.dim, self._count = vectors.dim, len(vectors)
        centres = faiss.IndexFlatIP(vectors.dim)
        self._index: Any = faiss.IndexIVFScalarQuantizer(
            centres, vectors.dim, wanted, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
        )
        self._index.cp.min_points_per_centroid = 1  # few vectors a list are no reason to warn
        self._index.cp.seed = seed + 1
        self._index.train(_sample(vectors, SAMPLE * wanted, seed).numpy())
        for _, block in vectors.blocks(max(1, CHUNK // (4 * vectors.dim))):
            self._index.add(block.float().numpy())
        self._index.nprobe = probes

    def __len__(self) -> int:
        return self._count

    def search(self, queries: Tensor, top: int = 10) -> Hits:
        """As `nearest`, but some of the nearest may be missed; a query that finds fewer than `top` has position -1."""
        queries = _check_queries("FaissIndex", self, queries, top)
        scores, positions = self._index.search(queries.numpy(), min(top, len(self)))
        return Hits(torch.from_numpy(positions), torch.from_numpy(scores))


def _search(vectors: Vectors, queries: Tensor, top: int, rows: int) -> Tensor:
    """The best keys (Q, top) of some queries; see `_pack`."""
    best = torch.zeros(len(queries), 0, dtype=torch.long)
    room = torch.empty(rows, vectors.dim)
    for start, block in vectors.blocks(rows):
        values = room[: len(block)].copy_(block)
        scores = queries @ values.T
        if not bool(scores.isfinite().all()):
            raise _not_finite(values, start)
        keys = _pack(scores, start)
        best = torch.cat([best, keys], 1)
        best = best.topk(min(top, best.shape[1])).values
    return best


def _pack(scores: Tensor, start: int) -> Tensor:
    """Scores (Q, n) and their positions in one integer each, ordered by score and then by falling position.

    The bits of a float, those below the sign turned over where it is negative, are in the order of the numbers.
    """
    bits = (scores + 0.0).view(torch.int32)  # -0 becomes 0
    ordered = (bits ^ ((bits >> 31) & _LOW)).long()
    return (ordered << 32) | (_MOST - torch.arange(start, start + scores.shape[1]))


def _not_finite(values: Tensor, start: int) -> Exception:
    """The error for products that are not finite: of the vectors, or of queries too large for them."""
    if bool(values.isfinite().all()):
        return ValueError(
            "nearest: expected inner products below 3e38, got larger ones; bring queries and vectors to length one"
        )
    return DataError(
        f"nearest: expected finite vectors, got others among {start} to {start + len(values) - 1}; "
        "the index is damaged or its encoder is: write it again"
    )


def _unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered = (keys >> 32).to(torch.int32)
    return _MOST - (keys & _MOST), (ordered ^ ((ordered >> 31) & _LOW)).view(torch.float32)


_LOW, _MOST = 0x7FFFFFFF, 0xFFFFFFFF


def _sample(vectors: Vectors, most: int, seed: int) -> Tensor:
    """At most `most` vectors, spread evenly at random, as float32."""
    chosen = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:most].sort().values
    parts: Sequence[Tensor] = [
        block[chosen[(chosen >= start) & (chosen < start + len(block))] - start].float()
        for start, block in vectors.blocks(max(1, CHUNK // (4 * vectors.dim)))
    ]
    return torch.cat(list(parts))


def _check_queries(where: str, vectors: Any, queries: Tensor, top: int) -> Tensor:
    """The queries as float32 on the CPU, or an error."""
    check_floating(where, "queries", queries)
    check_shape(where, "queries", queries, (None, vectors.dim), "(Q, D)")
    check_number(where, "top", top, least=1, advice="10 is usual")
    queries = queries.detach().float().cpu().contiguous()
    if bool(queries.isnan().any()):
        raise_nan(where, "queries", queries)
    if bool(queries.isinf().any()):
        raise ValueError(f"{where}: expected finite queries, got infinite ones; look at the run that embeds them")
    return queries
