"""Score maps to begin with, for the pages without a model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from foveate.ops.grid import cell_centres
from foveate.registry import lookup

SIDE = 14


def _bump(x: float, y: float, width: float) -> Tensor:
    """Scores of an object at (x, y): flat inside its width, falling outside."""
    away = (cell_centres(SIDE, SIDE) - torch.tensor([x, y])).norm(dim=-1)
    return torch.exp(-((away / width) ** 4) / 2)


def _ring() -> Tensor:
    away = (cell_centres(SIDE, SIDE) - 0.5).norm(dim=-1)
    return torch.exp(-((away - 0.3) ** 2) / (2 * 0.05**2))


def _noise() -> Tensor:
    return 0.5 * torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))


PRESETS: Mapping[str, Callable[[], Tensor]] = {
    "two objects": lambda: 5 * (_bump(0.25, 0.3, 0.12) + _bump(0.75, 0.7, 0.15)),
    "one object": lambda: 5 * _bump(0.6, 0.4, 0.2),
    "three objects and noise": lambda: (
        5 * (_bump(0.2, 0.2, 0.12) + _bump(0.8, 0.3, 0.12) + _bump(0.45, 0.8, 0.12)) + _noise()
    ),
    "two stars": lambda: (
        3 * (_bump(0.35, 0.5, 0.1) + 0.94 * _bump(0.65, 0.5, 0.1)) + 1.5 * _bump(0.5, 0.5, 0.1) + 0.3 * _noise()
    ),
    "ring": lambda: 4 * _ring(),
    "noise": lambda: 2 * _noise(),
    "nothing": lambda: torch.zeros(SIDE * SIDE),
}


def preset_scores(name: str) -> Tensor:
    """The scores (N,) of a preset, rounded as the painter keeps them; raises UnknownName for any other name."""
    return (100 * lookup("preset", name, PRESETS)()).round() / 100


def preset(name: str) -> str:
    """The scores of a preset, as JSON for the painter.

    >>> preset("nothing")[:6]
    '[0.0, '
    """
    return json.dumps([round(score, 2) for score in preset_scores(name).tolist()])
