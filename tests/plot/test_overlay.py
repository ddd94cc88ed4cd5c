"""Attention as a transparent colour over photographs, and the frame of what a model sees."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from foveate import Attended, ShapeError, plot
from foveate.plot.canvas import glow_colours
from foveate.plot.heat import heat, summarise
from tests.plot.drawn import image


def pixels(figure: Figure) -> np.ndarray:
    buffer = BytesIO()
    figure.savefig(buffer, dpi=60)
    return np.asarray(Image.open(buffer).convert("RGB"), dtype=float)


def cropped(weights: torch.Tensor) -> Attended:
    """A map of 4 x 8 cells, of which the middle half is seen."""
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 2:6] = True
    shown = weights.reshape(4, 8) * mask
    return Attended(torch.zeros(1, 0), shown.flatten()[None] / shown.sum(), None, (4, 8), mask.flatten()[None])


def frames(figure: Figure) -> list[Rectangle]:
    found = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]
    return [patch for patch in found if not patch.get_fill()]


def test_the_photograph_shows_through_everywhere() -> None:
    assert glow_colours()(1.0)[3] < 0.7
    assert glow_colours()(0.0)[3] == 0
    dark, light = (np.full((40, 60, 3), value, np.uint8) for value in (40, 220))
    weights = Attended(torch.zeros(1, 0), torch.full((1, 4), 0.25), None, (2, 2))
    one, other = (pixels(plot.overlay(each, ["a"], [weights], original=False, top=1.0)) for each in (dark, light))
    middle = tuple(slice(n // 3, n // 2) for n in one.shape[:2])
    assert np.abs(one[middle] - other[middle]).mean() > 40  # under the strongest colour


def test_a_frame_stands_around_what_is_seen() -> None:
    seen = cropped(torch.rand(32, generator=torch.Generator().manual_seed(0)))
    (frame,) = frames(plot.overlay(image(), ["a"], [seen]))
    assert frame.get_bbox().bounds == pytest.approx((0.25, 0.0, 0.5, 1.0))
    assert len(frames(plot.show(image(), seen))) == 1
    whole = Attended(seen.context, seen.weights, None, seen.grid)
    assert not frames(plot.overlay(image(), ["a"], [whole]))


def test_maps_and_fits_know_the_crop() -> None:
    seen = cropped(torch.ones(32))
    shown = heat(seen, cells=True)
    assert shown[:, 2:6].tolist() == [[1.0] * 4] * 4  # even over what is seen, not over the image
    assert summarise(seen) == "area 50 %"
    fitted = seen.fit("continuous-softmax")
    assert summarise(fitted) == "area 50 %"
    drawn = heat(fitted, cells=False)
    assert float(drawn[:, :60].abs().max()) == 0
    assert float(drawn[:, 60:180].mean()) == pytest.approx(1, abs=1e-4)


def test_the_scale_is_linear_and_says_where_it_ends() -> None:
    weights = torch.full((1, 400), 1.0)
    weights[0, 0] = 300.0
    figure = plot.overlay(image(), ["a"], [Attended(torch.zeros(1, 0), weights / weights.sum(), None, (20, 20))])
    labels = [text.get_text() for text in figure.axes[-1].get_xticklabels()]
    assert labels[0] == "none"
    assert labels[-1].startswith("≥ ")  # one cell of 400 does not decide the scale
    even = plot.overlay(image(), ["a"], [Attended(torch.zeros(1, 0), torch.full((1, 4), 0.25), None, (2, 2))])
    assert [text.get_text() for text in even.axes[-1].get_xticklabels()] == ["none", "1.5×"]


def test_one_image_per_panel() -> None:
    seen = Attended(torch.zeros(1, 0), torch.full((1, 4), 0.25), None, (2, 2))
    figure = plot.overlay([image(), image()], ["first", "second"], [seen, seen], heading="two $frames$")
    assert [axes.get_title() for axes in figure.axes[:2]] == ["first", "second"]
    assert figure.get_suptitle() == "two $frames$"
    with pytest.raises(ShapeError, match=r"got 1 images, 2 titles and 2 attentions"):
        plot.overlay([image()], ["a", "b"], [seen, seen])
