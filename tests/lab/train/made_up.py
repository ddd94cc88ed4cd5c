"""Settings of a task that does not exist, with a field of every type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from foveate.lab.train import Adam, Recipe, Training


@dataclass(frozen=True)
class Inner:
    size: int = 3
    steps: int = 2


@dataclass(frozen=True)
class Weighted:
    """A group whose name stands for its weight."""

    short: ClassVar[str] = "weight"

    weight: float = 0.0
    margin: float = 0.2


@dataclass(frozen=True)
class Settings:
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] = field(default_factory=dict)
    inner: Inner = field(default_factory=Inner)
    rule: Literal["strict", "lenient"] = "strict"
    flag: bool = False
    words: str | None = None
    grid: tuple[int, int] = (14, 14)
    guidance: float = 0.0
    ccr: Weighted = field(default_factory=Weighted)
    ccs: Weighted = field(default_factory=Weighted)


def made_up_recipe() -> Recipe:
    return Recipe("a-b-c", "fake", Settings(), Training(Adam(1e-3)))
