"""The types of a recipe's fields: what they allow, in words and by example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from inspect import isabstract
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from foveate.lab.models import MODELS, ModelSettings


class _Word(NamedTuple):
    one: str
    many: str
    example: str


WORDS: dict[Any, _Word] = {
    int: _Word("a whole number", "whole numbers", "2"),
    float: _Word("a number", "numbers", "0.5"),
    str: _Word("text", "texts", "text"),
    bool: _Word("true or false", "truth values", "true"),
    NoneType: _Word("none", "nones", "none"),
    Mapping: _Word("named entries", "named entries", "name=value"),
}


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(tuple[int, ...]), describe(Literal["fp32", "bf16"])
    ('a whole number or none', 'whole numbers separated by commas', 'fp32 or bf16')
    """
    origin = get_origin(kind)
    if variants(kind):
        return " or ".join(variants(kind))
    if members(kind) is not None:
        return " or ".join(describe(member) for member in members(kind) or ())
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        kinds = get_args(kind)
        count = "" if Ellipsis in kinds else f"{len(kinds)} "
        return f"{count}{_word(kinds[0]).many} separated by commas"
    return _word(kind).one


def example(kind: Any) -> str:
    """A value of a type, as a user writes it.

    >>> example(int | None), example(tuple[float, float]), example(Literal["fp32", "bf16"])
    ('2', '0.5,0.5', 'fp32')
    """
    if variants(kind):
        return next(iter(variants(kind)))
    if members(kind) is not None:
        return example((members(kind) or ())[0])
    if get_origin(kind) is Literal:
        return str(get_args(kind)[0])
    if get_origin(kind) is tuple:
        first, second = get_args(kind)[:2]
        return f"{example(first)},{example(first if second is Ellipsis else second)}"
    return _word(kind).example


def field_types(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def variants(kind: Any) -> dict[str, type]:
    """The dataclasses that an annotation allows, by name; empty if it allows none, one, or other types too.

    A family of models allows its rows of `MODELS`, a union its members.

    >>> from foveate.lab.train.config import Schedule
    >>> sorted(variants(Schedule))
    ['cosine', 'decay', 'steps']
    """
    if isinstance(kind, type) and issubclass(kind, ModelSettings) and isabstract(kind):
        return {name: row for name, row in MODELS.items() if issubclass(row, kind)}
    several = members(kind) or ()
    return {m.__name__.lower(): m for m in several} if all(is_dataclass(m) for m in several) else {}


def members(kind: Any) -> tuple[Any, ...] | None:
    """The members of a union; None for another type."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else None


def item_types(kind: Any, count: int, where: str) -> tuple[Any, ...]:
    """The types of the `count` items of a tuple type."""
    kinds = get_args(kind)
    if Ellipsis in kinds:
        return kinds[:1] * count
    if len(kinds) != count:
        raise ValueError(f"{where}: expected {len(kinds)} values, got {count}; write, for example, {example(kind)}")
    return kinds


def _word(kind: Any) -> _Word:
    name = str(getattr(kind, "__name__", kind))
    return WORDS.get(get_origin(kind) or kind) or _Word(name, name, "value")
