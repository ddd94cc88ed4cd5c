"""The result of a command as JSON, for `--json`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from foveate.attention.attended import Attended


def as_json(value: Any) -> Any:
    """The result of a command in plain lists and dictionaries.

    Attention becomes its grid and its map, one per query; numbers that JSON does not have become null; whatever has no
    form of its own (an open file, a network) becomes its text.

    >>> from pathlib import Path
    >>> as_json({"path": Path("a.png"), "score": float("nan"), "best": (("red", 0.5),)})
    {'path': 'a.png', 'score': None, 'best': [['red', 0.5]]}
    """
    if isinstance(value, Attended):
        return _attention(value)
    if isinstance(value, Tensor):
        return as_json(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [as_json(item) for item in value]
    return str(value)


def _attention(attended: Attended) -> dict[str, Any]:
    """Grid and map; without a grid the weights of the locations."""
    if not isinstance(attended.grid, tuple):
        return {"grid": None, "weights": attended.weights.detach().tolist()}
    return {"grid": list(attended.grid), "map": attended.map().detach().tolist()}
