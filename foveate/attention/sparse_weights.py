"""The weights of sparse attention by their support alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foveate.attention.attended import Attended
from foveate.checks import Rows, index_examples
from foveate.errors import ShapeError
from foveate.ops.values import as_value


@as_value
@dataclass(frozen=True, eq=False)
class SparseWeights:
    """Weights (B, ..., Q, N) of which most are zero, in the memory of the largest support.

    Indexing picks examples, as in `Attended`: `weights[3]` is `weights[3:4]`, a batch of one.

    Attributes:
        indices: (B, ..., Q, S) the keys of each query's support in ascending order, -1 after the last.
        weights: (B, ..., Q, S) their weights, 0 after the last.
        key_count: N.

    >>> sparse = SparseWeights(torch.tensor([[[0, 3], [2, -1]]]), torch.tensor([[[0.25, 0.75], [1.0, 0.0]]]), 4)
    >>> sparse.to_dense().tolist()
    [[[0.25, 0.0, 0.0, 0.75], [0.0, 0.0, 1.0, 0.0]]]
    >>> sparse.attended(query=0, grid=(2, 2)).map().tolist()
    [[[0.25, 0.0], [0.0, 0.75]]]
    """

    indices: Tensor
    weights: Tensor
    key_count: int

    @classmethod
    def of(cls, weights: Tensor) -> SparseWeights:
        """The supports of weights (B, ..., Q, N).

        >>> SparseWeights.of(torch.tensor([[0.0, 1.0]])).indices.tolist()
        [[1]]
        """
        inside = weights != 0
        S = int(inside.sum(-1).max()) if weights.numel() else 0
        # keys inside first, in their order
        order = (~inside).to(torch.uint8).argsort(dim=-1, stable=True)[..., :S]
        return cls(order.masked_fill(~inside.gather(-1, order), -1).int(), weights.gather(-1, order), weights.shape[-1])

    def __getitem__(self, rows: Rows) -> SparseWeights:
        """The weights of some examples, as a batch of them."""
        chosen = index_examples("SparseWeights", rows, self.weights.shape[0])
        return replace(self, indices=self.indices[chosen], weights=self.weights[chosen])

    @property
    def nbytes(self) -> int:
        """Bytes of the indices and the weights."""
        return sum(part.numel() * part.element_size() for part in (self.indices, self.weights))

    def to_dense(self) -> Tensor:
        """The weights (B, ..., Q, N)."""
        spare = self.weights.new_zeros(*self.weights.shape[:-1], self.key_count + 1)  # padding goes to one more key
        places = self.indices.long().where(self.indices >= 0, self.key_count)
        return spare.scatter_add(-1, places, self.weights)[..., : self.key_count]

    def attended(self, query: int | None = None, grid: tuple[int, int] | None = None, prefix: int = 0) -> Attended:
        """One query, or all, as what every attention of foveate returns.

        Args:
            query: the one to take; None keeps all as a query axis.
            grid: rows and columns of the image tokens among the keys; the weights over them sum to one.
            prefix: keys before the image tokens.

        Returns:
            `Attended` with the mean weights of the heads, (B, H·W), or (B, Q, H·W) for all queries; no context.
        """
        part = self
        if query is not None:
            part = replace(self, indices=self.indices[..., query, :], weights=self.weights[..., query, :])
        weights = part.to_dense()
        heads = tuple(range(1, self.weights.ndim - 2))
        weights = weights.mean(heads) if heads else weights
        if grid is not None:
            count = grid[0] * grid[1]
            if weights.shape[-1] < prefix + count:
                raise ShapeError(
                    f"SparseWeights.attended: expected at least {prefix + count} keys for a prefix of {prefix} and a "
                    f"grid of {grid[0]} x {grid[1]}, got {weights.shape[-1]}; pass the grid and prefix of these keys"
                )
            weights = weights[..., prefix : prefix + count]
            total = weights.sum(-1, keepdim=True)
            weights = weights / torch.where(total > 0, total, 1)
        return Attended(weights.new_zeros(*weights.shape[:-1], 0), weights, None, grid)
