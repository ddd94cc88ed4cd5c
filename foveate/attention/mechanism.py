"""The table of mechanisms, which `foveate.attention` fills, and what it says about each of them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from torch import nn

from foveate.registry import lookup


@dataclass(frozen=True)
class Option:
    """One option of a mechanism.

    Attributes:
        name: of the keyword.
        kind: its type, as annotated.
        meaning: as stated where the option is declared.
        default: its default.
    """

    name: str
    kind: str
    meaning: str
    default: Any


@dataclass(frozen=True)
class Mechanism:
    """A row of the table of mechanisms.

    Attributes:
        build: makes the module from the mechanism's options.
        summary: one line for listings.
        reference: the paper it comes from.
        needs_grid: the locations must lie on a grid.
        fit: of a continuous mechanism: makes the `Fit` from its options; None for a discrete one.
        options: of `build`; None if they are not known.
    """

    build: Callable[..., nn.Module]
    summary: str
    reference: str
    needs_grid: bool = False
    fit: Callable[..., Any] | None = field(default=None, compare=False)
    options: tuple[Option, ...] | None = None

    @property
    def continuous(self) -> bool:
        """True for a mechanism that attends with a density instead of weights."""
        return self.fit is not None


MECHANISMS: dict[str, Mechanism] = {}
# Of the options of transforms, which are plain functions; every other option is declared with its meaning.
MEANINGS = {
    "alpha": "greater than 1 and at most 64; the larger, the sparser; a number, or a tensor that broadcasts to the "
    "scores with size 1 for the locations; learned in (1, 2]",
    "smoothness": "λ ≥ 0, with 0 the result is sparsemax; a number, or a tensor that broadcasts to the scores with "
    "size 1 for the locations; learned above zero",
    "edges": "(E, 2) pairs of node numbers; the neighbours on the grid, or a chain, when absent",
}


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
    return lookup("mechanism", name, MECHANISMS).build(**options)


def read_options(thing: Callable[..., Any], skip: Collection[str]) -> list[Option]:
    """The options that a class or function declares: `Annotated[type, meaning]`, or a name of `MEANINGS`."""
    hints = get_type_hints(thing, include_extras=True)
    parts = [part for name, part in inspect.signature(thing).parameters.items() if name not in skip]
    return [Option(part.name, *_declared(hints[part.name], part.name), part.default) for part in parts]


def _declared(hint: Any, name: str) -> tuple[str, str]:
    """The type in words, without the modules of classes, and the meaning."""
    kind, meaning = get_args(hint)[:2] if get_origin(hint) is Annotated else (hint, MEANINGS.get(name, ""))
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    names = ["None" if part is type(None) else inspect.formatannotation(part) for part in parts]
    return " | ".join(re.sub(r"\b[\w.]+\.(?=\w)", "", text) for text in names), meaning


def options_table() -> list[tuple[str, str, str, str, str]]:
    """Rows (option, type, default, mechanisms, meaning); an option that several mechanisms share is one row.

    >>> [row[3] for row in options_table() if row[0] == "edges"]
    ['gfusedmax']
    """
    owners: dict[tuple[str, str, str, str], list[str]] = {}
    for name, row in MECHANISMS.items():
        for one in row.options or ():
            default = "required" if one.default is inspect.Parameter.empty else repr(one.default)
            owners.setdefault((one.name, one.kind, default, one.meaning), []).append(name)
    dense = {name for name, row in MECHANISMS.items() if row.continuous}
    groups = {"all": set(MECHANISMS), "continuous": dense, "discrete": set(MECHANISMS) - dense}
    group = {frozenset(names): label for label, names in groups.items()}
    shown = {key: group.get(frozenset(names), ", ".join(names)) for key, names in owners.items()}
    return [(name, kind, default, shown[name, kind, default, text], text) for name, kind, default, text in owners]
