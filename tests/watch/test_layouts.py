"""Tokens on the image: mass is kept, boxes fall where they should, and errors say what to pass."""

from __future__ import annotations

import math

import pytest
import torch

import foveate as fv
from foveate.watch.layouts import Layout, grid_boxes, map_grid, tile_boxes, window_boxes
from foveate.watch.places import Setting, visible_region


class Crop:
    do_resize, do_center_crop = True, True
    size, crop_size = {"shortest_edge": 40}, {"height": 32, "width": 32}


class Config:
    model_type = "x"


def region(processor, size):
    return visible_region(Setting(Config(), {}, size, processor))


def test_a_regular_grid_is_a_reshape():
    weights = torch.rand(2, 12)
    layout = Layout.regular(torch.arange(12), 3, 4)
    assert layout.grid == (3, 4)
    torch.testing.assert_close(layout.spread(weights), weights.reshape(2, 3, 4))


def test_mass_is_kept_inside_and_dropped_outside():
    layout = Layout.of_boxes(torch.arange(2), torch.tensor([[0.0, 0.0, 0.5, 1.0], [0.75, 0.0, 1.25, 1.0]]).double())
    assert layout.spread(torch.tensor([1.0, 1.0])).sum().item() == pytest.approx(1.5)
    assert layout.attended(torch.tensor([[1.0, 1.0]])).map(4, 4).sum().item() == pytest.approx(1.0)


def test_tokens_without_a_place_are_ignored():
    boxes = torch.cat([grid_boxes(1, 2), torch.full((1, 4), math.nan).double()])
    assert Layout.of_boxes(torch.arange(3), boxes).spread(torch.tensor([1.0, 2.0, 9.0])).tolist() == [[1.0, 2.0]]


def test_tiles_and_thumbnail():
    boxes = tile_boxes(1, 2, 2, thumbnail=True)
    assert len(boxes) == 12
    assert boxes[4].tolist() == [0.5, 0.0, 0.75, 0.5]
    layout = Layout.of_boxes(torch.arange(12), boxes)
    assert layout.grid == (2, 4)
    # The thumbnail's first token covers the upper left quarter: half a column of tiles each.
    torch.testing.assert_close(layout.spread(torch.eye(12)[8])[0], torch.tensor([0.5, 0.5, 0, 0]))


def test_windows_undo_the_shift():
    boxes = window_boxes(4, 4, 2, 1)
    assert boxes[0].tolist() == [0.25, 0.25, 0.5, 0.5]
    assert sorted(map(tuple, boxes.tolist())) == sorted(map(tuple, grid_boxes(4, 4).tolist()))
    padded = window_boxes(3, 3, 2, 0)
    assert int(padded.isnan().any(-1).sum()) == 16 - 9


def test_map_grid_is_fine_enough_for_every_box():
    boxes = grid_boxes(4, 4, (0.13, 0.0, 0.87, 1.0))
    H, W = map_grid(boxes)
    assert H == 4
    layout = Layout.of_boxes(torch.arange(16), boxes)
    for token in range(16):
        peak = int(layout.spread(torch.eye(16)[token]).argmax())
        x, y = (peak % W + 0.5) / W, (peak // W + 0.5) / H
        x0, y0, x1, y1 = boxes[token].tolist()
        assert x0 < x < x1
        assert y0 < y < y1


def test_visible_regions():
    assert region(None, (60, 100)) == (0, 0, 1, 1)
    # 60 x 100 becomes 40 x 66, of which the middle 32 x 32 are seen.
    assert region(Crop(), (60, 100)) == pytest.approx((17 / 66, 4 / 40, 49 / 66, 36 / 40))

    class LlavaPadded:
        do_pad, do_center_crop = True, False

    assert region(LlavaPadded(), (60, 100)) == pytest.approx((0, -20 / 60, 1, 80 / 60))


def test_errors_say_what_to_pass():
    with pytest.raises(fv.ShapeError, match="one box per image token"):
        Layout(torch.arange(3), grid_boxes(2, 2), (2, 2))
    with pytest.raises(fv.ShapeError, match=r"expected the input 'pixel_values'.*grid= and tokens="):
        Setting(Config(), {}).need("pixel_values")


def test_a_crop_is_known_to_the_map():
    layout = Layout.regular(torch.arange(16), 4, 4, (0.25, 0.0, 0.75, 1.0))
    seen = layout.attended(torch.ones(2, 16))
    assert layout.region == (0.25, 0.0, 0.75, 1.0)
    assert torch.equal(seen.mask, (seen.weights > 0))
    assert float(seen.mask.float().mean()) == 0.5
    assert Layout.regular(torch.arange(16), 4, 4).attended(torch.ones(1, 16)).mask is None
    padded = Layout.regular(torch.arange(16), 4, 4, (-0.25, 0.0, 1.25, 1.0))
    assert padded.region == (0.0, 0.0, 1.0, 1.0)
    assert padded.attended(torch.ones(1, 16)).mask is None
