"""The table of mechanisms, which `foveate.attention` fills, their options, and the numbers that training changes."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from foveate.errors import UnknownName, WrongValue
from foveate.ops import entmax
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


LEAST_ALPHA = 1.001  # towards 1 the gradient in alpha stays finite, but an alpha of 1 in float32 is no entmax
STRAIGHT, BEND = math.log(1e5), math.log(10.0)  # exp(raw) as it is from 1e-5 to 1e5; beyond, it bends towards 1e±6


class Learnable(nn.Module):
    """A parameter between two bounds: `low + (high − low) sigmoid(raw)`, or `low + exp(raw)` without an upper one.

    Value and gradient are finite for every raw number: exp(raw) stays between 1e-6 and 1e6, to which it bends
    smoothly from 1e-5 and 1e5 on.

    Args:
        initial: where it begins.
        low, high: bounds; None for low + 1e6.
        shape: of the parameter, such as (M, 1, 1) for one per head beside scores (B, M, Q, N).

    >>> alpha = Learnable(1.5, 1.0, 2.0)
    >>> round(alpha().item(), 4), alpha().requires_grad
    (1.5, True)
    """

    def __init__(self, initial: float, low: float, high: float | None = None, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        if not low < initial or (high is not None and not initial <= high):
            bounds = f"{low} < initial" + ("" if high is None else f" <= {high}")
            raise WrongValue(f"Learnable: expected {bounds}, got {initial}; start inside the bounds")
        if high is None and not 1e-6 < initial - low < 1e6:
            raise WrongValue(f"Learnable: expected {low} + 1e-6 < initial < {low} + 1e6, got {initial}; start inside")
        self.low, self.high = low, high
        share = initial - low if high is None else min((initial - low) / (high - low), 1 - 1e-3)
        raw = _straighten(math.log(share)) if high is None else math.log(share / (1 - share))
        self.raw = nn.Parameter(torch.full(shape, raw))

    def forward(self) -> Tensor:
        """The value."""
        if self.high is None:
            return self.low + _bend(self.raw).exp()
        return self.low + (self.high - self.low) * self.raw.sigmoid()

    def extra_repr(self) -> str:
        """The bounds and the shape, for print."""
        return f"low={self.low}, high={self.high}, shape={tuple(self.raw.shape)}"


Temperature = Annotated[
    float | Tensor | nn.Module,
    "divides the scores; a number, a tensor that broadcasts to them with size 1 for the locations, or a module that "
    "makes one",
]


def _bend(x: Tensor) -> Tensor:
    """x between ±STRAIGHT; beyond, it goes on with the same slope and curvature and stops at ±(STRAIGHT + BEND)."""
    straight = x.clamp(-STRAIGHT, STRAIGHT)
    return straight + BEND * ((x - straight) / BEND).tanh()


def _straighten(y: float) -> float:
    """The inverse of `_bend`."""
    straight = min(max(y, -STRAIGHT), STRAIGHT)
    return straight + BEND * math.atanh((y - straight) / BEND)


BOUNDS: dict[str, tuple[float, float | None]] = {
    "alpha": (LEAST_ALPHA, 2.0),
    "smoothness": (0.0, None),
    "temperature": (0.0, None),
}


def learned_options(
    where: str,
    learnable: bool | Sequence[str],
    heads: int | None,
    options: Mapping[str, Any],
    for_all: Mapping[str, Any] | None = None,
) -> dict[str, nn.Module]:
    """The parameters of the options that are learnable, begun at their numbers; see `DiscreteAttention`.

    Args:
        where: the mechanism, for errors.
        learnable: True for all, or the names of options.
        heads: one number per head; None for one.
        options: values by name.
        for_all: more of them, with one number for all heads.
    """
    if heads is not None and not learnable:
        raise WrongValue(
            f"{where}: expected learnable beside heads={heads}, got learnable={learnable!r}; pass learnable=True, or "
            "an option as a tensor with one number per head"
        )
    every = {**options, **(for_all or {})}
    can = [name for name in every if name in BOUNDS]
    wanted = can if learnable is True else [] if learnable is False else list(learnable)
    for name in wanted:
        if name not in can:
            raise UnknownName(f"learnable option of {where}", name, can)
    shapes = {name: () if heads is None or name not in options else (heads, 1, 1) for name in wanted}
    numbers = {name: every[name] for name in wanted if isinstance(every[name], int | float)}
    return {name: Learnable(float(number), *BOUNDS[name], shapes[name]) for name, number in numbers.items()}


def register_option(module: nn.Module, name: str, value: Tensor | nn.Module) -> None:
    """A parameter that trains with the module, a constant that moves with it, or a part that makes the value."""
    if isinstance(value, nn.Module):
        module.add_module(name, value)
    elif isinstance(value, nn.Parameter):
        module.register_parameter(name, value)
    else:
        module.register_buffer(name, value)


class Entmax(nn.Module):
    """`fv.entmax` as a module, with an alpha that can be learned.

    Args:
        alpha: where it begins, or stays; 1 < alpha <= 2 when learnable.
        learnable: alpha is a parameter, kept in (1, 2] by a sigmoid.
        shape: of alpha, which broadcasts to the scores with size 1 along `dim`: (M, 1, 1) for one per head beside
            scores (B, M, Q, N).
        dim: the axis that is normalised.

    Reference: Correia et al. 2019, adaptively sparse transformers.

    >>> attend = Entmax(1.5, learnable=True, shape=(4, 1, 1))
    >>> attend(torch.randn(2, 4, 3, 5)).shape, attend.alpha.shape
    (torch.Size([2, 4, 3, 5]), torch.Size([4, 1, 1]))
    """

    def __init__(
        self, alpha: float = 1.5, *, learnable: bool = False, shape: tuple[int, ...] = (), dim: int = -1
    ) -> None:
        super().__init__()
        self.dim = dim
        self._alpha = Learnable(alpha, LEAST_ALPHA, 2.0, shape) if learnable else None
        self._number = alpha

    @property
    def alpha(self) -> Tensor | float:
        """The alpha in use."""
        if self._alpha is None:
            return self._number
        value: Tensor = self._alpha()
        return value

    def forward(self, scores: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weights of the scores; see `fv.entmax`."""
        return entmax(scores, self.alpha, self.dim, mask)

    def extra_repr(self) -> str:
        """Alpha, for print."""
        return f"alpha={self._number}, dim={self.dim}" if self._alpha is None else f"dim={self.dim}"
