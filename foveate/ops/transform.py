"""A row of the table of transforms: the function and what is special about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Transform:
    """One transform of scores to weights.

    Attributes:
        function: `f(scores, ..., mask=None) -> weights`.
        regulariser: Ω(weights, **options), of which the function is the regularised argmax.
        summary: one line for people.
        reference: the paper it comes from.
        axes: how many last axes are normalised together: 1 for (..., N), 2 for a grid (..., H, W).
        needs_edges: the function takes the edges of a graph.
        sparse: the weights can be exactly zero.
    """

    function: Callable[..., Tensor]
    regulariser: Callable[..., Tensor]
    summary: str
    reference: str
    axes: int = 1
    needs_edges: bool = False
    sparse: bool = True
