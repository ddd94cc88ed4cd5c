"""Look a name up in a table; the tables are plain dictionaries in each package's `__init__`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from foveate.errors import MissingExtra, UnknownName

Row = TypeVar("Row")


def lookup(kind: str, name: str, table: Mapping[str, Row]) -> Row:
    """The row called `name`, or `UnknownName` with the nearest match.

    >>> lookup("letter", "a", {"a": 1})
    1
    """
    try:
        return table[name]
    except KeyError:
        raise UnknownName(kind, name, table) from None


def optional(what: str, module: str, extra: str) -> ModuleType:
    """Import `module`, or raise `MissingExtra` with the pip line of the extra that brings it.

    >>> optional("example", "json", extra="none").__name__
    'json'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != module.split(".")[0]:
            raise
        raise MissingExtra(what, module.split(".")[0], extra) from None
