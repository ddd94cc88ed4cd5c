"""The arguments that attentions share: grids in every form, masks of ours and of torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor

from foveate.checks import check_floating, check_mask, check_ndim, is_tracing
from foveate.errors import ShapeError, WrongType
from foveate.ops.fused import FAR_BELOW
from foveate.ops.grid import canvas_places, cell_centres, cell_centres_1d, ragged_centres
from foveate.ops.resample import resample_map
from foveate.ops.values import memo

Grid = tuple[int, ...] | Tensor
AnyGrid = Grid | int | Sequence[int] | Sequence[Sequence[int]]


def as_grid(where: str, grid: AnyGrid | None) -> Grid | None:
    """The grid as a tuple for all examples or as a (B, 2) tensor: a list or array of pairs holds one per example.

    An example whose grid has no rows or no columns has no cells: its pair becomes (0, 0).

    >>> as_grid("example", [7, 7]), as_grid("example", 9), as_grid("example", [(7, 7), (5, 0)]).tolist()
    ((7, 7), (9,), [[7, 7], [0, 0]])
    """
    if grid is None or (isinstance(grid, tuple) and all(map(_is_size, grid))):
        return grid
    if isinstance(grid, Tensor):
        return _as_pairs(where, grid)
    if isinstance(grid, np.ndarray | np.generic):
        grid = grid.tolist()
    if isinstance(grid, SupportsIndex):
        return (index(grid),)
    if not hasattr(grid, "__len__"):
        raise WrongType(
            f"{where}: expected grid as (H, W), a list of pairs or a tensor, got {type(grid).__name__}; pass rows and "
            "columns"
        )
    entries: list[Any] = list(grid)
    if entries and all(isinstance(n, SupportsIndex) for n in entries):
        return tuple(index(n) for n in entries)
    pairs = [tuple(pair) if hasattr(pair, "__len__") else (pair,) for pair in entries]
    if any(len(pair) != 2 or not all(isinstance(n, SupportsIndex) for n in pair) for pair in pairs):
        raise ShapeError(
            f"{where}: expected a grid (H, W) or one pair of rows and columns per example, got {grid!r}; for sequences "
            "of different lengths pass a mask"
        )
    return _as_pairs(where, torch.tensor([[index(n) for n in pair] for pair in pairs], dtype=torch.long).reshape(-1, 2))


def _as_pairs(where: str, grid: Tensor) -> Tensor:
    """Rows and columns per example as int64, (0, 0) where there is no cell."""
    if grid.is_floating_point() or grid.is_complex() or grid.dtype == torch.bool:
        raise WrongType(f"{where}: expected a grid of whole numbers, got {grid.dtype}; use grid.long()")
    grid = grid.long()
    if not is_tracing() and not grid.is_meta and bool((grid < 0).any()):
        first = grid[(grid < 0).reshape(len(grid), -1).any(-1)][0].tolist() if grid.ndim else grid.item()
        raise ShapeError(f"{where}: expected rows and columns >= 0, got {first}; 0 stands for an image without cells")
    return torch.where((grid > 0).all(-1, keepdim=True), grid, 0) if grid.ndim == 2 else grid


def _is_size(n: object) -> bool:
    return isinstance(n, int | torch.SymInt)


def grid_size(grid: Grid) -> tuple[int, ...]:
    """Rows and columns of the grid, or of the canvas, of one cell at least, that holds every grid of the batch.

    >>> grid_size(torch.tensor([[2, 5], [3, 4]]))
    (3, 5)
    """
    if not isinstance(grid, Tensor):
        return tuple(grid)
    return tuple(max(int(n), 1) for n in grid.amax(0)) if len(grid) else (0, 0)


def check_inputs(
    where: str, scores: Tensor, values: Tensor, grid: Grid | None, mask: Tensor | None, *, needs_grid: bool = False
) -> None:
    """Raises an error if scores (B, ..., N), values (B, ..., N, D), grid and mask do not match."""
    check_floating(where, "scores", scores)
    check_floating(where, "values", values)
    check_ndim(where, "scores", scores, 2, "(B, ..., N)")
    B, N = scores.shape[0], scores.shape[-1]
    own, queries = values.shape[1:-2], scores.shape[1:-1]
    fits = values.ndim >= 3 and values.shape[0] == B and values.shape[-2] == N and len(own) <= len(queries)
    if not fits or any(v not in (1, q) for v, q in zip(own, queries, strict=False)):
        also = f", or with the query axes of scores {tuple(scores.shape)} after the first" if queries else ""
        raise ShapeError(
            f"{where}: expected values (B, N, D) = ({B}, {N}, any){also}, got {tuple(values.shape)}; "
            "pass one row of values per score"
        )
    check_attention_mask(where, mask, scores)
    check_grid(where, grid, B, N, needs_grid=needs_grid)


def check_attention_mask(where: str, mask: Tensor | None, scores: Tensor) -> None:
    """Raises an error if the mask is neither (B, N) nor broadcasts to scores (B, ..., N) with as many axes."""
    if mask is None:
        return
    if isinstance(mask, Tensor) and mask.ndim > 2 and mask.ndim != scores.ndim:
        raise ShapeError(
            f"{where}: expected a mask (B, N), or one with as many axes as scores {tuple(scores.shape)}, got "
            f"{tuple(mask.shape)}; add axes of size 1"
        )
    several = isinstance(mask, Tensor) and mask.ndim > 2
    check_mask(where, mask, scores.shape if several else (scores.shape[0], scores.shape[-1]))


def check_grid(where: str, grid: Grid | None, B: int, N: int, *, needs_grid: bool = False) -> None:
    """Raises ShapeError if the grid does not have N cells, or is None where one is needed."""
    if grid is None:
        if needs_grid:
            raise ShapeError(
                f"{where}: expected grid=(H, W), got None; pass the rows and columns of the {N} locations, grid=({N},) "
                "if they lie on a line"
            )
        return
    if isinstance(grid, Tensor):
        if grid.shape != (B, 2):
            raise ShapeError(
                f"{where}: expected grid (B, 2) = ({B}, 2), got {tuple(grid.shape)}; pass rows and columns per example"
            )
        most = 0 if grid.is_meta or B == 0 else int(grid.double().prod(-1).max())  # int64 overflows at [2^40, 2^40]
        if most > N:
            raise ShapeError(f"{where}: expected at most {N} cells per example, got {most}; pad the scores at the end")
        return
    size = grid_size(grid)
    if len(size) not in (1, 2, 3) or min(size) < 0 or math.prod(size) != N:
        raise ShapeError(f"{where}: expected a grid of {N} cells, got {size}; rows times columns must be {N}")


def without_padding(grid: Grid | None, mask: Tensor | None, N: int) -> Tensor | None:
    """The mask with the padding of examples whose own grid has fewer than N cells taken out."""
    if not isinstance(grid, Tensor):
        return mask
    real = torch.arange(N, device=grid.device) < grid.prod(-1, keepdim=True)
    if mask is None:
        return real
    real = real.to(mask.device)
    return mask & real.reshape(len(real), *[1] * max(mask.ndim - 2, 0), N)


def mask_beside(scores: Tensor, mask: Tensor | None) -> Tensor | None:
    """A (B, N) mask shaped to go beside the query axes of (B, ..., N) scores; one with those axes stays."""
    if mask is None or mask.ndim > 2:
        return mask
    return mask.expand(scores.shape[0], scores.shape[-1]).reshape(
        scores.shape[0], *[1] * (scores.ndim - 2), scores.shape[-1]
    )


@overload
def shared_mask(mask: Tensor) -> Tensor: ...
@overload
def shared_mask(mask: None) -> None: ...
def shared_mask(mask: Tensor | None) -> Tensor | None:
    """The (B, N) mask of the locations that count for some query.

    >>> shared_mask(torch.tensor([[[True, False, False], [False, True, False]]])).tolist()
    [[True, True, False]]
    """
    if mask is None or mask.ndim <= 2:
        return mask
    return mask.flatten(1, -2).any(1)


def split_mask(scores: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scores with an additive mask's finite part added, and a boolean mask, True where a key counts.

    Models write -1e4, -1e9, the lowest number of their precision, sometimes twice, or -inf where a key does not count.
    A bias that falls with the distance may be as low, where no weight is left beside the near keys.

    >>> split_mask(torch.zeros(2), torch.tensor([1.0, -torch.inf]))
    (tensor([1., 0.]), tensor([ True, False]))
    """
    if mask is None:
        return scores, None
    mask = mask[..., : scores.shape[-1]]
    if mask.dtype == torch.bool:
        return scores, mask
    keep = ~(mask <= -FAR_BELOW)  # NaN is no mask: the transform reports it
    return scores + torch.where(keep, mask, 0), keep


