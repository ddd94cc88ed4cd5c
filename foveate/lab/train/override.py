"""Single fields of a recipe changed by texts `field=value`, checked against the annotations of the fields."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

from foveate.attention import MECHANISMS
from foveate.errors import DataError, UnknownName, WrongValue
from foveate.lab.train.recipe import (
    Recipe,
    decode,
    describe,
    encode,
    example,
    field_types,
    item_types,
    members,
    variants,
)
from foveate.registry import lookup

FIXED = ("name", "task", "about")
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


class Field(NamedTuple):
    """A field of a recipe that can be changed: its path, its type and its value."""

    path: str
    kind: Any
    value: Any


def override(recipe: Recipe, changes: Iterable[str]) -> Recipe:
    """The recipe with some fields changed.

    Args:
        recipe: not modified.
        changes: texts `field=value`. A field is named by itself (`mechanism`, `lr`) or, where that is ambiguous, with
            the group it belongs to (`optimiser.lr`). An entry of a mapping is named after it
            (`mechanism_options.alpha=2`). Another optimiser, schedule or model is named by its row (`optimiser=sgd`,
            `model=bfan`) and keeps the fields both have. Another mechanism keeps the options that it accepts; the
            others are dropped with a message. A group may have a field that its own name stands for
            (`ccr=1` is `ccr.weight=1`).

    Raises UnknownName with the nearest name for an unknown field, ValueError for a value of the wrong type.

    >>> from foveate.lab.train import Adam, Training
    >>> recipe = Recipe("example", "none", Adam(1e-3), Training(Adam(1e-3)))
    >>> override(recipe, ["epochs=3", "training.optimiser.lr=0.1"]).training.optimiser.lr
    0.1
    >>> override(recipe, ["epoch=3"])
    Traceback (most recent call last):
    foveate.errors.UnknownName: example: expected a known name, got 'epoch'; did you mean 'epochs'?
    """
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise WrongValue(f"{recipe.name}: expected field=value, got {change!r}; write for instance epochs=3")
        recipe = _set(recipe, name.strip(), text.strip())
    return recipe


def recipe_fields(recipe: Recipe) -> list[Field]:
    """Every field that `override` can change, in order.

    >>> from foveate.lab.train import Adam, Training
    >>> [field.path for field in recipe_fields(Recipe("example", "none", Adam(1e-3), Training(Adam(1e-3))))][:3]
    ['settings.lr', 'settings.betas', 'settings.eps']
    """
    return [field for field in _walk(recipe, "") if field.path not in FIXED]


def parse(kind: Any, text: str, where: str) -> Any:
    """The value of type `kind` that a user wrote as `text`.

    >>> parse(int | None, "none", "steps"), parse(tuple[int, ...], "10,12", "at"), parse(float, "1e-3", "lr")
    (None, (10, 12), 0.001)
    """
    several = members(kind)
    if several is not None:
        return _parse_union(several, kind, text, where)
    origin = get_origin(kind) or kind
    if origin is Literal:
        return lookup(where, text, {str(choice): choice for choice in get_args(kind)})
    if origin is tuple:
        parts = [part for part in text.strip("()[] ").split(",") if part.strip()]
        kinds = item_types(kind, len(parts), where)
        return tuple(parse(k, p.strip(), where) for k, p in zip(kinds, parts, strict=True))
    if kind is Any:
        return _parse_free(text)
    if kind is bool and text.lower() in TRUE + FALSE:
        return text.lower() in TRUE
    if kind is NoneType and text.lower() == "none":
        return None
    if kind in (int, float, str):
        with suppress(ValueError):
            return kind(text)
    raise WrongValue(f"{where}: expected {describe(kind)}, got {text!r}; write, for example, {where}={example(kind)}")


def _walk(part: Any, prefix: str) -> Iterator[Field]:
    for name, kind in field_types(type(part)).items():
        value = getattr(part, name)
        if not is_dataclass(value):
            yield Field(prefix + name, kind, value)
            continue
        if variants(kind):
            yield Field(prefix + name, kind, value)
        yield from _walk(value, f"{prefix}{name}.")


def _set(recipe: Recipe, name: str, text: str) -> Recipe:
    known = recipe_fields(recipe)
    found = _find(recipe, name, known) or _find(recipe, f"{name}.{_short(recipe, name)}", known)
    if found is not None:
        return _drop_leftovers(_replace_recipe(recipe, found.path, _value(found, name, text)), found)
    holder, dot, key = name.rpartition(".")
    mapping = _find(recipe, holder, known) if dot else None
    if mapping is None or not isinstance(mapping.value, Mapping):
        raise UnknownName(recipe.name, name, {end for field in known for end in _ends(field.path)})
    kind = get_args(mapping.kind)[1] if get_args(mapping.kind) else Any
    return _replace_recipe(recipe, mapping.path, {**mapping.value, key: parse(kind, text, name)})


def _drop_leftovers(recipe: Recipe, changed: Field) -> Recipe:
    """The recipe without the options that a new mechanism does not accept; a message names them."""
    if changed.path != "settings.mechanism":
        return recipe
    settings = recipe.settings
    accepted = MECHANISMS[settings.mechanism].options
    options = getattr(settings, "mechanism_options", {})
    left = [] if accepted is None else [name for name in options if name not in {one.name for one in accepted}]
    if not left:
        return recipe
    print(f"{recipe.name}: {', '.join(left)} dropped, since {settings.mechanism} has no such option", file=sys.stderr)
    kept = {name: value for name, value in options.items() if name not in left}
    return _replace_recipe(recipe, "settings.mechanism_options", kept)


def _short(part: Any, name: str) -> str | None:
    """The field that the name of a group stands for, such as the weight of a constraint."""
    for field in fields(part):
        value = getattr(part, field.name)
        if is_dataclass(value):
            own = getattr(value, "short", None) if name.rpartition(".")[2] == field.name else _short(value, name)
            if own is not None:
                return str(own)
    return None


def _ends(path: str) -> Iterator[str]:
    """The names of a field: a.b.c, b.c and c."""
    while path:
        yield path
        path = path.partition(".")[2]


def _find(recipe: Recipe, name: str, known: list[Field]) -> Field | None:
    found = [field for field in known if f".{field.path}".endswith(f".{name}")]
    exact = [field for field in found if field.path == name]
    if len(found) > 1 and not exact:
        raise WrongValue(
            f"{recipe.name}: expected the name of one field, got {name!r}; "
            f"write {' or '.join(field.path for field in found)}"
        )
    return next(iter(exact or found), None)


def _value(field: Field, name: str, text: str) -> Any:
    """The value of a field that a user called `name`."""
    choices = variants(field.kind)
    if choices:
        chosen = lookup(field.path, text.lower(), choices)
        kept = {}
        for own, kind in field_types(chosen).items():
            # Fields of one name may differ in type: the warm-up of `Steps` is in whole epochs, that of `Cosine` is not.
            with suppress(AttributeError, DataError):
                kept[own] = decode(kind, encode(getattr(field.value, own)), own)
        return chosen(**kept)
    if isinstance(field.value, Mapping):
        raise WrongValue(f"{field.path}: expected an entry, got {text!r}; write {field.path}.<name>=<value>")
    return parse(field.kind, text, name)


def _replace_recipe(recipe: Recipe, path: str, value: Any) -> Recipe:
    replaced: Recipe = _replace(recipe, path.split("."), value)
    return replaced


def _replace(part: Any, path: list[str], value: Any) -> Any:
    name, *rest = path
    return replace(part, **{name: _replace(getattr(part, name), rest, value) if rest else value})


def _parse_union(several: tuple[Any, ...], kind: Any, text: str, where: str) -> Any:
    # None and numbers before str, which accepts any text.
    for member in sorted(several, key=lambda m: (m is str, m is not NoneType)):
        with suppress(ValueError, LookupError):
            return parse(member, text, where)
    raise WrongValue(f"{where}: expected {describe(kind)}, got {text!r}; write, for example, {where}={example(kind)}")


def _parse_free(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None if text.lower() == "none" else text
