"""One loss for every transform: the Fenchel-Young loss of the transform's regulariser."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_floating, is_tracing
from foveate.errors import ShapeError
from foveate.ops.density import Density
from foveate.ops.transform import Transform
from foveate.registry import lookup


def fenchel_young_loss(
    scores: Tensor | Density,
    target: Tensor | Density,
    transform: str | Callable[..., Tensor] | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Distance of the transform's weights from the target weights: zero exactly where they agree.

    `L(z; q) = Ω(q) + Ω*(z) − ⟨z, q⟩` with `Ω*(z) = ⟨z, p⟩ − Ω(p)`, `p = transform(z)`;  `∂L/∂z = p − q`

    Args:
        scores: (..., N), or (..., H, W) for a transform over a grid; or a density, which stands for its quadratic score
            (`foveate.ops.density_loss`).
        target: weights of the same shape, non-negative with sum one up to rounding (1e-3, 2e-2 in half precision; zeros
            where nothing counts), or a density of the same family.
        transform: its name, its function, or a `functools.partial` of the function with the options set; absent for
            densities, whose family says it.
        mask: True where a location counts; a target with weight on a masked location has infinite loss.

    Returns:
        (...) losses, non-negative; for softmax the Kullback-Leibler divergence of p from q.

    Raises ValueError if a row of the target is no distribution, or if the transform's row in TRANSFORMS has no
    regulariser Ω.

    Reference: Blondel, Martins and Niculae 2020, eq. 14; Ω is the regulariser of the transform's row in TRANSFORMS.

    >>> fenchel_young_loss(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), "sparsemax").item()
    0.0
    """
    if isinstance(scores, Density) or isinstance(target, Density):
        return _between_densities(scores, target, transform)
    if transform is None:
        raise TypeError("fenchel_young_loss: expected a transform beside scores, got none; pass its name")
    row, options = _row(transform)
    check_floating("fenchel_young_loss", "scores", scores)
    if target.shape != scores.shape:
        raise ShapeError(
            f"fenchel_young_loss: expected a target of the scores' shape {tuple(scores.shape)}, "
            f"got {tuple(target.shape)}; pass one weight per location"
        )
    if row.needs_edges and "edges" not in options:
        raise TypeError(
            "fenchel_young_loss: expected edges, got none; pass functools.partial(fv.gfusedmax, edges=edges)"
        )
    weights = row.function(scores, mask=mask, **options)
    z = scores if mask is None else torch.where(mask, scores, -torch.inf)
    omega = _regulariser(row, options, z)
    # p is detached: by Danskin's theorem the gradient p − q comes from the linear term alone.
    p, axes = weights.detach(), tuple(range(-row.axes, 0))
    _check_target(target, p, axes)
    target = target.clamp(min=0)  # what rounding left below zero has no entropy
    difference = p - target
    linear = torch.where(difference == 0, 0, z * difference).sum(axes)
    # This term and its gradient are zero; its second derivative is the transform's Jacobian, the Hessian of the loss.
    still = torch.where(p > 0, z - z.detach(), 0)
    second = 0.5 * (still * (weights - p)).sum(axes)
    return omega(target) - omega(p) + linear + second


def _check_target(target: Tensor, weights: Tensor, axes: tuple[int, ...]) -> None:
    """Raises ValueError if a row is no distribution; zeros are one beside weights that are zeros, too."""
    known = {type(x) for x in (target, weights)} <= {Tensor, torch.nn.Parameter}
    if is_tracing() or not known or target.is_meta or target.numel() == 0:
        return
    half = target.is_floating_point() and target.dtype.itemsize < 4
    values = target.detach().to(torch.float64)
    total, low = values.sum(axes), values.amin(axes)
    nothing = (total == 0) & (weights.sum(axes) == 0)
    # written so that NaN fails
    sound = (low >= (-1e-3 if half else -1e-6)) & (((total - 1).abs() <= (2e-2 if half else 1e-3)) | nothing)
    if not bool(sound.all()):
        row = tuple((~sound).nonzero()[0].tolist())
        where = f"row {row}" if row else "the target"
        raise ValueError(
            f"fenchel_young_loss: expected a target of non-negative weights that sum to one, got in {where} "
            f"the smallest {low[row].item():.4g} and the sum {total[row].item():.4g}; divide each row by its sum, or "
            "leave out examples without a target"
        )


