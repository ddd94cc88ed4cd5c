"""Any mechanism by its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from inspect import signature
from typing import Any

from torch import nn

from foveate.attention.continuous import ContinuousAttention
from foveate.attention.fits import Fit
from foveate.errors import UnknownName
from foveate.registry import lookup


@dataclass(frozen=True)
class Mechanism:
    """A row of the table of mechanisms.

    Attributes:
        build: makes the module from the mechanism's options.
        summary: one line for listings.
        reference: the paper it comes from.
        needs_grid: the locations must lie on a grid.
        continuous: attends with a density instead of weights.
        fit: of a continuous mechanism: the class whose fields are its options.
        fixed: options of the fit that the mechanism sets itself.
        options: names of the options that `build` accepts; None if that is not known.
    """

    build: Callable[..., nn.Module]
    summary: str
    reference: str
    needs_grid: bool = False
    continuous: bool = False
    fit: type[Fit] | None = None
    fixed: tuple[str, ...] = ()
    options: frozenset[str] | None = None


def continuous(fit: type[Fit], summary: str, reference: str, **fixed: Any) -> Mechanism:
    """The row of a continuous mechanism: its options are those of the fit and those of `ContinuousAttention`."""

    known = {field.name for field in fields(fit)}  # type: ignore[arg-type]
    outer = set(signature(ContinuousAttention).parameters) - {"fit"}

    def build(**options: Any) -> nn.Module:
        of_fit = {key: value for key, value in options.items() if key in known}
        rest = {key: value for key, value in options.items() if key not in known}
        for option in rest:
            if option not in outer:
                raise UnknownName("option of a continuous mechanism", option, known | outer)
        return ContinuousAttention(fit(**(fixed | of_fit)), **rest)

    options = frozenset(known | outer)
    return Mechanism(build, summary, reference, continuous=True, fit=fit, fixed=tuple(fixed), options=options)


def mechanism(name: str, **options: Any) -> nn.Module:
    """An attention by name; every one is called as `attend(scores, values, grid=None, mask=None) -> Attended`.

    Args:
        name: a row of MECHANISMS; `foveate list mechanisms` shows them.
        options: of that mechanism.

    Returns:
        a module that takes
        scores (B, ..., N) with any number of query or head axes;
        values (B, N, D), or (B, ..., N, D) with the query axes of the scores, from the first, or 1 in their place;
        grid (H, W), (N,) on a line, or one pair per example as a list or a (B, 2) tensor, padded at the end;
        mask (B, N), or with as many axes as the scores: it broadcasts to them, True where a location counts.

    >>> import torch
    >>> attend = mechanism("tvmax", smoothness=0.1)
    >>> attend(torch.zeros(1, 4), torch.ones(1, 4, 3), grid=(2, 2)).context.tolist()
    [[1.0, 1.0, 1.0]]
    """
    from foveate.attention import MECHANISMS

    return lookup("mechanism", name, MECHANISMS).build(**options)
