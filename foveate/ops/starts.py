"""Where EM begins: three ways to place the first components of a mixture; only `split` passes a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.em import Points, State, match_parts, round_gaussians

VARIANCE = 1e-3  # of a component at a random start (Farinhas et al. 2021, released code)


def random_start(points: Points, components: int, restarts: int, generator: torch.Generator) -> State:
    """Means drawn evenly from the picture, the same for every row: `π = 1/K`, `μ ~ U[0, 1]^d`, `Σ = 0.001 I`.

    Returns:
        A state (B, restarts, components). The start of the paper; three of it often miss a part of the map.
    """
    B, d = points.weights.shape[0], points.positions.shape[-1]
    draws = _draw((restarts, components, d), points.weights, generator)
    return round_gaussians(draws.expand(B, restarts, components, d), VARIANCE)


def spread_start(points: Points, components: int, restarts: int, generator: torch.Generator) -> State:
    """Means drawn from the locations, far from each other: probability ∝ weight x squared distance to the nearest mean.

    The seeding of k-means++ for weights: `μ_1 ~ w`, `μ_k ~ w_n min_{j<k} ‖x_n − μ_j‖²`; `π = 1/K`, `Σ = 0.001 I`. The
    uniform numbers behind the draws are the same for every row, and locations are taken in the order of their
    coordinates, so that neither the rest of the batch nor the order of the locations matters.

    Returns:
        A state (B, restarts, components).

    Reference: Arthur and Vassilvitskii 2007.
    """
    draws = _draw((restarts, components, 1), points.weights, generator)
    weights, axes = _sort_locations(points)
    nearest = torch.ones_like(weights)
    means: list[Tensor] = []
    for u in draws.unbind(1):
        mass = (weights * nearest).cumsum(-1)
        # 1 - 1e-6: rounding must not carry the draw past the last location that has weight
        drawn = (mass <= u * (1 - 1e-6) * mass[..., -1:]).sum(-1, keepdim=True).clamp(max=weights.shape[-1] - 1)
        mean = [axis.expand(*drawn.shape[:-1], -1).gather(-1, drawn) for axis in axes]
        distance2 = sum(((axis - at).square() for axis, at in zip(axes, mean, strict=True)), mass.new_zeros(()))
        nearest = torch.minimum(nearest, distance2) if means else distance2
        means.append(torch.cat(mean, dim=-1))
    return round_gaussians(torch.stack(means, dim=2), VARIANCE)


def split_start(points: Points, components: int, restarts: int, generator: torch.Generator) -> State:
    """Cut the picture into parts and match the moments of each: the start of K-MCA.

    Two components: the upper and the lower half. Four: left and right of each. Otherwise two or four parts first, then
    the part with most weight is halved across its longer side (across its height when it is square) until there are K.
    `π` is the weight in a part. A part without weight becomes a dead component in its middle.

    Returns:
        A state (B, 1, components): the parts follow from the weights, there is nothing to draw or to restart.

    Reference: Farinhas 2021 (thesis), §6.3.1.
    """
    low, high, part = (x[:, None] for x in _cut(points, components))
    side = high - low
    middle = State(torch.zeros_like(side[..., 0]), low + 0.5 * side, torch.diag_embed(side.square() / 12))
    members = part[:, :, None] == torch.arange(components, device=part.device)[:, None]
    return match_parts(points, points.weights[:, None, None, :] * members, middle)


def _cut(points: Points, components: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper corners of the parts (B, K, d) and the part of every location (B, N)."""
    B, N = points.weights.shape
    positions = points.positions.detach().expand(B, N, -1)
    d, row = positions.shape[-1], torch.arange(B, device=positions.device)
    low, high = positions.new_zeros(B, components, d), positions.new_ones(B, components, d)
    part = torch.zeros_like(points.weights, dtype=torch.long)
    first = [0] if components < 4 else [0, 0, 1]
    for new in range(1, components):
        if new <= len(first):
            cut = torch.full_like(row, first[new - 1])
        else:
            cut = torch.zeros_like(low[:, :new, 0]).scatter_add_(1, part, points.weights.detach()).argmax(1)
        side = (high - low)[row, cut]
        axis = (d - 1) - side.flip(-1).argmax(-1)
        middle = low[row, cut, axis] + 0.5 * side[row, axis]
        low[:, new], high[:, new] = low[row, cut], high[row, cut]
        high[row, cut, axis] = low[row, new, axis] = middle
        beyond = positions[row, :, axis] >= middle[:, None]
        part = torch.where(beyond & (part == cut[:, None]), new, part)
    return low, high, part


def _draw(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform numbers of the same value in every dtype; more restarts only add to them."""
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).to(like)


def _sort_locations(points: Points) -> tuple[Tensor, list[Tensor]]:
    """Weights (B, 1, N) and the coordinates along every axis, ordered by the last axis, then by the one before it."""
    axes = points.positions.detach().unbind(-1)
    order = torch.arange(axes[0].shape[-1], device=axes[0].device).expand_as(axes[0])
    for axis in axes:
        order = order.gather(-1, axis.gather(-1, order).argsort(dim=-1, stable=True))
    weights = points.weights.detach()
    weights = weights.gather(-1, order.expand_as(weights))
    return weights[:, None], [axis.gather(-1, order)[..., None, :] for axis in axes]
