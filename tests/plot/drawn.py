"""A drawn image and attentions to it, the same on every run."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import foveate as fv
from foveate.ops import cell_centres

GRID = (7, 7)
PLACES = ((0.3, 0.35), (0.75, 0.7))


def image(h: int = 60, w: int = 80) -> np.ndarray:
    """A blue disc and an orange bar on grey, (h, w, 3) bytes."""
    y, x = np.mgrid[:h, :w] / np.array([h, w])[:, None, None]
    pixels = np.full((h, w, 3), 170, dtype=np.uint8)
    pixels[(x - 0.3) ** 2 + (y - 0.35) ** 2 < 0.02] = (0, 90, 180)
    pixels[(abs(x - 0.75) < 0.12) & (abs(y - 0.7) < 0.08)] = (230, 130, 0)
    return pixels


def region(h: int = 60, w: int = 80) -> Tensor:
    """Where disc and bar are, (h, w) booleans."""
    return torch.as_tensor((image(h, w) != 170).any(-1))


def scores(*places: tuple[float, float]) -> Tensor:
    """Scores (1, 49) that rise at the places."""
    away = (cell_centres(*GRID)[:, None] - torch.tensor(places or PLACES)).square().sum(-1)
    return (5 * torch.exp(-away / (2 * 0.1**2))).amax(-1)[None]


def attend(name: str, *places: tuple[float, float], **options: object) -> fv.Attended:
    """What a mechanism makes of the scores."""
    return fv.mechanism(name, **options).eval()(scores(*places), torch.zeros(1, 49, 2), grid=GRID)
