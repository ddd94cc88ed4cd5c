"""Which of several mixtures fits best: the restarts of one number of components, and the numbers of components."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Literal, get_args

import torch
from torch import Tensor

from foveate.checks import is_tracing
from foveate.ops.em import (
    GaussianMixtures,
    Points,
    both_floors,
    expectation_maximisation,
    log_likelihood,
    round_gaussians,
    unpack,
    with_background,
)
from foveate.ops.kernels import mixtures as native
from foveate.ops.starts import random_start, round_means, split_start, spread_start

Criterion = Literal["own", "equation", "batch"]
CRITERIA: tuple[Criterion, ...] = get_args(Criterion)
STARTS = {"random": random_start, "spread": spread_start, "split": split_start}

SMALL = 4096  # weights up to which a batch is bound by the number of operations, not by their size
SAME = 1e-5  # difference in ℓ below which two fits are equally good
BATCH = 8  # examples per evaluation batch of the code released with Farinhas et al. 2021
BACKGROUND = 0.3  # weight of the background at the start; anything from 0.05 to 0.7 leads to the same fits


@dataclass(frozen=True, eq=False)
class Choice:
    """The number of components of the least criterion, row by row; none where a background alone is as good.

    Attributes:
        begin, end: where its best start begins and where EM ends from there, one mixture per row. The beginning is
            absent where no gradient can be asked for, so that nobody has to go from there again.
        log_likelihood: (B, 1) there.
        criterion: (B, max_components).
    """

    begin: GaussianMixtures | None
    end: GaussianMixtures
    log_likelihood: Tensor
    criterion: Tensor


def choose_components(
    points: Points,
    start: str,
    plan: native.Plan,
    penalty: float,
    iterations: int,
    generator: torch.Generator | None,
    background: bool,
    criterion: Criterion = "own",
) -> Choice:
    """The best of mixtures with 1, 2, ... components; the plan has the number of restarts for each."""
    most = len(plan)
    again = is_tracing() or (points.weights.requires_grad and torch.is_grad_enabled())
    # without a background the equation as printed is ours
    own = criterion == "own"
    ours = own or (criterion == "equation" and not background)
    if ours and start != "split" and native.can_mix(points.weights, points.positions, points.floor, most + background):
        means, variance = round_means(start, points, plan, generator)
        cells, haze = (points.weights, points.positions, both_floors(points)), BACKGROUND if background else 0.0
        begin, end, costs, likelihood = native.choose(*cells, means, plan, variance, haze, penalty, iterations)
        first = unpack(begin, background) if again else None
        return Choice(first, unpack(end, background), likelihood, costs)
    begins, ends, likelihoods = [], [], []
    starts = [_pad(initial(start, points, k, count, generator, background), most) for k, count in plan]
    for begun, ended, found in _run_all(points, starts, iterations):
        best = best_restart(found)
        begins.append(take(begun, best))
        ends.append(take(ended, best))
        likelihoods.append(found.gather(-1, best[:, None])[:, 0])
    each = torch.stack(likelihoods, dim=-1)
    score = torch.stack([_of_batch(points, end) for end in ends], dim=-1) if criterion == "batch" else each
    costs = _charge(penalty, ends[-1], most, counted=own) - 2 * score
    least = costs.amin(-1, keepdim=True)
    chosen = (costs <= least + SAME).to(torch.uint8).argmax(-1)  # the first, as of restarts
    first = take(_join(begins), chosen) if again else None
    last, likelihood = take(_join(ends), chosen), each.gather(-1, chosen[:, None])
    if own and background:
        nothing = least >= -SAME  # ℓ of a background alone is 0
        likelihood = likelihood.masked_fill(nothing, 0)
        last, first = _only_background(last, nothing), None if first is None else _only_background(first, nothing)
    return Choice(first, last, likelihood, costs)


def _only_background(mixtures: GaussianMixtures, where: Tensor) -> GaussianMixtures:
    """The mixtures without components in the rows (B, 1) that have no structure."""
    assert mixtures.log_background is not None
    absent = round_gaussians(torch.full_like(mixtures.mean, 0.5), 1 / 12)
    none = where.unsqueeze(-1)
    return GaussianMixtures(
        mixtures.log_weights.masked_fill(none, -torch.inf),
        torch.where(none[..., None], absent.mean, mixtures.mean),
        torch.where(none[..., None, None], absent.covariance, mixtures.covariance),
        mixtures.log_background.masked_fill(where, 0),
    )


@torch.no_grad()
def _of_batch(points: Points, mixtures: GaussianMixtures) -> Tensor:
    """(B,) likelihood of the weights of a whole batch of eight consecutive rows under the mixture of one of them.

    Σ_b Σ_n w_bn log p_i(x_bn): the released code multiplies (B, N, 1, 1) by (B, 1, N, 1, 1).
    """
    B = len(points.weights)
    row = torch.arange(B, device=points.weights.device)
    total = torch.zeros_like(points.weights[:, 0])
    for place in range(BATCH):
        other = row - row % BATCH + place
        index = other.clamp(max=B - 1)
        theirs = replace(
            points,
            weights=points.weights[index],
            positions=points.positions[index] if points.positions.ndim > 2 else points.positions,
            floor=points.floor[index] if points.floor.ndim > 1 else points.floor,
        )
        total = total + torch.where(other < B, log_likelihood(theirs, mixtures)[:, 0], 0.0)
    return total


def initial(
    start: str, points: Points, components: int, restarts: int, generator: torch.Generator | None, background: bool
) -> GaussianMixtures:
    begin = STARTS[start](points, components, restarts, generator)
    return with_background(begin, BACKGROUND) if background else begin


def best_restart(log_likelihood: Tensor) -> Tensor:
    """(B,) the best restart of (B, R), the first of those that are as good up to rounding.

    Restarts often end in the same place with the components in another order: rounding must not decide on the order.
    """
    good = log_likelihood >= log_likelihood.amax(-1, keepdim=True) - SAME
    return good.to(torch.uint8).argmax(-1)


def take(mixtures: GaussianMixtures, index: Tensor) -> GaussianMixtures:
    """The mixture `index` (B,) of every row: one mixture per row."""
    row = torch.arange(index.shape[0], device=index.device)
    return mixtures.map_tensors(lambda part: part[row, index].unsqueeze(1))


@torch.no_grad()
def _run_all(
    points: Points, starts: list[GaussianMixtures], iterations: int
) -> list[tuple[GaussianMixtures, GaussianMixtures, Tensor]]:
    """Every start, where EM ends from it, and the likelihood there; the k-th start has k components, the rest absent.

    A small batch runs all of them at once: fewer, larger operations, though a third is spent on absent components.
    """
    if is_tracing() or points.weights.numel() <= SMALL:
        end, found = expectation_maximisation(points, _join(starts), iterations)
        counts = [begin.mean.shape[1] for begin in starts]
        edges = [0, *accumulate(counts)]
        slices = [slice(first, last) for first, last in pairwise(edges)]
        ends = [end.map_tensors(itemgetter((slice(None), own))) for own in slices]
        return list(zip(starts, ends, (found[:, own] for own in slices), strict=True))
    runs = []
    for k, begin in enumerate(starts):
        end, found = expectation_maximisation(points, _first(begin, k + 1), iterations)
        runs.append((begin, _pad(end, begin.mean.shape[2]), found))
    return runs


def _first(mixtures: GaussianMixtures, components: int) -> GaussianMixtures:
    """The mixtures without what comes after the first `components` components."""
    return replace(
        mixtures,
        log_weights=mixtures.log_weights[:, :, :components],
        mean=mixtures.mean[:, :, :components],
        covariance=mixtures.covariance[:, :, :components],
    )


def _charge(penalty: float, richest: GaussianMixtures, max_components: int, *, counted: bool) -> Tensor:
    """`λ (1 − π_0)² K` for every K, (B, max_components) or the same for all rows; `λ K` unless the background counts.

    `richest` has one mixture per row.
    """
    counts = torch.arange(1, max_components + 1, dtype=richest.mean.dtype, device=richest.mean.device)
    if richest.log_background is None or not counted:
        return penalty * counts
    return penalty * counts * (1 - richest.log_background.exp()).square()


def _pad(mixtures: GaussianMixtures, components: int) -> GaussianMixtures:
    """The mixtures with absent components added up to `components`."""
    B, R, K, d = mixtures.mean.shape
    missing = components - K
    eye = torch.eye(d, dtype=mixtures.mean.dtype, device=mixtures.mean.device)
    return replace(
        mixtures,
        log_weights=torch.nn.functional.pad(mixtures.log_weights, (0, missing), value=-torch.inf),
        mean=torch.nn.functional.pad(mixtures.mean, (0, 0, 0, missing), value=0.5),
        covariance=torch.cat([mixtures.covariance, (eye / 12).expand(B, R, missing, d, d)], dim=2),
    )


def _join(parts: list[GaussianMixtures]) -> GaussianMixtures:
    backgrounds = [part.log_background for part in parts if part.log_background is not None]
    return GaussianMixtures(
        torch.cat([part.log_weights for part in parts], dim=1),
        torch.cat([part.mean for part in parts], dim=1),
        torch.cat([part.covariance for part in parts], dim=1),
        torch.cat(backgrounds, dim=1) if backgrounds else None,
    )
