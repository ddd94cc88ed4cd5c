"""The options of every mechanism, read from the signatures and docstrings that define them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from foveate.attention.continuous import ContinuousAttention
from foveate.attention.discrete import NOT_OPTIONS, DiscreteAttention
from foveate.attention.fits import Fit
from foveate.ops import TRANSFORMS
from foveate.registry import lookup

_HEADINGS = ("Args:", "Attributes:")
_ENTRY = re.compile(r"^([A-Za-z_][\w, ]*): (.*)$")


@dataclass(frozen=True)
class Option:
    """One option of a mechanism.

    Attributes:
        name: of the keyword.
        kind: its type, as annotated.
        default: its default.
        meaning: what it does, from the docstring.
    """

    name: str
    kind: str
    default: Any
    meaning: str


def mechanism_options(name: str) -> list[Option]:
    """Every option of a mechanism with type, default and meaning.

    >>> [(option.name, option.default) for option in mechanism_options("entmax")]
    [('alpha', 1.5), ('temperature', 1.0), ('learnable', False), ('heads', None)]
    """
    from foveate.attention import MECHANISMS

    row = lookup("mechanism", name, MECHANISMS)
    if row.fit is not None:
        own = [option for option in _of_class(row.fit) if option.name not in row.fixed]
        return own + _of_call(ContinuousAttention.__init__, ContinuousAttention, skip={"self", "fit"})
    transform = TRANSFORMS[name]
    own = _of_call(transform.function, transform.function, skip=NOT_OPTIONS - {"edges"})
    texts = _meanings(DiscreteAttention)
    kinds = _kinds(DiscreteAttention.__init__)
    temperature = Option("temperature", "float | Tensor", 1.0, texts["temperature"])
    rest = [Option(key, kinds[key], default, texts[key]) for key, default in (("learnable", False), ("heads", None))]
    return [*own, temperature, *rest]


def options_table() -> list[tuple[str, str, str, str, str]]:
    """Rows (mechanism, option, type, default, meaning) of all mechanisms."""
    from foveate.attention import MECHANISMS

    return [
        (name, option.name, option.kind, _shown(option.default), option.meaning)
        for name in MECHANISMS
        for option in mechanism_options(name)
    ]


def options_markdown() -> str:
    """The same as a table of a page."""
    head = "| mechanism | option | type | default | meaning |\n|---|---|---|---|---|"
    rows = [[cell.replace("|", r"\|") for cell in row] for row in options_table()]
    return "\n".join([head, *(f"| {m} | `{o}` | {k} | `{d}` | {text} |" for m, o, k, d, text in rows)])


def _shown(default: Any) -> str:
    return "required" if default is inspect.Parameter.empty else repr(default)


def _of_class(kind: type[Fit]) -> list[Option]:
    texts = _meanings(kind)
    parts = fields(kind)  # type: ignore[arg-type]
    return [Option(part.name, _plain(part.type), part.default, texts[part.name]) for part in parts]


def _of_call(function: Callable[..., Any], documented: Any, skip: set[str]) -> list[Option]:
    texts, kinds = _meanings(documented), _kinds(function)
    parameters = inspect.signature(function).parameters.values()
    return [Option(p.name, kinds[p.name], p.default, texts[p.name]) for p in parameters if p.name not in skip]


def _kinds(function: Callable[..., Any]) -> dict[str, str]:
    return {p.name: _plain(p.annotation) for p in inspect.signature(function).parameters.values()}


def _plain(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _meanings(thing: Any) -> dict[str, str]:
    """What a docstring says about each argument or attribute; names that share an entry share its text."""
    found: dict[str, str] = {}
    current: list[str] = []
    inside = False
    for line in (inspect.getdoc(thing) or "").splitlines():
        if line.strip() in _HEADINGS:
            inside, current = True, []
        elif inside and line.startswith("    "):
            entry = _ENTRY.match(line[4:]) if not line.startswith("     ") else None
            current = [name.strip() for name in entry[1].split(",")] if entry else current
            for name in current:
                found[name] = entry[2] if entry else f"{found[name]} {line.strip()}"
        elif line.strip():
            inside = False
    return found
