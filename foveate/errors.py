"""The errors foveate raises, each saying what was expected, what came and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FoveateError(Exception):
    """Base of the errors that foveate raises itself."""


class ShapeError(FoveateError, ValueError):
    """A tensor has the wrong shape."""


class DataError(FoveateError, ValueError):
    """A file or a record in it is missing, broken or not what its format promises."""


class UnknownName(FoveateError, LookupError):
    """A name is in no table; the message carries the nearest one that is.

    >>> raise UnknownName("mechanism", "softmx", ["softmax", "sparsemax"])
    Traceback (most recent call last):
    foveate.errors.UnknownName: mechanism: expected a known name, got 'softmx'; did you mean 'softmax'?
    """

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names)}"
        super().__init__(f"{kind}: expected a known name, got {name!r}; {hint}")
        self.kind, self.name, self.nearest = kind, name, near[0] if near else None


class MissingExtra(FoveateError, ImportError):
    """An optional package is not installed; the message carries the pip line that brings it.

    >>> raise MissingExtra("studio", "gradio", extra="studio")
    Traceback (most recent call last):
    foveate.errors.MissingExtra: studio: expected the package 'gradio', got none; run: pip install "foveate[studio]"
    """

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f'{what}: expected the package {package!r}, got none; run: pip install "foveate[{extra}]"')
        self.extra = extra
