"""One loss for every transform: the Fenchel-Young loss of the regulariser that the transform belongs to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from foveate.checks import check_floating
from foveate.errors import ShapeError
from foveate.registry import lookup


def fenchel_young_loss(
    scores: Tensor, target: Tensor, transform: str | Callable[..., Tensor], mask: Tensor | None = None
) -> Tensor:
    """How far the weights of the scores are from the target weights: zero exactly where they agree.

    `L(z; q) = Ω(q) + Ω*(z) − ⟨z, q⟩` with `Ω*(z) = ⟨z, p⟩ − Ω(p)`, `p = transform(z)`;  `∂L/∂z = p − q`

    Args:
        scores: (..., N), or (..., H, W) for a transform over a grid.
        target: weights of the same shape.
        transform: its name, its function, or a `functools.partial` of the function with the options set.
        mask: True where a location counts; a target with weight on a masked location has infinite loss.

    Returns:
        (...) losses, non-negative; for softmax the Kullback-Leibler divergence of p from q.

    Reference: Blondel, Martins and Niculae 2020, eq. 14; Ω is the regulariser of the transform's row in TRANSFORMS.

    >>> fenchel_young_loss(torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0]), "sparsemax").item()
    0.0
    """
    from foveate.ops import TRANSFORMS

    options = dict(transform.keywords) if isinstance(transform, partial) else {}
    function = transform.func if isinstance(transform, partial) else transform
    names = [name for name, row in TRANSFORMS.items() if row.function is function]
    row = lookup("fenchel_young_loss", names[0] if names else str(function), TRANSFORMS)
    check_floating("fenchel_young_loss", "scores", scores)
    if target.shape != scores.shape:
        raise ShapeError(
            f"fenchel_young_loss: expected a target of the scores' shape {tuple(scores.shape)}, "
            f"got {tuple(target.shape)}; give one weight a location"
        )
    if row.needs_edges and "edges" not in options:
        raise TypeError(
            "fenchel_young_loss: expected edges, got none; pass functools.partial(fv.gfusedmax, edges=edges)"
        )
    weights = row.function(scores, mask=mask, **options)
    z = scores if mask is None else torch.where(mask, scores, -torch.inf)
    p, axes = weights.detach(), tuple(range(-row.axes, 0))
    difference = p - target
    linear = torch.where(difference == 0, 0, z * difference).sum(axes)
    # The last term is zero with zero gradient; its second derivative is the transform's Jacobian, that of the loss.
    still = torch.where(p > 0, z - z.detach(), 0)
    second = 0.5 * (still * (weights - p)).sum(axes)
    return row.regulariser(target, **options) - row.regulariser(p, **options) + linear + second


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


def tsallis(weights: Tensor, alpha: float = 1.5) -> Tensor:
    """`Ω(p) = Σ (p^α − p) / (α (α − 1))`.

    >>> tsallis(torch.tensor([0.5, 0.5]), alpha=2.0).item()
    -0.25
    """
    return (weights.pow(alpha) - weights).sum(-1) / (alpha * (alpha - 1))


def chain_variation(weights: Tensor, smoothness: float = 0.1) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ |p_{n+1} − p_n|`.

    >>> chain_variation(torch.tensor([1.0, 0.0]), smoothness=0.5).item()
    1.0
    """
    return half_square(weights) + smoothness * weights.diff(dim=-1).abs().sum(-1)


def grid_variation(weights: Tensor, smoothness: float = 0.01) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{i~j} |p_i − p_j|` over the four neighbours of (..., H, W).

    >>> grid_variation(torch.tensor([[1.0, 0.0]]), smoothness=0.5).item()
    1.0
    """
    rises = weights.diff(dim=-1).abs().sum((-2, -1)) + weights.diff(dim=-2).abs().sum((-2, -1))
    return half_square(weights.flatten(-2)) + smoothness * rises


def graph_variation(weights: Tensor, edges: Tensor, smoothness: float = 0.1) -> Tensor:
    """`Ω(p) = ½ Σ p² + λ Σ_{(i,j)} |p_i − p_j|`.

    >>> graph_variation(torch.tensor([1.0, 0.0]), torch.tensor([[0, 1]]), smoothness=0.5).item()
    1.0
    """
    near, far = edges.unbind(-1)
    return half_square(weights) + smoothness * (weights[..., far] - weights[..., near]).abs().sum(-1)
