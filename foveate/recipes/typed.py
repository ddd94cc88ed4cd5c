"""Frozen dataclasses as JSON and as texts of a command line, both checked against the annotations of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from foveate.errors import DataError, UnknownName
from foveate.registry import lookup

T = TypeVar("T")
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
KIND = "kind"


def encode(value: Any) -> Any:
    """A dataclass as JSON; where an annotation allows several dataclasses the name of the one is kept under "kind".

    >>> from foveate.train import Adam, Training
    >>> encode(Training(Adam(1e-3)))["optimiser"]
    {'lr': 0.001, 'betas': [0.9, 0.999], 'eps': 1e-08, 'weight_decay': 0.0, 'kind': 'adam'}
    """
    if is_dataclass(value):
        kinds = field_types(type(value))
        return {name: _encode_field(kind, getattr(value, name)) for name, kind in kinds.items()}
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: Any, value: Any, where: str) -> Any:
    """The value of type `kind` that `encode` made JSON of; DataError names the place where it does not fit.

    >>> decode(tuple[float, float], [0.9, 1], "betas")
    (0.9, 1.0)
    """
    if kind is Any:
        return value
    if _members(kind) is not None:
        return _decode_union(kind, value, where)
    if is_dataclass(kind):
        return _decode_dataclass(kind, value, where)  # type: ignore[arg-type]
    origin = get_origin(kind) or kind
    if origin is Literal and value in get_args(kind):
        return value
    if origin is tuple and isinstance(value, list):
        return tuple(decode(k, item, where) for k, item in zip(_items(kind, len(value), where), value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {key: decode(get_args(kind)[1], item, where) for key, item in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if kind in (bool, int, str, NoneType) and type(value) is kind:
        return value
    raise DataError(f"{where}: expected {describe(kind)}, got {value!r}; mend the file or write it anew")


def parse(kind: Any, text: str, where: str) -> Any:
    """The value of type `kind` that a person wrote as `text`.

    >>> parse(int | None, "none", "steps"), parse(tuple[int, ...], "10,12", "at"), parse(float, "1e-3", "lr")
    (None, (10, 12), 0.001)
    """
    members = _members(kind)
    if members is not None:
        return _parse_union(members, kind, text, where)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return lookup(where, text, {str(choice): choice for choice in get_args(kind)})
    if origin is tuple:
        parts = [part for part in text.strip("()[] ").split(",") if part.strip()]
        return tuple(parse(k, p.strip(), where) for k, p in zip(_items(kind, len(parts), where), parts, strict=True))
    if kind is Any:
        return _parse_free(text)
    if kind is bool and text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    if kind is NoneType and text.lower() == "none":
        return None
    if kind in (int, float, str):
        with suppress(ValueError):
            return kind(text)
    raise ValueError(f"{where}: expected {describe(kind)}, got {text!r}; write {where}=<{describe(kind)}>")


def describe(kind: Any) -> str:
    """A type in words.

    >>> describe(int | None), describe(tuple[int, ...]), describe(Literal["fp32", "bf16"])
    ('int or none', 'int,int,...', 'fp32 or bf16')
    """
    members, origin = _members(kind), get_origin(kind)
    if members is not None:
        return " or ".join(describe(member) for member in members)
    if origin is Literal:
        return " or ".join(str(choice) for choice in get_args(kind))
    if origin is tuple:
        kinds = get_args(kind)
        return f"{describe(kinds[0])},{describe(kinds[0])},..." if Ellipsis in kinds else ",".join(map(describe, kinds))
    if kind is NoneType:
        return "none"
    return kind.__name__.lower() if is_dataclass(kind) else getattr(kind, "__name__", str(kind))  # type: ignore[union-attr]


def field_types(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def variants(kind: Any) -> dict[str, type]:
    """The dataclasses that an annotation allows, by lower-case name; empty when it allows none or other things too.

    >>> from foveate.train.config import Schedule
    >>> sorted(variants(Schedule))
    ['cosine', 'decay', 'steps']
    """
    members = _members(kind) or ()
    return {m.__name__.lower(): m for m in members} if all(is_dataclass(m) for m in members) else {}


def _members(kind: Any) -> tuple[Any, ...] | None:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else None


def _items(kind: Any, count: int, where: str) -> tuple[Any, ...]:
    kinds = get_args(kind)
    if Ellipsis in kinds:
        return kinds[:1] * count
    if len(kinds) != count:
        raise ValueError(f"{where}: expected {len(kinds)} values, got {count}; write them as {describe(kind)}")
    return kinds


def _encode_field(kind: Any, value: Any) -> Any:
    tag = {KIND: type(value).__name__.lower()} if variants(kind) else {}
    return encode(value) | tag if tag else encode(value)


def _decode_union(kind: Any, value: Any, where: str) -> Any:
    choices = variants(kind)
    if choices and isinstance(value, dict):
        rest = {key: item for key, item in value.items() if key != KIND}
        return _decode_dataclass(lookup(where, str(value.get(KIND)), choices), rest, where)
    for member in _members(kind) or ():
        with suppress(DataError):
            return decode(member, value, where)
    raise DataError(f"{where}: expected {describe(kind)}, got {value!r}; mend the file or write it anew")


def _decode_dataclass(kind: type[T], value: Any, where: str) -> T:
    if not isinstance(value, dict):
        raise DataError(f"{where}: expected the fields of {kind.__name__}, got {value!r}; mend the file")
    kinds = field_types(kind)
    for name in value:
        if name not in kinds:
            raise UnknownName(f"{where}.{name}", name, kinds)
    for field in fields(kind):  # type: ignore[arg-type]
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise DataError(f"{where}: expected the field {field.name!r}, got none; mend the file or write it anew")
    return kind(**{name: decode(kinds[name], item, f"{where}.{name}") for name, item in value.items()})


def _parse_union(members: tuple[Any, ...], kind: Any, text: str, where: str) -> Any:
    # "none" before words, numbers before words: str takes anything
    for member in sorted(members, key=lambda m: (m is str, m is not NoneType)):
        with suppress(ValueError, LookupError):
            return parse(member, text, where)
    raise ValueError(f"{where}: expected {describe(kind)}, got {text!r}; write {where}=<{describe(kind)}>")


def _parse_free(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None if text.lower() == "none" else text
