"""Attention as labels of FiftyOne."""

from __future__ import annotations

import math

import pytest
import torch

from foveate import Attended, Gaussian, mechanism
from tests.cases import draw


def test_heatmaps_and_boxes():
    seen = mechanism("k-mca").eval()(draw(2, 3, 12), draw(2, 12, 5, seed=1), grid=(3, 4))
    labels = seen.to_fiftyone("look")
    assert len(labels) == 2
    heatmap, detections = labels[0]["heatmap"], labels[0]["detections"]
    assert heatmap["_cls"] == "Heatmap"
    assert heatmap["map"].sum() == pytest.approx(1, abs=1e-6)
    assert heatmap["range"] == [0.0, pytest.approx(heatmap["map"].max())]
    assert detections["_cls"] == "Detections"
    assert {one["label"] for one in detections["detections"]} == {"look"}
    assert sum(one["confidence"] for one in detections["detections"]) == pytest.approx(1, abs=1e-6)


def test_a_box_encloses_its_ellipse_and_grows_with_the_level():
    """A long ellipse at 45 degrees: half its box is the root of the variances, times the radius of the level."""
    covariance = torch.tensor([[[0.02, 0.01], [0.01, 0.02]]], dtype=torch.float64)
    density = Gaussian(torch.tensor([[0.5, 0.4]], dtype=torch.float64), covariance)
    seen = Attended(torch.zeros(1, 2), torch.full((1, 4), 0.25), density, (2, 2))
    for level in (0.5, 0.9):
        half = math.sqrt(0.02) * math.sqrt(-2 * math.log(1 - level))
        box = seen.to_fiftyone(level=level)[0]["detections"]["detections"][0]["bounding_box"]
        assert box == pytest.approx([0.5 - half, 0.4 - half, 2 * half, 2 * half])
    assert Attended(torch.zeros(1, 2), torch.full((1, 4), 0.25), None, (2, 2)).to_fiftyone()[0]["detections"] == {
        "_cls": "Detections",
        "detections": [],
    }
