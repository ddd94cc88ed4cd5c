"""Any mechanism by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from foveate.registry import lookup


@dataclass(frozen=True)
class Mechanism:
    """A row of the table of mechanisms.

    Attributes:
        build: makes the module from the mechanism's options.
        summary: one line for people.
        reference: the paper it comes from.
        needs_grid: the locations must lie on a grid.
        continuous: attends with a density instead of weights.
    """

    build: Callable[..., nn.Module]
    summary: str
    reference: str
    needs_grid: bool = False
    continuous: bool = False


def mechanism(name: str, **options: Any) -> nn.Module:
    """An attention by name; every one is called as `attend(scores, values, grid=None, mask=None) -> Attended`.

    Args:
        name: a row of MECHANISMS; `foveate list mechanisms` shows them.
        options: of that mechanism.

    Returns:
        a module that takes scores (B, ..., N), values (B, N, D), grid (H, W) and mask (B, N).

    >>> import torch
    >>> attend = mechanism("tvmax", smoothness=0.1)
    >>> attend(torch.zeros(1, 4), torch.ones(1, 4, 3), grid=(2, 2)).context.tolist()
    [[1.0, 1.0, 1.0]]
    """
    from foveate.attention import MECHANISMS

    row = lookup("mechanism", name, MECHANISMS)
    try:
        return row.build(**options)
    except TypeError as error:
        if "unexpected keyword" not in str(error):
            raise
        raise TypeError(f"mechanism: expected options of {name!r}, got {sorted(options)}; {error}") from None
