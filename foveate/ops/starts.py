"""Initial mixtures for EM, placed in three ways; only `split` is differentiable.

Only `spread` is equivariant under rotations and reflections of the map, also where the map is its own image in one of
them: `random` and the first cuts of `split` are fixed places of the image.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.ops.em import GaussianMixtures, Points, match_parts, round_gaussians
from foveate.ops.grid import cell_variance
from foveate.ops.kernels.mixtures import Plan, can_mix, spread_means
from foveate.ops.values import memo

VARIANCE = 1e-3  # of a component at a random start (Farinhas et al. 2021, released code)
SPREAD_VARIANCE = 5e-3  # of a component at a spread start: about a blob, so that ten steps of EM are enough
ON_AXIS = 1e-5  # distance of a mean from an axis of the image below which it may lie on it
ALIKE = 1e-5  # difference of two weights, relative to the largest of a row, below which they may be equal


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
    draws = _draw((restarts, components, 1), points.weights, generator)
    for u in draws.unbind(1):
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
    found = torch.stack(means, dim=2)
    symmetry = Symmetry.of(points)
    if symmetry is not None:
        found = found.index_copy(0, symmetry.rows, symmetry.means(draws[..., 0]).to(found))
    return round_gaussians(found, SPREAD_VARIANCE)


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
    means, mirrored = spread_means(points.weights, points.positions, draws, plan)
    symmetry = Symmetry.of(points) if mirrored else None
    if symmetry is not None:
        each = draws[:, 0].split([K * R for K, R in plan])
        own = [symmetry.means(u.view(R, K)).flatten(1, 2) for u, (K, R) in zip(each, plan, strict=True)]
        means.index_copy_(0, symmetry.rows, torch.cat(own, dim=1).to(means))
    return means, SPREAD_VARIANCE


@dataclass(frozen=True)
class Symmetry:
    """The rows of a batch that are their own images in some of the mirrors and rotations of the unit square.

    What starts at images of each other stays so, in EM as in everything else: whole orbits are the only starts that
    favour no side. All is float64.

    Attributes:
        rows: (S,) these rows.
        weights: (S, N) their weights, exactly equal within an orbit; zero where no image is sought.
        positions: (S, N, d).
        images: (S, G, N) the number of the image of every location, its own for those that the row is not symmetric in.
        orbit: (S, N) the least number among the images of a location.
    """

    rows: Tensor
    weights: Tensor
    positions: Tensor
    images: Tensor
    orbit: Tensor

    @classmethod
    def of(cls, points: Points) -> Symmetry | None:
        """None where no row is symmetric, and where values cannot be inspected."""
        if is_tracing() or points.weights.is_meta or points.weights.numel() == 0:
            return None
        w = points.weights.detach().double()
        x = points.positions.detach().double().expand(*w.shape, -1)
        mean = (w.unsqueeze(-2) @ x).squeeze(-2) - 0.5
        apart = torch.cat([mean, mean.diff(dim=-1), mean.sum(-1, keepdim=True)], -1).abs()
        rows = (apart.amin(-1) < ON_AXIS).nonzero()[:, 0]
        w, x = w[rows], x[rows]
        images, member = _images(w, x)
        some = member[:, 1:].any(-1)
        if not bool(some.any()):
            return None
        rows, w, x, images, member = (part[some] for part in (rows, w, x, images, member))
        number = torch.arange(w.shape[-1], device=w.device)
        images = torch.where(member.unsqueeze(-1), images, number)
        orbit = images.amin(1)
        every = w.unsqueeze(1).expand(images.shape).gather(-1, images) * member.unsqueeze(-1)
        weights = (every.sum(1) / member.sum(1, keepdim=True)).gather(-1, orbit)
        return cls(rows, weights * _heavy(w), x, images, orbit)

    def means(self, draws: Tensor) -> Tensor:
        """Means (S, R, K, d) of starts from uniform numbers (R, K): whole orbits, and the mean of the map for the rest.

        As in `spread_start`, the first restart takes the heaviest and farthest orbits and the others draw them; the
        second begins with the mean of the map, and all means are there where the map is even.
        """
        (S, _, N), (R, K), d = self.images.shape, draws.shape, self.positions.shape[-1]
        w, x = self.weights, self.positions
        centre = (w.unsqueeze(-2) @ x) / w.sum(-1)[:, None, None]
        rest = ((x - centre).square().sum(-1)).gather(-1, self.orbit)
        orbits, distinct = self._orbits()
        size = distinct.sum(-1)
        even = w.amax(-1) - w.amin(-1) <= ALIKE * w.amax(-1)
        order = rest.argsort(dim=-1, stable=True)
        order = order.gather(-1, w.gather(-1, order).argsort(dim=-1, descending=True, stable=True))
        left = torch.full((S, R), K, device=w.device)
        left[:, 1:2] -= 1
        left = torch.where(even[:, None], 0, left)
        means = centre.unsqueeze(1).expand(S, R, K, d)
        nearest = torch.ones(S, R, N, dtype=w.dtype, device=w.device)
        nearest[:, 1:2] = rest.unsqueeze(1)
        started = torch.zeros(S, R, 1, dtype=torch.bool, device=w.device)
        started[:, 1:2] = True
        for k in range(K):
            gain = w.unsqueeze(1) * nearest * (size.unsqueeze(1) <= left.unsqueeze(-1))
            most = gain.amax(-1, keepdim=True)
            going = most > 0
            greedy = torch.where(gain >= (1 - ALIKE) * most, rest.unsqueeze(1), torch.inf).argmin(-1, keepdim=True)
            mass = gain.gather(-1, order.unsqueeze(1).expand_as(gain)).cumsum(-1)
            place = (mass <= draws[:, k, None].to(w) * (1 - 1e-6) * mass[..., -1:]).sum(-1, keepdim=True)
            drawn = order.unsqueeze(1).expand_as(gain).gather(-1, place.clamp(max=N - 1))
            chosen = torch.cat([greedy[:, :1], drawn[:, 1:]], 1)
            row = torch.arange(S, device=w.device)[:, None]
            at, new = orbits[row, chosen[..., 0]], distinct[row, chosen[..., 0]] & going
            slot = torch.where(new, K - left.unsqueeze(-1) + new.cumsum(-1) - 1, K)  # one more, to throw away
            means = torch.cat([means, means[:, :, :1]], 2).scatter(2, slot.unsqueeze(-1).expand_as(at), at)[:, :, :K]
            distance2 = (x[:, None, None] - at.unsqueeze(3)).square().sum(-1).amin(2)
            closer = torch.where(started, torch.minimum(nearest, distance2), distance2)
            nearest, started = torch.where(going, closer, nearest), started | going
            left = left - new.sum(-1)
        return means

    def _orbits(self) -> tuple[Tensor, Tensor]:
        """Points of the orbit of every location, (S, N, G, d), and (S, N, G) True once for each.

        Neighbours across an axis are one point on it: two blobs on the axis of a grid of even width are two points.
        """
        row = torch.arange(len(self.images), device=self.images.device)[:, None, None]
        points = self.positions[row, self.images].transpose(1, 2)
        near = 1.2 * (12 * cell_variance(self.positions).amax(-1)).sqrt()[:, None, None, None]
        close = (torch.cdist(points, points) <= near) & _first_ones(points).unsqueeze(-2)
        points = close.to(points) @ points / close.sum(-1, keepdim=True)
        return points, _first_ones(points)


def _first_ones(points: Tensor) -> Tensor:
    """(..., G) True for the points (..., G, d) that none before them is equal to."""
    equal = torch.cdist(points, points) < ON_AXIS
    return ~(equal & torch.ones(equal.shape[-2:], dtype=torch.bool, device=points.device).tril(-1)).any(-1)


def _images(weights: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Images (S, G, N) of the locations in the symmetries of the interval or square, and (S, G) which of these hold."""
    d = positions.shape[-1]
    centred = positions - 0.5
    turned = [centred, -centred]
    if d == 2:
        mirrored = centred * centred.new_tensor([1.0, -1.0])
        turned += [mirrored, -mirrored]
        turned += [x.flip(-1) for x in turned]
    heavy = _heavy(weights)
    keys = torch.stack([_key(x + 0.5, heavy) for x in turned], 1)
    ordered, place = keys.sort(dim=-1, stable=True)
    w = weights.unsqueeze(1).expand(keys.shape).gather(-1, place)
    same = (ordered == ordered[:, :1]).all(-1)
    alike = ((w - w[:, :1]).abs() <= ALIKE * weights.amax(-1)[:, None, None]).all(-1)
    return torch.zeros_like(place).scatter(-1, place, place[:, :1].expand(place.shape)), same & alike


def _heavy(weights: Tensor) -> Tensor:
    """Locations whose images must have the same weight."""
    return weights > ALIKE * weights.amax(-1, keepdim=True)


def _key(x: Tensor, heavy: Tensor) -> Tensor:
    """One number per place, the same for two that differ by rounding; a larger one for all that have no weight."""
    cells = (x * 4096).round().long()
    key = cells[..., 0] if x.shape[-1] == 1 else cells[..., 0] * 8192 + cells[..., 1]
    return torch.where(heavy, key, 1 << 40)


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
