"""Standardise inputs by the mean and deviation of the training data, collected while training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

LEAST = 1e-5


class Standardise(nn.Module):
    """`(x − mean) / deviation` per feature, over everything that was seen in training mode, the present batch included.

    The same statistics are used in training and in evaluation mode, so that a batch of one behaves as any other.

    Args:
        dim: number of features, the last axis.

    >>> layer = Standardise(1)
    >>> layer(torch.tensor([[1.0], [3.0]])).round(decimals=3).flatten().tolist()
    [-1.0, 1.0]
    >>> round(layer.eval()(torch.tensor([[5.0]])).item(), 3)
    3.0
    """

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Standardise x (..., dim); `mask` (...) is True for the rows that count in the statistics."""
        if self.training:
            self._collect((x if mask is None else x[mask]).detach().reshape(-1, x.shape[-1]))
        return (x - self.mean) / (self.variance.sqrt() + LEAST)

    def _collect(self, rows: Tensor) -> None:
        """Merge the moments of rows (n, dim) with those seen before (Chan et al. 1979)."""
        if not len(rows):
            return
        mean, variance = rows.mean(0), rows.var(0, correction=0)
        share = len(rows) / (self.count + len(rows))
        difference = mean - self.mean
        # The initial variance of one has no share once anything was counted: share is 1 for the first rows.
        self.variance.lerp_(variance, share).add_(share * (1 - share) * difference.square())
        self.mean.add_(share * difference)
        self.count.add_(len(rows))