def _between_densities(density: Tensor | Density, target: Tensor | Density, transform: object) -> Tensor:
    from foveate.ops.density_loss import density_fenchel_young

    if not isinstance(density, Density) or not isinstance(target, Density) or transform is not None:
        raise TypeError(
            "fenchel_young_loss: expected two densities without a transform, got "
            f"{type(density).__name__}, {type(target).__name__} and transform={transform!r}; fit the target with "
            "from_weights"
        )
    return density_fenchel_young(density, target)


def _row(transform: str | Callable[..., Tensor]) -> tuple[Transform, dict[str, Any]]:
    """The row of a transform and the options set by a partial."""
    from foveate.ops import TRANSFORMS

    for row in TRANSFORMS.values():
        if row.function is transform:
            return row, {}
    if isinstance(transform, partial):
        row, options = _row(transform.func)
        return row, {**options, **transform.keywords}
    return lookup("fenchel_young_loss", str(transform), TRANSFORMS), {}


def _regulariser(row: Transform, options: dict[str, Any], scores: Tensor) -> Callable[[Tensor], Tensor]:
    """Ω of a transform with its options set; neighbours that are masked, with score -inf, leave its variation."""
    if row.regulariser is None:
        raise ValueError(
            f"fenchel_young_loss: expected a transform with a regulariser, got {row.name!r}; "
            "set the regulariser of its row in TRANSFORMS"
        )
    if isinstance(row.function, partial):
        options = {**row.function.keywords, **options}
    if "mask" in signature(row.regulariser).parameters:
        options = {**options, "mask": scores != -torch.inf}
    return partial(row.regulariser, **options)


def negative_entropy(weights: Tensor) -> Tensor:
    """`Ω(p) = Σ p log p`.

    >>> negative_entropy(torch.tensor([1.0, 0.0])).item()
    0.0
    """
    return torch.xlogy(weights, weights).sum(-1)


def half_square(weights: Tensor) -> Tensor:
    """`Ω(p) = ½ Σ p²`.

    >>> half_square(torch.tensor([1.0, 0.0])).item()
    0.5
    """
    return 0.5 * weights.square().sum(-1)


def tsallis(weights: Tensor, alpha: float | Tensor = 1.5) -> Tensor:
    """`Ω(p) = Σ (p^α − p) / (α (α − 1))`.

    >>> tsallis(torch.tensor([0.5, 0.5]), alpha=2.0).item()
    -0.25
    """
    return ((weights.pow(alpha) - weights) / (alpha * (alpha - 1))).sum(-1)


def chain_variation(weights: Tensor, smoothness: float | Tensor = 0.1, mask: Tensor | None = None) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ |p_{n+1} − p_n|`, without the pairs in which a location is masked.

    >>> chain_variation(torch.tensor([1.0, 0.0]), smoothness=0.5).item()
    1.0
    """
    return half_square(weights) + (smoothness * _variation(weights, mask, -1)).sum(-1)


def grid_variation(weights: Tensor, smoothness: float | Tensor = 0.01, mask: Tensor | None = None) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{i~j} |p_i − p_j|` over the four neighbours of (..., H, W), without masked pairs.

    >>> grid_variation(torch.tensor([[1.0, 0.0]]), smoothness=0.5).item()
    1.0
    """
    total = sum((smoothness * _variation(weights, mask, dim)).sum((-2, -1)) for dim in (-1, -2))
    return half_square(weights.flatten(-2)) + total


def graph_variation(
    weights: Tensor, edges: Tensor, smoothness: float | Tensor = 0.1, mask: Tensor | None = None
) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{(i,j)} |p_i − p_j|`, without the edges in which a node is masked.

    >>> graph_variation(torch.tensor([1.0, 0.0]), torch.tensor([[0, 1]]), smoothness=0.5).item()
    1.0
    """
    near, far = edges.unbind(-1)
    steps = (weights[..., far] - weights[..., near]).abs()
    if mask is not None:
        steps = torch.where(mask[..., far] & mask[..., near], steps, 0)
    return half_square(weights) + (smoothness * steps).sum(-1)


def _variation(weights: Tensor, mask: Tensor | None, dim: int) -> Tensor:
    """|p_{n+1} − p_n| along an axis, 0 where either location is masked."""
    steps = weights.diff(dim=dim).abs()
    if mask is None:
        return steps
    along = mask.movedim(dim, -1)
    return torch.where((along[..., 1:] & along[..., :-1]).movedim(-1, dim), steps, 0)
