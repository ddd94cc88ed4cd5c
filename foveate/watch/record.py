"""What `fv.watch` keeps of a model's attention."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

from torch import Tensor

from foveate.attention import Attended, SparseWeights
from foveate.errors import ShapeError

Heads = str | int | Sequence[int]


@dataclass(frozen=True, eq=False)
class Record:
    """The weights of one attention call.

    Attributes:
        name: of the module that attended, as in `model.named_modules()`.
        kept: (B, M, Q, N) the rows and columns that were asked for, or `SparseWeights` where attention streamed and
            all were asked for. Rows sum to one when all columns are kept.
        step: number of the model's forward pass, counted from 0; during `generate`, the number of the generated token.
        queries: (Q,) positions of the rows among the call's queries.
        keys: (N,) or (B, N) positions of the columns among the call's keys, None when all are kept; -1 at padding.
        key_count: the number of keys of the call.
        via: the kind of call: "softmax", "sdpa", "multihead", or "foveate" for a transform or mechanism of ours.

    >>> import torch
    >>> record = Record("layers.0.attn", torch.full((1, 2, 1, 4), 0.25), 0, torch.tensor([0]), None, 4)
    >>> record.layer, record.attended(grid=(2, 2)).map().shape
    (0, torch.Size([1, 2, 2]))
    """

    name: str
    kept: Tensor | SparseWeights
    step: int
    queries: Tensor
    keys: Tensor | None
    key_count: int
    via: str = "softmax"

    @property
    def weights(self) -> Tensor:
        """What is kept as (B, M, Q, N)."""
        return self.kept if isinstance(self.kept, Tensor) else self.kept.to_dense()

    @property
    def layer(self) -> int | None:
        """The last number in the module's name, None when there is none."""
        return layer_number(self.name)

    def attended(
        self, query: int | None = None, grid: tuple[int, int] | None = None, heads: Heads = "mean", prefix: int = 0
    ) -> Attended:
        """One row, or all rows, as what every attention of foveate returns.

        Args:
            query: the kept row to take; None keeps all rows as a query axis, or drops the axis when there is only one.
            grid: rows and columns of the patches among the kept columns; the weights over them sum to one.
            heads: "mean", "max", the number of one head, or several numbers to average.
            prefix: kept columns before the first patch (CLS and registers).

        Returns:
            `Attended` with weights (B, H·W), or (B, Q, H·W) for several rows; the context is empty.
        """
        from foveate.watch.reductions import normalise, over_heads

        kept = self.kept
        if isinstance(kept, SparseWeights) and query is not None:  # one row of a long sequence, not all
            rows = [part[..., query, None, :] for part in (kept.indices, kept.weights)]
            kept, query = SparseWeights(rows[0], rows[1], kept.key_count), 0
        weights = over_heads(kept if isinstance(kept, Tensor) else kept.to_dense(), heads)
        if query is not None or weights.shape[1] == 1:
            weights = weights[:, query or 0]
        if grid is not None:
            count = grid[0] * grid[1]
            if weights.shape[-1] < prefix + count:
                raise ShapeError(
                    f"Record.attended: expected at least {prefix + count} columns for a prefix of {prefix} and a grid "
                    f"of {grid[0]} x {grid[1]}, got {weights.shape[-1]} in {self.name}; pass the grid of this layer"
                )
            weights = normalise(weights[..., prefix : prefix + count])
        return Attended(weights.new_zeros(*weights.shape[:-1], 0), weights, None, grid)


@dataclass(eq=False)
class Records(Sequence[Record]):
    """Records in the order of the calls.

    Attributes:
        unseen: names of the attention modules that ran without a call that could be watched.

    >>> len(Records()), Records().unseen
    (0, [])
    """

    rows: list[Record] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.rows)

    @property
    def steps(self) -> list[list[Record]]:
        """The records of each forward pass."""
        last = max((row.step for row in self.rows), default=-1)
        return [[row for row in self.rows if row.step == step] for step in range(last + 1)]

    @property
    def names(self) -> list[str]:
        """The modules in the order in which they first attended."""
        return list(dict.fromkeys(row.name for row in self.rows))

    @property
    def nbytes(self) -> int:
        """Bytes of all weights that are kept."""
        return sum(row.kept.nbytes for row in self.rows)


def layer_number(name: str) -> int | None:
    """The last number in a module's name.

    >>> layer_number("vision.layers.11.self_attn"), layer_number("head")
    (11, None)
    """
    numbers = re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name)
    return int(numbers[-1]) if numbers else None
