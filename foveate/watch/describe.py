"""Attention in numbers: ellipses and boxes with weights, and what is nowhere in particular."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from foveate.attention import Attended
from foveate.errors import ShapeError


@dataclass(frozen=True)
class Ellipse:
    """One thing that is attended to, in fractions of the image (angles in a square image).

    Attributes:
        weight: fraction of the attention.
        centre: (x, y).
        radii: long and short half-axis of the contour around half of its mass.
        angle: of the long axis, in radians.
        box: left, top, right, bottom of the contour, cut at the borders of the image.
    """

    weight: float
    centre: tuple[float, float]
    radii: tuple[float, float]
    angle: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Description:
    """What an attention map looks at.

    Attributes:
        ellipses: by weight, the largest first.
        background: fraction of the attention that is nowhere in particular.
    """

    ellipses: tuple[Ellipse, ...]
    background: float

    @property
    def count(self) -> int:
        """K, the number of ellipses."""
        return len(self.ellipses)

    def __str__(self) -> str:
        rows = [
            f"{100 * e.weight:.0f} % at ({e.centre[0]:.2f}, {e.centre[1]:.2f}), box "
            + " ".join(f"{side:.2f}" for side in e.box)
            for e in self.ellipses
            if e.weight >= 0.005  # the others would be printed as 0 %
        ]
        return "; ".join([*rows, f"background {100 * self.background:.0f} %"])


def describe(attended: Attended, index: int = 0, level: float = 0.5) -> Description:
    """Put the density of one example into numbers.

    Args:
        attended: attention with a density over an image and no query axes; `attended.fit("multimodal")` makes one.
        index: the example.
        level: fraction of the mass of a component that its ellipse holds.

    >>> weights = torch.zeros(1, 64).index_fill(1, torch.tensor([9, 54]), 0.5)
    >>> found = describe(Attended(torch.zeros(1, 0), weights, grid=(8, 8)).fit("multimodal"))
    >>> found.count, [round(ellipse.weight, 2) for ellipse in found.ellipses]
    (2, [0.5, 0.5])
    """
    density = attended.density
    if density is None or density.mean.ndim != 2 or density.mean.shape[-1] != 2:
        raise ShapeError(
            "describe: expected attention with a density over an image and one row per example, got "
            f"{'none' if density is None else tuple(density.mean.shape)}; call attended.fit(name) first"
        )
    one = density[index].ellipses(level)
    rows = zip(*(part[0].detach().cpu().double().tolist() for part in _rows(one)), strict=True)
    found = [_ellipse(*row) for row in rows if row[3] > 0]
    background = getattr(density, "background", None)
    share = float(background.detach()[index]) if isinstance(background, torch.Tensor) else 0.0
    return Description(tuple(sorted(found, key=lambda ellipse: -ellipse.weight)), share)


def _rows(ellipses: object) -> tuple[torch.Tensor, ...]:
    """Centre (1, K, 2), radii (1, K, 2), angle and weight (1, K)."""
    centre, radii, angle, weight = (getattr(ellipses, name) for name in ("centre", "radii", "angle", "weight"))
    return centre, radii, angle, weight


def _ellipse(centre: list[float], radii: list[float], angle: float, weight: float) -> Ellipse:
    (x, y), (a, b) = centre, radii
    # The extent of a rotated ellipse along the axes of the image.
    wide, tall = (
        math.hypot(a * math.cos(angle), b * math.sin(angle)),
        math.hypot(a * math.sin(angle), b * math.cos(angle)),
    )
    box = (max(x - wide, 0.0), max(y - tall, 0.0), min(x + wide, 1.0), min(y + tall, 1.0))
    return Ellipse(weight, (x, y), (a, b), angle, box)
