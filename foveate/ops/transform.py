"""A row of the table of transforms: the function and what is special about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor


@dataclass(frozen=True)
class Transform:
    """One transform of scores to weights.

    Attributes:
        function: `f(scores, ..., mask=None) -> weights`.
        regulariser: `Ω(weights, **options)`, of which the function is the regularised argmax; None when there is
            none or it is not known, in which case the transform has no Fenchel-Young loss. One that depends on
            pairs of locations also takes `mask`.
        summary: one line that describes it in tables.
        reference: the paper it comes from.
        axes: how many trailing axes are normalised together: 1 for (..., N), 2 for a grid (..., H, W).
        needs_edges: the function takes the edges of a graph.
        sparse: the weights can be exactly zero, and no gradient passes there: their values need not be read.
        prox: `f(scores, ..., mask=None)` of which the transform is the sparsemax, if it is one: tokens that have no
            place on the grid (CLS, registers, text) can then join the same sparsemax.
        name: the name that its error messages begin with; that of the function when absent.

    >>> from foveate.ops.simplex import sparsemax
    >>> Transform(sparsemax, summary="projection on the simplex").name
    'sparsemax'
    """

    function: Callable[..., Tensor]
    regulariser: Callable[..., Tensor] | None = None
    summary: str = ""
    reference: str = ""
    axes: int = 1
    needs_edges: bool = False
    sparse: bool = False
    prox: Callable[..., Tensor] | None = None
    name: str = ""

    def __post_init__(self) -> None:
        if not self.name:
            function = self.function.func if isinstance(self.function, partial) else self.function
            # The class is frozen, so the default that depends on another field is set past its own __setattr__.
            object.__setattr__(self, "name", getattr(function, "__name__", type(function).__name__))