def joint_mask(attn_mask: Tensor | None, padding: Tensor | None, heads: int) -> Tensor | None:
    """One mask as of scaled dot-product attention from the two of `nn.MultiheadAttention`, where True means ignored."""
    mask = None
    if attn_mask is not None:
        mask = attn_mask if attn_mask.ndim == 2 else attn_mask.unflatten(0, (-1, heads))
        mask = ~mask if mask.dtype == torch.bool else mask
    if padding is None:
        return mask
    # The padding may be additive too, with the lowest numbers where a key does not count.
    ignored = padding if padding.dtype == torch.bool else padding < torch.finfo(padding.dtype).min / 2
    if padding.dtype != torch.bool and not bool((ignored | (padding == 0)).all()):
        bias = padding[:, None, None]
        return (
            bias if mask is None else bias.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else mask + bias
        )
    keep = ~ignored[:, None, None]
    if mask is None:
        return keep
    return mask & keep if mask.dtype == keep.dtype else mask.masked_fill(~keep, float("-inf"))


def beside_scores(scores: Tensor, mask: Tensor | None) -> Tensor | None:
    """A mask that broadcasts to scores (..., Q, N), with as many axes as they have.

    >>> beside_scores(torch.zeros(2, 4, 3, 5), torch.ones(3, 5, dtype=torch.bool)).shape
    torch.Size([1, 1, 3, 5])
    """
    if mask is None or mask.ndim >= scores.ndim:
        return mask
    return mask.reshape(*[1] * (scores.ndim - mask.ndim), *mask.shape)


