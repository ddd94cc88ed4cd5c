"""What is laid over the image."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import foveate as fv
from foveate.ops import cell_centres
from foveate.ops.radial import scale_of_covariance
from foveate.plot.canvas import heat_colours, heat_scale, read_image
from foveate.plot.layers import FRACTIONS, _inside, contour_levels, draw_edges, smooth


def test_contours_hold_their_share_of_a_gaussian() -> None:
    """Inside the contour of the fraction s a Gaussian is above (1 − s) times its peak."""
    p = fv.Gaussian(torch.tensor([0.5, 0.5]), 0.01 * torch.eye(2))
    levels = contour_levels(p.pdf(cell_centres(200, 200)).reshape(200, 200))
    expected = [(1 - share) / (2 * math.pi * 0.01) for share in FRACTIONS]
    assert levels == pytest.approx(expected, rel=0.02)


def test_no_mass_has_no_contours() -> None:
    assert contour_levels(torch.zeros(5, 5)) == []


def test_the_zero_level_is_where_the_mixture_begins() -> None:
    means = torch.tensor([[0.3, 0.4], [0.5, 0.5], [0.9, 0.9]], dtype=torch.float64)
    turned = torch.tensor([[0.01, 0.006], [0.006, 0.008]], dtype=torch.float64).expand(3, 2, 2)
    mixture = fv.Mixture(
        fv.TruncatedParaboloid(means, scale_of_covariance(turned, 1)), torch.tensor([0.4, 0.6, 0.0]).double()
    )
    points = cell_centres(50, 50, dtype=torch.float64)
    assert torch.equal(_inside(mixture.ellipses(1), points) > 0, mixture.pdf(points) > 0)


def test_smoothing_keeps_zeros_and_cell_centres() -> None:
    shown = torch.tensor([[0.0, 2.0, 4.0], [1.0, 0.0, 3.0]])
    fine = smooth(shown)
    steps = fine.shape[0] // 2, fine.shape[1] // 3
    assert not fine[: steps[0], : steps[1]].any()
    at = fine[steps[0] // 2 :: steps[0], steps[1] // 2 :: steps[1]]
    assert (at - shown).abs().max() < 0.05


def test_edges_run_around_every_cell_of_the_support() -> None:
    axes = Figure().subplots()
    draw_edges(axes, np.array([[True, True], [False, False]]))
    (lines,) = (c for c in axes.collections if isinstance(c, LineCollection))
    ends = {tuple(map(tuple, line)) for line in lines.get_segments()}
    assert len(ends) == 6
    assert ((0.0, 0.5), (0.5, 0.5)) in ends
    assert ((0.5, 0.0), (0.5, 0.5)) not in ends


def test_colours_only_grow_darker_on_paper() -> None:
    """Over white, so that grey printing and every kind of colour vision keep the order."""
    colours = heat_colours()(np.linspace(0, 1, 64))
    over_white = 1 - colours[:, 3:] * (1 - colours[:, :3])
    light = over_white @ [0.2126, 0.7152, 0.0722]
    assert light[0] == pytest.approx(1)
    assert (np.diff(light) < 0).all()


def test_the_scale_of_nothing_is_not_empty() -> None:
    assert heat_scale(0)(0.0) == 0


def test_images_of_every_kind_become_floats() -> None:
    grey = np.array([[0, 255]], dtype=np.uint8)
    assert read_image("test", grey).tolist() == [[[0, 0, 0], [1, 1, 1]]]
    assert read_image("test", torch.ones(2, 3, 4)).shape == (2, 3, 3)
    assert read_image("test", None) is None


def test_images_that_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match=r"show: expected an image \(h, w\).*got \(3, 8, 8\); put the channels last"):
        read_image("show", torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match="show: expected uint8 or floats from 0 to 1, got floats from -2 to 1; undo"):
        read_image("show", np.array([[-2.0, 1.0]]))


def test_one_colour_map_everywhere() -> None:
    """Attention has the same colours in the library, the documentation and the examples."""
    root = Path(__file__).parents[2]
    sources = [path for place in ("foveate", "docs", "examples") for path in (root / place).rglob("*.py")]
    assert sources
    for path in sources:
        others = re.findall(
            r"cmap=(?!(?:heat|glow)_colours\(\))[^,)\n]*|get_cmap\([^)]*\)", path.read_text(encoding="utf-8")
        )
        assert others == [], path
