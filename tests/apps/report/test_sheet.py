"""A figure of several panels becomes a grid of images with text around them."""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

import foveate as fv
from foveate.apps.report.page import html_sheet


def images(html: str) -> list[np.ndarray]:
    found = re.findall(r'src="data:image/png;base64,([^"]*)"', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(data)))) for data in found]


def make_maps(count: int = 2) -> Figure:
    scores, values = torch.linspace(0, 2, 49)[None], torch.zeros(1, 49, 1)
    names = ["softmax", "multimodal", *(f"softmax {n}" for n in range(count - 2))]
    maps = {name: fv.mechanism(name.split()[0]).eval()(scores, values, grid=(7, 7)) for name in names}
    return fv.plot.compare(
        np.full((40, 60, 3), (255, 0, 0), np.uint8), {f"<{name}>": one for name, one in maps.items()}
    )


def test_every_panel_is_an_image_with_its_title_as_text() -> None:
    html = html_sheet(make_maps(), 'both "maps"')
    assert 'aria-label="both &quot;maps&quot;"' in html
    assert re.findall("<figcaption>(.*?)</figcaption>", html) == ["image", "&lt;softmax&gt;", "&lt;multimodal&gt;"]
    assert "<small>area 100 %" in html
    photograph, *others = images(html)
    assert len(others) == 2
    inside = photograph[3:-3, 3:-3]
    assert (inside == (255, 0, 0)).all()  # nothing but the image: no title, no white paper
    assert abs(photograph.shape[1] / photograph.shape[0] - 1.5) < 0.05


def test_the_colour_bar_and_the_meaning_of_lines_are_text() -> None:
    html = html_sheet(make_maps(), "maps")
    assert html.count('class="ramp"') == 1
    assert "even (1×)" in html
    assert '<p class="soft">lines: 25, 50, 75, 95 % of the mass' in html


def test_many_panels_are_smaller() -> None:
    assert 'class="sheet maps"' in html_sheet(make_maps(), "few")
    assert 'class="sheet many"' in html_sheet(make_maps(9), "many")


def test_charts_keep_their_axes_and_have_one_height() -> None:
    figure = Figure(figsize=(6, 2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1])
    right.plot([0, 1], [0, 1])
    right.set_xlabel("a label below")
    html = html_sheet(figure, "curves")
    one, other = images(html)
    assert 'class="sheet charts"' in html
    assert one.shape[0] == other.shape[0]
    assert one.shape[1] > left.get_window_extent().width  # with the numbers on its left
