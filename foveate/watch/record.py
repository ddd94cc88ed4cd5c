"""What `fv.watch` keeps of a model's attention."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, overload

import torch
from torch import Tensor, nn

from foveate.attention import Attended, SparseWeights
from foveate.errors import ShapeError, UnknownName

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


# What to record

Layers = int | str | Sequence[int | str] | Callable[[str], bool] | None
Queries = int | slice | Sequence[int] | None
Keep = str | slice | Sequence[int] | Tensor | None
Columns = Tensor | None
HEAD_REDUCTIONS = ("mean", "max")
Locate = Callable[[str, Mapping[str, Any], int], Columns]


@dataclass(frozen=True)
class Request:
    """What to keep: which modules, rows, columns and heads, in which precision."""

    chosen: Callable[[str], bool]
    queries: Queries
    locate: Locate | None
    heads: Heads | None
    dtype: torch.dtype | None
    device: torch.device | str | None
    grad: bool
    _rows: dict[int, Tensor] = field(default_factory=dict)

    def rows(self, Q: int) -> Tensor | None:
        """Indices of the rows to keep of a call with Q queries; None for all."""
        if self.queries is None:
            return None
        if Q not in self._rows:
            self._rows[Q] = self._find_rows(Q)
        return self._rows[Q]

    def _find_rows(self, Q: int) -> Tensor:
        every = range(Q)
        if isinstance(self.queries, slice):
            return torch.tensor(every[self.queries], dtype=torch.long)
        assert self.queries is not None
        wanted = [self.queries] if isinstance(self.queries, int) else list(self.queries)
        return torch.tensor([q % Q for q in wanted if -Q <= q < Q], dtype=torch.long)

    def over_heads(self, name: str, weights: Tensor) -> Tensor:
        """The heads to keep of the weights (B, M, Q, N) of a module, or one head that is their mean or maximum."""
        if self.heads is None:
            return weights
        if isinstance(self.heads, str):
            return weights.mean(1, True) if self.heads == "mean" else weights.amax(1, True)
        M = weights.shape[1]
        wanted = [self.heads] if isinstance(self.heads, int) else list(self.heads)
        if not wanted or any(not -M <= head < M for head in wanted):
            raise ShapeError(
                f"watch: expected heads from 0 to {M - 1} in {name}, got {wanted}; pass layers= of modules that have "
                "them"
            )
        return weights.index_select(1, torch.tensor([head % M for head in wanted], device=weights.device))


def check_heads(heads: Heads | None) -> None:
    """Raises UnknownName if `heads` is neither a reduction nor numbers; see `watch`."""
    if isinstance(heads, str) and heads not in HEAD_REDUCTIONS:
        raise UnknownName("watch heads", heads, HEAD_REDUCTIONS)


def take_columns(weights: Tensor, columns: Tensor) -> Tensor:
    """The columns (N,) of weights (B, M, Q, N'), or (B, N) per example, where -1 is padding with weight 0.

    >>> take_columns(torch.tensor([[[[0.1, 0.2, 0.7]]]]), torch.tensor([[2, -1]])).tolist()
    [[[[0.699999988079071, 0.0]]]]
    """
    columns = columns.to(weights.device)
    if columns.ndim == 1:
        return weights.index_select(-1, columns)
    index = columns.clamp(min=0)[:, None, None].expand(*weights.shape[:-1], columns.shape[-1])
    return weights.gather(-1, index).masked_fill((columns < 0)[:, None, None], 0)


@dataclass
class ColumnTaker:
    """`take_columns`, as a view where the columns follow one another, as those of one image do.

    Whether they do is found once for each tensor of positions, which stays the same from step to step of generation.

    >>> ColumnTaker()(torch.tensor([[[[0.1, 0.2, 0.7]]]]), torch.tensor([[1, 2]])).tolist()
    [[[[0.20000000298023224, 0.699999988079071]]]]
    """

    # The tensors are kept, so that their ids stay theirs.
    found: dict[int, tuple[Tensor, int | None]] = field(default_factory=dict)

    def __call__(self, weights: Tensor, columns: Tensor) -> Tensor:
        """The columns (N,) or (B, N) of weights (B, M, Q, N')."""
        if id(columns) not in self.found:
            self.found[id(columns)] = columns, _first_of_run(columns)
        first = self.found[id(columns)][1]
        return take_columns(weights, columns) if first is None else weights.narrow(-1, first, columns.shape[-1])


def _first_of_run(columns: Tensor) -> int | None:
    """The first of positions that follow one another, the same for every example; None when they do not."""
    if not columns.numel():
        return None
    first = int(columns.flatten()[0])
    run = torch.arange(first, first + columns.shape[-1], device=columns.device)
    return first if first >= 0 and bool((columns == run).all()) else None


def module_filter(layers: Layers) -> Callable[[str], bool]:
    """A function that says whether the module of a name is among `layers`; see `watch`."""
    if layers is None:
        return lambda name: True
    if callable(layers):
        return layers
    wanted = [layers] if isinstance(layers, int | str) else list(layers)
    numbers = {one for one in wanted if isinstance(one, int)}
    patterns = [one for one in wanted if isinstance(one, str)]
    return lambda name: layer_number(name) in numbers or any(fnmatchcase(name, pattern) for pattern in patterns)


def locator(model: nn.Module, keep: Keep) -> Locate | None:
    """A function that returns the columns to keep of a call, or None when it is not kept at all."""
    if keep is None:
        return None
    if isinstance(keep, str):
        if keep != "image":
            raise UnknownName("watch keep", keep, ("image",))
        from foveate.watch.model_families import ImageColumns

        return ImageColumns(model)
    if isinstance(keep, slice):
        return lambda name, inputs, key_count: torch.arange(key_count)[keep]
    columns = torch.as_tensor(keep, dtype=torch.long)
    most = int(columns.max()) if columns.numel() else -1
    return lambda name, inputs, key_count: columns if most < key_count else None
