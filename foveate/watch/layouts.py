"""Where image tokens lie: their positions among the keys of an attention layer, and their boxes on the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.attention import Attended
from foveate.errors import ShapeError
from foveate.watch.reductions import normalise

Region = tuple[float, float, float, float]
WHOLE: Region = (0.0, 0.0, 1.0, 1.0)
FINEST = 256  # rows or columns of a map whose boxes fit no coarser grid


@dataclass(frozen=True, eq=False)
class Layout:
    """Image tokens among the keys, and what part of the image each one shows.

    Attributes:
        tokens: (N,) positions among the keys.
        boxes: (N, 4) left, top, right, bottom in fractions of the image; beyond 0 and 1 where the model sees padding,
            NaN for tokens that show no place (the ends of rows).
        grid: rows and columns of the maps.
        times: (N, 2) the frame where each token begins and the one before which it ends; None for one image.

    >>> layout = Layout.regular(torch.arange(1, 5), 2, 2)
    >>> layout.attended(torch.tensor([[0.1, 0.2, 0.3, 0.4]])).map().shape
    torch.Size([1, 2, 2])
    """

    tokens: Tensor
    boxes: Tensor
    grid: tuple[int, int]
    times: Tensor | None = None

    def __post_init__(self) -> None:
        if self.boxes.shape != (len(self.tokens), 4):
            raise ShapeError(
                f"Layout: expected one box per image token, got {len(self.tokens)} tokens and boxes "
                f"{tuple(self.boxes.shape)}; pass grid=(rows, columns) and tokens=positions that belong together"
            )

    @classmethod
    def of_boxes(cls, tokens: Tensor, boxes: Tensor) -> Layout:
        """The layout whose grid is the coarsest on which the smallest boxes are whole cells."""
        return cls(tokens, boxes, map_grid(boxes))

    @classmethod
    def regular(cls, tokens: Tensor, H: int, W: int, region: Region = WHOLE) -> Layout:
        """Tokens in row order on a grid that covers a region of the image."""
        return cls.of_boxes(tokens, grid_boxes(H, W, region))

    @classmethod
    def of_frames(cls, layouts: Sequence[Layout], times: Sequence[tuple[int, int]]) -> Layout:
        """The layout of several images, or of frames that some tokens share, on one grid.

        Args:
            layouts: of each image; their tokens follow each other where all count from the same.
            times: the first frame of each and the one after its last.
        """
        counts = [len(layout.tokens) for layout in layouts]
        tokens = [layout.tokens for layout in layouts]
        if len(layouts) > 1 and torch.equal(tokens[0][:1], tokens[1][:1]):
            tokens = list(torch.arange(sum(counts)).split(counts))
        boxes = torch.cat([layout.boxes for layout in layouts])
        spans = torch.tensor(times, dtype=torch.float64).repeat_interleave(torch.tensor(counts), 0)
        return cls(torch.cat(tokens), boxes, map_grid(boxes), spans)

    @property
    def frames(self) -> int:
        """T, the number of frames; 1 for one image."""
        return 1 if self.times is None else round(float(self.times.max()))

    def spread(self, weights: Tensor) -> Tensor:
        """Spread the weights (..., N) of the tokens evenly over their boxes and collect them on the grid, (..., H, W).

        Of several images (..., T, H, W), evenly over the frames of a token too. What falls outside the image is
        dropped, and so are tokens without a place.
        """
        placed = ~self.boxes.isnan().any(-1)
        boxes = self.boxes[placed].to(weights)
        across = _overlap(boxes[:, 0], boxes[:, 2], self.grid[1])
        down = _overlap(boxes[:, 1], boxes[:, 3], self.grid[0])
        kept = weights[..., placed.to(weights.device)]
        if self.times is None:
            return torch.einsum("...n,nh,nw->...hw", kept, down, across)
        times = self.times[placed].to(weights) / self.frames
        return torch.einsum(
            "...n,nt,nh,nw->...thw", kept, _overlap(times[:, 0], times[:, 1], self.frames), down, across
        )

    def at_tokens(self, cells: Tensor) -> Tensor:
        """The mean of values of the cells (H, W) over the box of each token, (N,); 0 for a token without a place."""
        boxes = self.boxes.nan_to_num().to(cells)
        across = _overlap(boxes[:, 0], boxes[:, 2], self.grid[1])
        down = _overlap(boxes[:, 1], boxes[:, 3], self.grid[0])
        return torch.einsum("hw,nh,nw->n", cells, down, across).nan_to_num()

    def attended(self, weights: Tensor) -> Attended:
        """The weights (B, ..., N) of the image tokens as attention over the image; they sum to one.

        Its mask is True where the model sees the image, None if it sees all of it.
        """
        cells, seen = self.spread(weights.float()), self.seen
        cells = cells if seen is None else cells * seen.to(cells)
        cells = normalise(cells.flatten(-2 if self.times is None else -3))
        mask = None if seen is None else seen.flatten().to(cells.device).expand(len(cells), -1)
        grid: Any = self.grid if self.times is None else (self.frames, *self.grid)
        return Attended(cells.new_zeros(*cells.shape[:-1], 0), cells, None, grid, mask)

    @property
    def seen(self) -> Tensor | None:
        """Cells of which tokens show at least a hundredth, (H, W) or (T, H, W) booleans; None if that is all."""
        placed = ~self.boxes.isnan().any(-1)
        boxes = self.boxes[placed]
        sides = [
            _overlap(boxes[:, low], boxes[:, low + 2], count) * (boxes[:, low + 2] - boxes[:, low])[:, None] * count
            for low, count in ((1, self.grid[0]), (0, self.grid[1]))
        ]
        if self.times is None:
            seen = torch.einsum("nh,nw->hw", *sides) > 0.01
        else:
            times = self.times[placed] / self.frames
            seen = (
                torch.einsum("nt,nh,nw->thw", (_overlap(times[:, 0], times[:, 1], self.frames) > 0).double(), *sides)
                > 0.01
            )
        return None if bool(seen.all()) else seen

    @property
    def region(self) -> Region:
        """The smallest box around all that the model sees, in fractions of the image, without padding."""
        boxes = self.boxes[~self.boxes.isnan().any(-1)].clamp(0, 1)
        x0, y0, x1, y1 = *boxes[:, :2].amin(0).tolist(), *boxes[:, 2:].amax(0).tolist()
        return x0, y0, x1, y1


def grid_boxes(H: int, W: int, region: Region = WHOLE) -> Tensor:
    """Boxes of the cells of a grid over a region, in row order, (H·W, 4).

    >>> grid_boxes(1, 2).tolist()
    [[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0]]
    """
    x0, y0, x1, y1 = region
    x = x0 + (x1 - x0) * torch.arange(W + 1, dtype=torch.float64) / W
    y = y0 + (y1 - y0) * torch.arange(H + 1, dtype=torch.float64) / H
    parts = (x[None, :-1], y[:-1, None], x[None, 1:], y[1:, None])
    return torch.stack([part.expand(H, W) for part in parts], -1).reshape(-1, 4)


def tile_boxes(rows: int, columns: int, side: int, thumbnail: bool) -> Tensor:
    """Boxes of images cut into tiles of side x side tokens: tile after tile, and the whole image at the end.

    >>> tile_boxes(1, 2, 1, thumbnail=True).tolist()
    [[0.0, 0.0, 0.5, 1.0], [0.5, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]]
    """
    tiles = [grid_boxes(side, side, _corners(box)) for box in grid_boxes(rows, columns)]
    return torch.cat([*tiles, grid_boxes(side, side)] if thumbnail else tiles)


def window_boxes(H: int, W: int, window: int, shift: int) -> Tensor:
    """Boxes of tokens in the order of shifted windows; NaN where a window reaches into padding.

    Args:
        H, W: rows and columns of the feature map.
        window: side of a window.
        shift: cells by which the map was rolled up and left before it was cut.

    >>> window_boxes(2, 2, 2, 1)[0].tolist()
    [0.5, 0.5, 1.0, 1.0]
    """
    rows, columns = (math.ceil(n / window) * window for n in (H, W))
    index = torch.full((rows, columns), -1)
    index[:H, :W] = torch.arange(H * W).reshape(H, W)
    index = index.roll((-shift, -shift), (0, 1))
    order = index.unflatten(0, (-1, window)).unflatten(2, (-1, window)).transpose(1, 2).flatten()
    boxes = torch.cat([grid_boxes(H, W), torch.full((1, 4), math.nan, dtype=torch.float64)])
    return boxes[order]


def map_grid(boxes: Tensor) -> tuple[int, int]:
    """Rows and columns of a map on which the smallest boxes are whole cells; twice as fine when none fits.

    >>> map_grid(grid_boxes(3, 5)), map_grid(grid_boxes(4, 4, (0.1, 0.0, 0.9, 1.0)))
    ((3, 5), (4, 12))
    """
    placed = boxes[~boxes.isnan().any(-1)]
    if not len(placed):
        raise ShapeError("map_grid: expected at least one token with a place, got none; pass grid= and tokens=")
    return _cells(placed[:, 1], placed[:, 3]), _cells(placed[:, 0], placed[:, 2])


def _cells(low: Tensor, high: Tensor) -> int:
    width = high - low
    smallest = float(width.min())
    edges = low[width < smallest * (1 + 1e-6)]
    count = max(round(1 / smallest), 1)
    fits = bool(((edges * count - (edges * count).round()).abs() < 1e-3).all())
    # With cells of half a box at most, at least one cell lies wholly inside each box.
    return min(count if fits else 2 * math.ceil(1 / smallest), FINEST)


def _overlap(low: Tensor, high: Tensor, count: int) -> Tensor:
    """(N, count) fraction of each interval that lies in each of `count` equal cells of the unit interval."""
    edges = torch.arange(count + 1, dtype=low.dtype, device=low.device) / count
    shared = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    return shared.clamp(min=0) / (high - low)[:, None]


def _corners(box: Tensor) -> Region:
    x0, y0, x1, y1 = box.tolist()
    return x0, y0, x1, y1
