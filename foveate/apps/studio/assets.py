"""The style sheet and the scripts of the page, from files beside this one."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"


@lru_cache(maxsize=32)
def read_asset(name: str) -> str:
    """The text of a file of the page.

    >>> read_asset("studio.css").startswith("/* The studio")
    True
    """
    return (STATIC / name).read_text(encoding="utf-8")


def script(name: str, **parts: object) -> str:
    """A script with its parts filled in: `__SIDE__` stands for the part `side`.

    >>> "const SIDE = 14;" in script("paint", side=14)
    True
    """
    text = read_asset(f"{name}.js")
    for part, value in parts.items():
        text = text.replace(f"__{part.upper()}__", str(value))
    return text
