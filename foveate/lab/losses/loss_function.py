"""The rows of the table of losses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor


@dataclass(frozen=True)
class LossFunction:
    """A row of `LOSSES`.

    Attributes:
        function: `function(prediction, target) -> scalar`, summed over the batch.
        reads: what the function compares: "answers", scores with soft targets (B, A); "maps", attention maps with
            target maps (B, H, W).
    """

    function: Callable[[Tensor, Tensor], Tensor]
    reads: Literal["answers", "maps"]
