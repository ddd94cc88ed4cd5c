"""Boxes in fractions of the image, (..., 4) as left, top, right, bottom: overlaps, selection, features inside them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from foveate.errors import DataError, ShapeError
from foveate.ops.grid import cell_centres


class Box(NamedTuple):
    """A rectangle in fractions of the image: left, top, right, bottom, with x0 < x1 and y0 < y1.

    >>> Box(0.25, 0.5, 0.75, 1.0).centre
    (0.5, 0.75)
    """

    x0: float
    y0: float
    x1: float
    y1: float

    @classmethod
    def from_pixels(cls, x0: float, y0: float, x1: float, y1: float, *, width: int, height: int) -> Box:
        """Return the box that covers pixels x0 ≤ x < x1, y0 ≤ y < y1; raises DataError if empty or outside the image.

        Where annotations include the last pixel (Flickr30k Entities), pass x1 + 1 and y1 + 1.

        >>> Box.from_pixels(10, 0, 20, 5, width=40, height=10)
        Box(x0=0.25, y0=0.0, x1=0.5, y1=0.5)
        """
        if not (0 <= x0 < x1 <= width and 0 <= y0 < y1 <= height):
            raise DataError(
                f"Box: expected 0 <= x0 < x1 <= {width} and 0 <= y0 < y1 <= {height}, got {(x0, y0, x1, y1)}; "
                "check which image size the boxes belong to"
            )
        return cls(x0 / width, y0 / height, x1 / width, y1 / height)

    @property
    def centre(self) -> tuple[float, float]:
        """The centre, (x, y)."""
        return (self.x0 + self.x1) / 2, (self.y0 + self.y1) / 2


def box_area(boxes: Tensor) -> Tensor:
    """The areas (N,) of boxes (N, 4); zero where a box is empty."""
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)


def box_intersection(a: Tensor, b: Tensor) -> Tensor:
    """The areas (N, E) of the intersections of boxes (N, 4) and (E, 4)."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clamp(min=0).prod(-1)


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union (N, E) of boxes (N, 4) and (E, 4); zero for two empty boxes.

    >>> box_iou(torch.tensor([[0.0, 0.0, 1.0, 1.0]]), torch.tensor([[0.0, 0.0, 0.5, 1.0]])).tolist()
    [[0.5]]
    """
    shared = box_intersection(a, b)
    union = box_area(a)[:, None] + box_area(b) - shared
    return shared / union.where(union > 0, 1)


def suppress_overlaps(boxes: Tensor, above: float, count: int) -> Tensor:
    """Non-maximum suppression: the positions of at most `count` boxes, in order, that do not overlap an earlier one.

    Args:
        boxes: (N, 4), the best first.
        above: a box is dropped if its IoU with a box that was kept exceeds this.
        count: stop after this many.

    >>> boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.9, 1.0], [0.0, 0.0, 0.4, 1.0]])
    >>> suppress_overlaps(boxes, above=0.5, count=9).tolist()
    [0, 2]
    """
    overlaps = (box_iou(boxes, boxes) > above).tolist()
    kept: list[int] = []
    for place, row in enumerate(overlaps):
        if len(kept) == count:
            break
        if not any(row[other] for other in kept):
            kept.append(place)
    return torch.tensor(kept, dtype=torch.long)


def cell_boxes(H: int, W: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """The cells of a grid as boxes (H·W, 4), in row order.

    >>> cell_boxes(1, 2).tolist()
    [[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]]
    """
    centres, half = cell_centres(H, W, dtype=dtype), torch.tensor([0.5 / W, 0.5 / H], dtype=dtype)
    return torch.cat([centres - half, centres + half], -1)


def pool_boxes(values: Tensor, grid: tuple[int, int], boxes: Tensor) -> Tensor:
    """The mean of the features inside each box, weighted by how much of the box a cell covers.

    `f_r = Σ_n |r ∩ n| v_n / Σ_n |r ∩ n|` over the cells n of the grid

    Args:
        values: (H·W, D) features of the cells, in row order.
        grid: rows and columns.
        boxes: (R, 4); each must overlap the image.

    Returns:
        (R, D)

    >>> pool_boxes(torch.tensor([[1.0], [3.0]]), (1, 2), torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.6, 0.0, 0.9, 1.0]]))
    tensor([[2.],
            [3.]])
    """
    if len(values) != grid[0] * grid[1]:
        raise ShapeError(
            f"pool_boxes: expected values ({grid[0] * grid[1]}, D), got {tuple(values.shape)}; pass a grid"
        )
    shared = box_intersection(boxes, cell_boxes(*grid, dtype=boxes.dtype).to(boxes.device))
    total = shared.sum(-1, keepdim=True)
    if not bool((total > 0).all()):
        raise ShapeError("pool_boxes: expected boxes that overlap the image, got an empty one; remove it")
    return (shared / total).to(values.dtype) @ values
