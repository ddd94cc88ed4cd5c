"""Figures against kept ones, without their letters, whose shapes differ from one font library to the next.

`python -m tests.plot.test_references` redraws the references; look at them before committing.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

import foveate as fv
from foveate import plot
from tests.plot.drawn import PLACES, attend, image, region

KEPT = Path(__file__).parent / "references"
BOXES = torch.tensor([[0.12, 0.1, 0.48, 0.6], [0.6, 0.6, 0.9, 0.8], [0.05, 0.7, 0.3, 0.95]])
NAMES = ("softmax", "sparsemax", "continuous-softmax", "continuous-sparsemax", "k-mca")

FIGURES: dict[str, Callable[[], Figure]] = {
    "show": lambda: plot.show(image(), attend("multimodal"), truth=region()),
    "compare": lambda: plot.compare(image(), {name: attend(name) for name in NAMES}, truth=region()),
    "cells": lambda: plot.show(image(), attend("tvmax"), style="cells"),
    "people": lambda: plot.show(image(), attend("entmax"), truth=attend("softmax").map(14, 14)[0]),
    "paraboloids": lambda: plot.show(None, attend("multimodal-sparse", family="truncated-paraboloid")),
    "strip": lambda: plot.strip(image(), ["disc", "bar"], [attend("sparsemax", place) for place in PLACES]),
    "boxes": lambda: plot.show(image(), fv.Attended(torch.zeros(1, 1), torch.tensor([[0.6, 0.3, 0.1]])), boxes=BOXES),
    "words": lambda: plot.words(["a", "blue", "disc"], fv.Attended(torch.zeros(1, 1), torch.tensor([[0.1, 0.3, 0.6]]))),
    "profiles": lambda: plot.profiles(
        {
            "Gaussian": fv.Gaussian(torch.tensor([0.4]), torch.tensor([[0.01]])),
            "paraboloid": fv.TruncatedParaboloid(torch.tensor([0.6]), torch.tensor([[0.001]])),
        }
    ),
}


def render(figure: Figure) -> Image.Image:
    """The figure at 60 dots per inch with every text hidden."""
    figure.set_layout_engine("none")
    for text in figure.findobj(Text):
        text.set_alpha(0)
        text.set_path_effects([])
    buffer = BytesIO()
    figure.savefig(buffer, dpi=60)
    return Image.open(buffer).convert("RGB")


def difference(drawn: Image.Image, kept: Image.Image) -> float:
    """Root mean square over pixels and colours, 0 to 255, after a blur over 4 x 4 pixels."""
    assert drawn.size == kept.size
    small = [np.asarray(image.reduce(4), dtype=float) for image in (drawn, kept)]
    return float(np.sqrt(np.mean((small[0] - small[1]) ** 2)))


@pytest.mark.parametrize("name", FIGURES)
def test_figures_look_as_they_did(name: str) -> None:
    with Image.open(KEPT / f"{name}.png") as kept:
        assert difference(render(FIGURES[name]()), kept.convert("RGB")) < 2


def test_the_comparison_sees_another_attention() -> None:
    kept = Image.open(KEPT / "cells.png").convert("RGB")
    assert difference(render(plot.show(image(), attend("softmax"), style="cells")), kept) > 4


if __name__ == "__main__":
    KEPT.mkdir(exist_ok=True)
    for name, make in FIGURES.items():
        render(make()).save(KEPT / f"{name}.png", optimize=True)
