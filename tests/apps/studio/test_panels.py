"""Maps as HTML: one panel a mechanism, the lines where they belong, every word escaped."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.apps.studio.attention_maps import attend
from foveate.apps.studio.panels import draw_ellipses, draw_panels
from foveate.attention import MECHANISMS, Attended
from foveate.ops import Gaussian
from foveate.ops.mixture import Mixture
from foveate.plot.heat import select_example

SAID = re.compile("looks |half of the attention is on|spread over")

SCORES = torch.zeros(16)
SCORES[5] = 3.0


def tree(html: str) -> ET.Element:
    closed = re.sub(r"(<img[^>]*|<br)>", r"\1/>", html.replace("&nbsp;", " "))
    return ET.fromstring(f"<div>{closed}</div>")


def draw(names, pixels=None, truth=None) -> list[ET.Element]:
    return tree(draw_panels(pixels, attend(SCORES, (4, 4), names, {}), truth)).findall(".//figure")


def test_every_mechanism_has_a_panel_with_its_numbers():
    figures = draw(MECHANISMS)
    assert [figure.find("figcaption").text for figure in figures] == list(MECHANISMS)
    assert all(SAID.search("".join(figure.find("small").itertext())) for figure in figures)


def test_the_truth_is_outlined_on_every_map():
    truth = np.zeros((8, 8), bool)
    truth[2:4, 2:4] = True
    pixels = np.full((8, 12, 3), 200, np.uint8)
    html = draw_panels(pixels, attend(SCORES, (4, 4), ["softmax", "tvmax"], {}), truth, with_image=True)
    figures = tree(html).findall(".//figure")
    assert [figure.find("figcaption").text for figure in figures] == ["image", "softmax", "tvmax"]
    assert [len(figure.findall(".//path[@class='fv-truth']")) for figure in figures] == [0, 1, 1]
    assert "inside the true region (even: 6 %)" in figures[1].find("small").text
    assert [len(figure.findall(".//img")) for figure in figures] == [1, 2, 2]
    assert "aspect-ratio:1.5" in figures[0].find("div").get("style")
    assert "true region" in html[html.index("fv-legend") :]


def test_all_maps_of_a_row_share_one_colour_bar():
    html = draw_panels(None, attend(SCORES, (4, 4), ["softmax", "sparsemax"], {}))
    assert html.count("fv-ramp") == 1
    assert "16×" in html  # all of the attention on one of 16 cells
    assert "even (1×)" in html
    assert "fv-ramp" not in draw_panels(None, attend(SCORES, (4, 4), ["softmax"], {}), with_scale=False)
    assert "fv-small" in draw_panels(None, attend(SCORES, (4, 4), ["softmax"], {}), size="small")


def test_colours_are_where_the_attention_is():
    sparse = draw(["sparsemax"])[0].find(".//img").get("src")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sparse.partition(",")[2]))))
    alpha = pixels[..., 3]
    rows, columns = np.nonzero(alpha)
    side = len(alpha) / 4
    assert (rows.min() // side, rows.max() // side, columns.min() // side, columns.max() // side) == (1, 1, 1, 1)


def test_lines_are_edges_of_cells_or_ellipses():
    edge = draw(["sparsemax"])[0].find(".//path")
    assert edge.get("d").count("M") == 4  # one cell has four sides
    assert edge.get("d").startswith("M25 25L50 25")
    assert draw(["softmax"])[0].find(".//svg") is None
    gaussian = draw(["continuous-softmax"])[0].findall(".//ellipse")
    assert [e.get("class") for e in gaussian] == ["fv-line", "fv-line"]
    ends = draw(["continuous-sparsemax"])[0].findall(".//ellipse")
    assert [e.get("class") for e in ends] == ["fv-line", "fv-line", "fv-edge"]
    x, y = map(float, re.match(r"translate\((\S+) (\S+)\)", ends[0].get("transform")).groups())
    assert (x, y) == pytest.approx((37.5, 37.5), abs=12)


def test_titles_are_escaped():
    seen = attend(SCORES, (4, 4), ["softmax"], {})["softmax"]
    assert "<b>" not in draw_panels(None, {"<b>": seen})


@pytest.mark.parametrize(("light", "drawn"), [(0.3, 4), (0.001, 2)])
def test_components_without_weight_have_no_ellipses(light, drawn):
    several = Gaussian(torch.tensor([[[0.3, 0.3], [0.7, 0.7]]]), 0.01 * torch.eye(2).expand(1, 2, 2, 2))
    density = Mixture(several, torch.tensor([[1 - light, light]]))
    one = select_example("panels", Attended(torch.zeros(1, 1), torch.full((1, 4), 0.25), density, (2, 2)))
    assert draw_ellipses(one.density).count("<ellipse") == drawn  # around 50 and 95 % of each


def test_a_map_that_is_zero_nowhere_says_where_half_of_it_is():
    x = torch.linspace(0, 1, 14)
    two = torch.exp(-((x[:, None] - 0.25) ** 2 + (x - 0.25) ** 2) / 0.01)
    two = two + two.flip(0, 1) + 1e-3
    drawn = {"two": two.flatten() / two.sum(), "even": torch.full((196,), 1 / 196)}
    shown = {name: Attended(torch.zeros(1, 1), weights[None], grid=(14, 14)) for name, weights in drawn.items()}
    html = draw_panels(None, shown)
    assert "looks everywhere" not in html
    assert re.search(r"half of the attention is on \d %", html)
    assert "spread over the whole image" in html
