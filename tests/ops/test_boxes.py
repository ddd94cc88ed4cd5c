"""Boxes: overlaps against a pixel count, suppression, pooling."""

from __future__ import annotations

import pytest
import torch

from foveate.errors import ShapeError
from foveate.ops.boxes import box_area, box_intersection, box_iou, cell_boxes, pool_boxes, suppress_overlaps


def random_boxes(n: int, seed: int = 0, side: int = 20) -> torch.Tensor:
    """Boxes whose corners lie on a raster."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.randint(0, side - 1, (n, 2), generator=generator)
    size = torch.stack([torch.randint(1, side, (n,), generator=generator) for _ in range(2)], -1)
    return torch.cat([low, (low + size).clamp(max=side)], -1).double() / side


def pixels(box: torch.Tensor, side: int = 20) -> torch.Tensor:
    mask = torch.zeros(side, side, dtype=torch.bool)
    x0, y0, x1, y1 = (box * side).round().int().tolist()
    mask[y0:y1, x0:x1] = True
    return mask


def test_overlaps_are_those_of_the_pixels() -> None:
    a, b = random_boxes(7), random_boxes(5, seed=1)
    for i, one in enumerate(a):
        for j, other in enumerate(b):
            both, either = (pixels(one) & pixels(other)).sum(), (pixels(one) | pixels(other)).sum()
            assert float(box_intersection(a, b)[i, j]) == pytest.approx(int(both) / 400)
            assert float(box_iou(a, b)[i, j]) == pytest.approx(int(both) / int(either))


def test_empty_boxes_have_no_overlap() -> None:
    empty = torch.zeros(1, 4)
    assert box_area(empty).item() == 0
    assert box_iou(empty, empty).item() == 0


def test_suppression_keeps_what_overlaps_nothing_better() -> None:
    boxes = random_boxes(40)
    kept = suppress_overlaps(boxes, above=0.3, count=99)
    overlaps = box_iou(boxes, boxes) > 0.3
    assert kept[0] == 0
    for place in range(40):
        better = [k for k in kept.tolist() if k < place and overlaps[place, k]]
        assert (place in kept.tolist()) == (not better)
    assert suppress_overlaps(boxes, above=0.3, count=3).tolist() == kept[:3].tolist()
    assert suppress_overlaps(boxes[:0], above=0.3, count=3).tolist() == []


def test_pooling_is_the_mean_over_pixels() -> None:
    values = torch.randn(4 * 5, 3, dtype=torch.float64)
    boxes = random_boxes(6)
    fine = values.reshape(4, 5, 3).repeat_interleave(5, 0).repeat_interleave(4, 1)
    for box, pooled in zip(boxes, pool_boxes(values, (4, 5), boxes), strict=True):
        torch.testing.assert_close(pooled, fine[pixels(box)].mean(0))


def test_a_cell_pools_itself() -> None:
    values = torch.randn(6, 2)
    torch.testing.assert_close(pool_boxes(values, (2, 3), cell_boxes(2, 3)), values)


def test_pooling_raises_for_what_has_no_features() -> None:
    with pytest.raises(ShapeError, match=r"pool_boxes: expected values \(6, D\), got \(5, 2\)"):
        pool_boxes(torch.zeros(5, 2), (2, 3), cell_boxes(2, 3))
    with pytest.raises(ShapeError, match="pool_boxes: expected boxes that overlap the image"):
        pool_boxes(torch.zeros(6, 2), (2, 3), torch.zeros(1, 4))
