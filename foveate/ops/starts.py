"""Initial mixtures for EM, placed in three ways; only `split` is differentiable.

Only `spread` is equivariant under rotations and reflections of the map (up to ties in a symmetric map): `random` and
the first cuts of `split` are fixed places of the image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.ops.em import GaussianMixtures, Points, match_parts, round_gaussians
from foveate.ops.kernels.mixtures import Plan, can_mix, spread_means
from foveate.ops.memo import memo

VARIANCE = 1e-3  # of a component at a random start (Farinhas et al. 2021, released code)
SPREAD_VARIANCE = 5e-3  # of a component at a spread start: about a blob, so that ten steps of EM are enough


def random_start(points: Points, components: int, restarts: int, generator: torch.Generator | None) -> GaussianMixtures:
    """Means drawn uniformly from the image, the same for every row: `π = 1/K`, `μ ~ U[0, 1]^d`, `Σ = 0.001 I`.

    Returns:
        Mixtures (B, restarts, components). The paper's start; three of them often miss a part of the map.
    """
    B, d = points.weights.shape[0], points.positions.shape[-1]
    draws = _draw((restarts, components, d), points.weights, generator)
    return round_gaussians(draws.expand(B, restarts, components, d), VARIANCE)


def spread_start(points: Points, components: int, restarts: int, generator: torch.Generator | None) -> GaussianMixtures:
    """Means at heavy locations far from each other: the next one, `μ_k`, is chosen by `w_n min_{j<k} ‖x_n − μ_j‖²`.

    The seeding of k-means++ for weights. The first restart takes the location with the largest value each time; the
    others draw locations with probabilities proportional to it. `π = 1/K`, `Σ = 0.005 I`. Locations are drawn in order
    of falling weight, with the same uniform numbers for every row: the result depends neither on the rest of the batch,
    nor on the orientation of the map, nor on the order of the locations.

    Returns:
        Mixtures (B, restarts, components).

    Reference: Arthur and Vassilvitskii 2007.
    """
    if can_mix(points.weights, points.positions, points.floor, components):
        drawn, _ = round_means("spread", points, [(components, restarts)], generator)
        return round_gaussians(drawn.reshape(-1, restarts, components, 2), SPREAD_VARIANCE)
    weights, axes = _sort_locations(points)
    N = weights.shape[-1]
    nearest = torch.ones_like(weights)
    means: list[Tensor] = []
    for u in _draw((restarts, components, 1), points.weights, generator).unbind(1):
        gain = weights * nearest
        mass = gain.cumsum(-1)
        # 1 - 1e-6: rounding must not move the draw past the last location with weight
        drawn = (mass <= u * (1 - 1e-6) * mass[..., -1:]).sum(-1, keepdim=True).clamp(max=N - 1)
        greedy = gain.argmax(-1, keepdim=True).expand_as(drawn)
        chosen = torch.cat([greedy[:, :1], drawn[:, 1:]], dim=1)
        mean = [axis.expand(*chosen.shape[:-1], -1).gather(-1, chosen) for axis in axes]
        distance2 = sum(((axis - at).square() for axis, at in zip(axes, mean, strict=True)), mass.new_zeros(()))
        nearest = torch.minimum(nearest, distance2) if means else distance2
        means.append(torch.cat(mean, dim=-1))
    return round_gaussians(torch.stack(means, dim=2), SPREAD_VARIANCE)


def round_means(start: str, points: Points, plan: Plan, generator: torch.Generator | None) -> tuple[Tensor, float]:
    """Means (B or 1, S, 2) of "random" or "spread" starts for a kernel, and the variance of their components.

    The plan is (components, restarts) of every kind of start; the means of all kinds follow each other.
    """
    axes = 1 if start == "spread" else points.positions.shape[-1]
    if generator is None:
        draws = _fixed_plan(tuple(plan), axes, points.weights.dtype, points.weights.device)
    else:
        draws = torch.cat([_draw((R, K, axes), points.weights, generator).reshape(-1, axes) for K, R in plan])
    if start == "random":
        return draws.unsqueeze(0), VARIANCE
    return spread_means(points.weights, points.positions, draws, plan), SPREAD_VARIANCE


def split_start(points: Points, components: int, restarts: int, generator: torch.Generator | None) -> GaussianMixtures:
    """Cut the image into parts and match the moments of each: the start of K-MCA.

    Two components: the upper and the lower half. Four: left and right of each. Otherwise two or four parts first, then
    the heaviest part is halved across its longer side (across its height when it is square) until there are K parts.
    `π` is the weight in a part. A part without weight becomes a dead component in its middle.

    Returns:
        Mixtures (B, 1, components): the parts follow from the weights, nothing is drawn, and there are no restarts.

    Reference: Farinhas 2021 (thesis), §6.3.1.
    """
    low, high, part = (x[:, None] for x in _cut(points, components))
    side = high - low
    middle = GaussianMixtures(torch.zeros_like(side[..., 0]), low + 0.5 * side, torch.diag_embed(side.square() / 12))
    members = part[:, :, None] == torch.arange(components, device=part.device)[:, None]
    return match_parts(points, points.weights[:, None, None, :] * members, middle)


def _cut(points: Points, components: int) -> tuple[Tensor, Tensor, Tensor]:
    """Lower and upper corners of the parts (B, K, d) and the part of every location (B, N).

    Nothing is written in place: under vmap the weights may be batched where the positions are not.
    """
    weights = points.weights.detach()
    positions = points.positions.detach().expand(*weights.shape, -1)
    d = positions.shape[-1]
    low, part = torch.zeros_like(positions[:, :1]), torch.zeros_like(weights, dtype=torch.long)
    high = torch.ones_like(low)
    first = [0] if components < 4 else [0, 0, 1]
    for new in range(1, components):
        numbers = torch.arange(new, device=part.device)
        if new <= len(first):
            cut = torch.full_like(part[:, 0], first[new - 1])
        else:
            members = part[:, None] == numbers[:, None]
            cut = torch.where(members, weights[:, None], 0.0).sum(-1).argmax(-1)
        is_cut = (numbers == cut[:, None]).unsqueeze(-1)
        bottom, top = (torch.where(is_cut, x, 0.0).sum(1) for x in (low, high))
        side = top - bottom
        axis = (d - 1) - side.flip(-1).argmax(-1)
        along = torch.arange(d, device=axis.device) == axis[:, None]
        middle = bottom + 0.5 * side
        low = torch.cat([low, torch.where(along, middle, bottom)[:, None]], dim=1)
        high = torch.cat([torch.where(is_cut & along[:, None], middle[:, None], high), top[:, None]], dim=1)
        beyond = torch.where(along[:, None], positions - middle[:, None], 0.0).sum(-1) >= 0
        part = torch.where(beyond & (part == cut[:, None]), new, part)
    return low, high, part


def _draw(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform numbers of the same value in every dtype; more restarts only add to them."""
    if generator is None:
        return _fixed_draws(shape).to(like)
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=generator.device).to(like)