def to_canvas(x: Tensor, grid: Tensor, size: tuple[int, ...]) -> Tensor:
    """Lay (B, ..., N) locations of images with different grids on one (B, ..., H, W) canvas; 0 where there is none.

    >>> to_canvas(torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[2, 1]]), (2, 2)).tolist()
    [[[1.0, 0.0], [2.0, 0.0]]]
    """
    places, real = (_beside(part, x) for part in canvas_places(grid, x.shape[-1], size[1]))
    canvas = x.new_zeros(*x.shape[:-1], size[0] * size[1])
    return canvas.scatter_add(-1, places, torch.where(real, x, 0)).reshape(*x.shape[:-1], *size)


def map_weights(maps: Tensor, grid: Grid, N: int) -> Tensor:
    """Maps (B, h, w) of any size as weights (B, N) of the cells of each example's grid; 0 at padding.

    >>> map_weights(torch.ones(1, 4, 4), torch.tensor([[1, 2]]), 3).tolist()
    [[8.0, 8.0, 0.0]]
    """
    if not isinstance(grid, Tensor):
        H, W = grid
        return resample_map(maps, H, W).flatten(1)
    rows = [resample_map(part, *size).flatten() for part, size in zip(maps, grid.tolist(), strict=True)]
    return torch.stack([torch.nn.functional.pad(row, (0, N - len(row))) for row in rows])


def from_canvas(canvas: Tensor, grid: Tensor, N: int) -> Tensor:
    """Read (B, ..., N) locations back from the canvas; 0 at padding.

    >>> from_canvas(torch.tensor([[[1.0, 0.0], [2.0, 0.0]]]), torch.tensor([[2, 1]]), 3).tolist()
    [[1.0, 2.0, 0.0]]
    """
    flat = canvas.flatten(-2)
    like = flat.new_zeros(*flat.shape[:-1], N)
    places, real = (_beside(part, like) for part in canvas_places(grid, N, canvas.shape[-1]))
    return torch.where(real, flat.gather(-1, places), 0)


def _beside(part: Tensor, x: Tensor) -> Tensor:
    """(B, N) expanded over the query axes of x (B, ..., N)."""
    return part.reshape(part.shape[0], *[1] * (x.ndim - 2), part.shape[-1]).expand(x.shape)


def positions(weights: Tensor, grid: Grid, *, ends: bool = False) -> Tensor:
    """Cell centres of the locations: (N, d), or (B, ..., N, 2) where the grids differ.

    With `ends` they are stretched so that the first and the last cell of every axis lie at 0 and 1.
    """
    if ends:
        centres = positions(weights, grid)
        sizes = grid if isinstance(grid, Tensor) else torch.tensor(tuple(grid), device=weights.device)
        cells = sizes.flip(-1).to(weights)  # x counts columns
        cells = cells.reshape(len(grid), *[1] * (weights.ndim - 1), 2) if isinstance(grid, Tensor) else cells
        return torch.where(cells > 1, (centres - 0.5) * cells / (cells - 1).clamp(min=1) + 0.5, centres)
    if isinstance(grid, Tensor):
        points = ragged_centres(grid, weights.shape[-1], dtype=weights.dtype).to(weights.device)
        return points.reshape(len(grid), *[1] * (weights.ndim - 2), *points.shape[1:]).expand(*weights.shape, 2)
    if is_tracing():
        return _centres(tuple(grid), weights.dtype, weights.device)
    return _kept_centres(tuple(grid), weights.dtype, weights.device)


def _centres(grid: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    make: Any = cell_centres_1d if len(grid) == 1 else cell_centres
    centres: Tensor = make(*grid, dtype=dtype, device=device)
    return centres


_kept_centres = memo(maxsize=64)(_centres)
