"""Look up names in tables, which are plain dictionaries in each package's `__init__`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from foveate.errors import MissingExtra, UnknownName

Row = TypeVar("Row")


def lookup(kind: str, name: str, table: Mapping[str, Row]) -> Row:
    """Return the row called `name`; raises UnknownName with the nearest match.

    >>> lookup("letter", "a", {"a": 1})
    1
    """
    try:
        return table[name]
    except KeyError:
        raise UnknownName(kind, name, table) from None


def load_target(target: str) -> Callable[..., Any]:
    """Import the function called `module:function`.

    >>> load_target("json:dumps")([1])
    '[1]'
    """
    module, _, name = target.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


_provided: dict[str, str] = {}


def provide(name: str, target: str) -> None:
    """Offer `module:function` of a higher package to lower ones, which ask for it by name.

    >>> provide("an example", "json:dumps")
    >>> provided("an example")([1])
    '[1]'
    """
    _provided[name] = target


def provided(name: str) -> Callable[..., Any]:
    """Import the function that was offered under a name."""
    return load_target(_provided[name])


def optional(what: str, module: str, extra: str) -> ModuleType:
    """Import `module`; raises MissingExtra with the pip command of the extra that provides it.

    >>> optional("example", "json", extra="none").__name__
    'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(what, module.split(".")[0], extra) from None
