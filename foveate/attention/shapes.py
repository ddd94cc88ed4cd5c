"""What every attention checks of its inputs, and the weighted sum that many of them end with."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.attention.attended import Grid, grid_size
from foveate.checks import check_floating, check_mask, check_ndim
from foveate.errors import ShapeError


def check_inputs(
    where: str, scores: Tensor, values: Tensor, grid: Grid | None, mask: Tensor | None, *, needs_grid: bool = False
) -> None:
    """Refuse scores (B, ..., N), values (B, N, D), a grid or a mask (B, N) that do not fit each other."""
    check_floating(where, "scores", scores)
    check_floating(where, "values", values)
    check_ndim(where, "scores", scores, 2, "(B, ..., N)")
    B, N = scores.shape[0], scores.shape[-1]
    if values.ndim != 3 or values.shape[:2] != (B, N):
        raise ShapeError(
            f"{where}: expected values (B, N, D) = ({B}, {N}, any), got {tuple(values.shape)}; "
            "give one row of values a score"
        )
    if mask is not None:
        check_mask(where, mask, (B, N))
    if grid is None:
        if needs_grid:
            raise ShapeError(f"{where}: expected grid=(H, W), got None; say how the {N} locations lie in the picture")
        return
    if isinstance(grid, Tensor):
        if grid.shape != (B, 2):
            raise ShapeError(
                f"{where}: expected grid (B, 2) = ({B}, 2), got {tuple(grid.shape)}; give rows and columns an example"
            )
        most = int(grid.prod(-1).max())
        if most > N:
            raise ShapeError(f"{where}: expected at most {N} cells an example, got {most}; pad the scores at the end")
        return
    size = grid_size(grid)
    count = size[0] if len(size) == 1 else size[0] * size[1]
    if count != N:
        raise ShapeError(f"{where}: expected a grid of {N} cells, got {size}; rows times columns must be {N}")


def without_padding(grid: Grid | None, mask: Tensor | None, N: int) -> Tensor | None:
    """The mask (B, N) with the padding of examples whose own grid has fewer than N cells taken out."""
    if not isinstance(grid, Tensor):
        return mask
    real = torch.arange(N, device=grid.device) < grid.prod(-1, keepdim=True)
    return real if mask is None else real & mask


def mask_beside(scores: Tensor, mask: Tensor | None) -> Tensor | None:
    """The (B, N) mask shaped to go beside the query axes of (B, ..., N) scores."""
    if mask is None:
        return None
    return mask.expand(scores.shape[0], scores.shape[-1]).reshape(
        scores.shape[0], *[1] * (scores.ndim - 2), scores.shape[-1]
    )


def weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """Σ_n w_n v_n: weights (B, ..., N) and values (B, N, D) give (B, ..., D)."""
    B, N, D = values.shape
    return (weights.reshape(B, -1, N) @ values).reshape(*weights.shape[:-1], D)
