"""The errors foveate raises. Every message states what was expected, what was received and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FoveateError(Exception):
    """Base class of all errors defined by foveate."""


class WrongValue(FoveateError, ValueError):
    """A value is none of those that are expected; in Python, a ValueError."""


class WrongType(FoveateError, TypeError):
    """An argument has a type that is not expected; in Python, a TypeError."""


class ShapeError(FoveateError, ValueError):
    """A tensor has the wrong shape."""


class DataError(FoveateError, ValueError):
    """A file, or a record in it, is missing, corrupt or violates its format."""


class NotANumber(FoveateError, ValueError):
    """A tensor contains NaN."""


class UnknownName(FoveateError, LookupError):
    """A name is not in its table; the message suggests the nearest one.

    >>> raise UnknownName("mechanism", "softmx", ["softmax", "sparsemax"])
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'softmx'; did you mean 'softmax'?
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1, cutoff=0.4)
        others = f"use one of {', '.join(names)}" if names else "none are available"
        hint = f"did you mean {near[0]!r}?" if near else others
        super().__init__(f"{kind}: expected a known name, got {name!r}; {hint}")
        self.kind, self.name, self.known, self.nearest = kind, name, names, near[0] if near else None


class MissingExtra(FoveateError, ImportError):
    """An optional package is not installed; the message contains the pip command that installs it.

    >>> raise MissingExtra("studio", "gradio", extra="studio")
    Traceback (most recent call last):
    foveate.errors.MissingExtra: studio: expected the package 'gradio', got none; run: pip install "foveate[studio]"
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f'{what}: expected the package {package!r}, got none; run: pip install "foveate[{extra}]"')
        self.extra = extra
