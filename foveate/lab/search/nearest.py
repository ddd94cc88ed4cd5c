"""Exact nearest neighbours by inner product, a few megabytes of vectors at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape, raise_nan
from foveate.errors import DataError, WrongValue

# As float32, a chunk of this many bytes stays in the processor's cache; one eight times as large takes twice the time.
CHUNK = 8 << 20
QUERIES = 512  # that are searched together


class HasDim(Protocol):
    """An object with vectors of D numbers."""

    @property
    def dim(self) -> int: ...


class Vectors(Protocol):
    """A searchable collection: N vectors of D numbers, read in slices."""

    @property
    def dim(self) -> int: ...

    def __len__(self) -> int: ...

    def blocks(self, rows: int) -> Iterable[tuple[int, Tensor]]:
        """The vectors in order, at most `rows` at a time, each block with the position of its first vector."""
        ...


class Hits(NamedTuple):
    """The nearest vectors of each query, best first.

    Attributes:
        positions: (Q, k), in the index.
        scores: (Q, k), inner products in float32.
    """

    positions: Tensor
    scores: Tensor


def nearest(vectors: Vectors, queries: Tensor, top: int = 10, *, chunk: int = CHUNK) -> Hits:
    """The `top` vectors with the largest inner product with each query, exactly.

    Products are computed in float32, in whatever type the vectors are stored; of equal products the lower position
    comes first. `Index.search` is this function over the vectors of an index.

    Args:
        vectors: what to search, N of them.
        queries: (Q, D).
        top: how many to return; fewer if there are fewer vectors.
        chunk: bytes of vectors, as float32, that are compared at a time; memory grows with it and not with N.

    Raises DataError if a vector is not finite, and ValueError if a query is not.
    """
    queries = check_queries("nearest", vectors, queries, top)
    check_number("nearest", "chunk", chunk, above=0, advice=f"{CHUNK} is a good start")
    rows = max(1, int(chunk) // (4 * max(vectors.dim, 1)))
    batches = [queries[start : start + QUERIES] for start in range(0, len(queries), QUERIES)]
    found = [_search(vectors, batch, min(top, len(vectors)), rows) for batch in batches]
    keys = torch.cat(found) if found else queries.new_zeros(0, min(top, len(vectors)), dtype=torch.long)
    return Hits(*_unpack(keys))


def _search(vectors: Vectors, queries: Tensor, top: int, rows: int) -> Tensor:
    """The best keys (Q, top) of a batch of queries; see `_pack`."""
    best = torch.zeros(len(queries), 0, dtype=torch.long)
    buffer = torch.empty(rows, vectors.dim)  # one for all blocks, so that it stays in the cache
    for start, block in vectors.blocks(rows):
        values = buffer[: len(block)].copy_(block)
        scores = queries @ values.T
        if not bool(scores.isfinite().all()):
            raise _not_finite(values, start)
        best = torch.cat([best, _pack(scores, start)], 1)
        best = best.topk(min(top, best.shape[1])).values
    return best


def _pack(scores: Tensor, start: int) -> Tensor:
    """Scores (Q, n) and their positions in one integer each, ordered by score and then by descending position.

    The bits of a float, with those below the sign inverted if it is negative, are in the order of the numbers. With
    the position in the lower half, one `topk` of integers ranks and breaks ties at once.
    """
    bits = (scores + 0.0).view(torch.int32)  # adding 0 turns -0 into 0, which must tie with it
    ordered = (bits ^ ((bits >> 31) & _LOW)).long()
    return (ordered << 32) | (_MOST - torch.arange(start, start + scores.shape[1]))


def _unpack(keys: Tensor) -> tuple[Tensor, Tensor]:
    ordered = (keys >> 32).to(torch.int32)
    return _MOST - (keys & _MOST), (ordered ^ ((ordered >> 31) & _LOW)).view(torch.float32)


_LOW, _MOST = 0x7FFFFFFF, 0xFFFFFFFF


def _not_finite(values: Tensor, start: int) -> Exception:
    """The error for products that are not finite: because of the vectors, or of queries too large for them."""
    if bool(values.isfinite().all()):
        return ValueError(
            "nearest: expected inner products below 3e38, got larger ones; normalise queries and vectors to length one"
        )
    return DataError(
        f"nearest: expected finite vectors, got others at positions {start} to {start + len(values) - 1}; "
        "the index or the run that embedded it is damaged: write the index again"
    )


def check_queries(where: str, vectors: HasDim, queries: Tensor, top: int) -> Tensor:
    """The queries as float32 on the CPU; raises an error unless they are (Q, D) and finite."""
    check_floating(where, "queries", queries)
    check_shape(where, "queries", queries, (None, vectors.dim), "(Q, D)")
    check_number(where, "top", top, least=1, advice="10 is usual")
    queries = queries.detach().float().cpu().contiguous()
    if bool(queries.isnan().any()):
        raise_nan(where, "queries", queries)
    if bool(queries.isinf().any()):
        raise WrongValue(f"{where}: expected finite queries, got infinite ones; check the run that embeds them")
    return queries
