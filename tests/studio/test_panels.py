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

from foveate.attention import MECHANISMS
from foveate.studio.attention_maps import attend
from foveate.studio.panels import draw_panels

SCORES = torch.zeros(16)
SCORES[5] = 3.0


def tree(html: str) -> ET.Element:
    closed = re.sub(r"(<img[^>]*)>", r"\1/>", html.replace("&nbsp;", " "))
    return ET.fromstring(f"<div>{closed}</div>")


def draw(names, pixels=None, truth=None) -> list[ET.Element]:
    return tree(draw_panels(pixels, attend(SCORES, (4, 4), names, {}), truth)).findall(".//figure")


def test_every_mechanism_has_a_panel_with_its_numbers():
    figures = draw(MECHANISMS)
    assert [figure.find("figcaption").text for figure in figures] == list(MECHANISMS)
    assert all("area" in figure.find("small").text for figure in figures)


def test_the_image_comes_first_and_the_truth_last():
    truth = np.zeros((8, 8), bool)
    truth[2:4, 2:4] = True
    figures = draw(["softmax"], np.full((8, 12, 3), 200, np.uint8), truth)
    assert [figure.find("figcaption").text for figure in figures] == ["image", "softmax", "true region"]
    assert "JS" in figures[1].find("small").text
    assert [len(figure.findall(".//img")) for figure in figures] == [1, 2, 2]
    assert "aspect-ratio:1.5" in figures[0].find("div").get("style")


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
    assert edge.get("d").startswith("M25.00 25.00L50.00 25.00")
    assert draw(["softmax"])[0].find(".//svg") is None
    gaussian = draw(["continuous-softmax"])[0].findall(".//ellipse")
    assert [e.get("class") for e in gaussian] == ["fv-line", "fv-line"]
    ends = draw(["continuous-sparsemax"])[0].findall(".//ellipse")
    assert [e.get("class") for e in ends] == ["fv-line", "fv-line", "fv-edge"]
    x, y = map(float, re.match(r"translate\((\S+) (\S+)\)", ends[0].get("transform")).groups())
    assert (x, y) == pytest.approx((37.5, 37.5), abs=12)


def test_titles_are_escaped():
    seen = attend(SCORES, (4, 4), ["softmax"], {})["softmax"]
    html = draw_panels(None, {"<b>": seen}, note="<i>")
    assert "<b>" not in html
    assert "<i>" not in html