@memo(maxsize=64)
def _fixed_draws(shape: tuple[int, ...]) -> Tensor:
    """The uniform numbers of seed 0: a constant, because torch.compile and vmap cannot create a generator."""
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@memo(maxsize=64)
def _fixed_plan(plan: tuple[tuple[int, int], ...], axes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The fixed draws of all kinds of a plan, one after the other."""
    return torch.cat([_fixed_draws((R, K, axes)).reshape(-1, axes) for K, R in plan]).to(device=device, dtype=dtype)


def _sort_locations(points: Points) -> tuple[Tensor, list[Tensor]]:
    """Weights (B, 1, N) by falling weight, and the coordinates along every axis (B, 1, N) in the same order.

    Equal weights, as of a uniform haze, are ordered by their distance from the mean of the map, which rotates with it;
    remaining ties (a symmetric map) by the last coordinate, then by the one before it.
    """
    weights = points.weights.detach()
    axes = [axis.expand_as(weights) for axis in points.positions.detach().unbind(-1)]
    # summed in float64: the mean of a symmetric map must be in its middle
    means = [(weights * axis).double().sum(-1, keepdim=True).to(weights) for axis in axes]
    distance2 = sum(((axis - at).square() for axis, at in zip(axes, means, strict=True)), weights.new_zeros(()))
    order = torch.arange(weights.shape[-1], device=weights.device).expand_as(weights)
    # stable sorts, by the least important key first
    for key, descending in [*((axis, False) for axis in axes), (distance2, False), (weights, True)]:
        order = order.gather(-1, key.gather(-1, order).argsort(dim=-1, stable=True, descending=descending))
    return weights.gather(-1, order)[:, None], [axis.gather(-1, order)[:, None] for axis in axes]
