"""A row of the table of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class Loss:
    """A row of the table of losses.

    Attributes:
        function: `function(prediction, target) -> scalar`, summed over the batch.
        reads: what it compares: "answers", scores with soft targets (B, A); "maps", attention with targets (B, H, W).
    """

    function: Callable[[Tensor, Tensor], Tensor]
    reads: Literal["answers", "maps"]
