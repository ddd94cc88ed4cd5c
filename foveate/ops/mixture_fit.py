"""Fitting mixtures to weights by expectation-maximisation, and choosing the number of components."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from foveate.checks import at_least_float32, check_counts, check_floating, check_number
from foveate.errors import ShapeError, WrongValue
from foveate.ops.compact import CompactDensity
from foveate.ops.density import Density
from foveate.ops.em import GaussianMixtures, Mixing, Points, expectation_maximisation
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_variance
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_choice import (
    CRITERIA,
    STARTS,
    Criterion,
    best_restart,
    choose_components,
    initial,
    take,
)
from foveate.ops.moments import Floor, check_points, check_weights, floor_diagonal
from foveate.ops.radial import scale_of_covariance
from foveate.ops.simplex import sparsemax
from foveate.registry import lookup

SPARSE_SCALE = 1.5  # of the masses under sparsemax: two components survive while their masses differ by less than 2/3

Family = Callable[[Tensor, Tensor], Density]
Likelihood = Literal["cell", "point"]


def fit_mixture(
    weights: Tensor,
    positions: Tensor,
    components: int,
    iterations: int = 10,
    restarts: int = 1,
    start: str = "random",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    floor: Floor = "cell",
    family: Family = Gaussian,
    sparse_components: bool = False,
    background: bool = False,
    likelihood: Likelihood = "cell",
) -> Mixture:
    """Fit a mixture of K components to weights by expectation-maximisation.

    Args:
        weights: (..., N) non-negative, rows sum to one; half precision is computed in float32.
        positions: (N, d) shared or (..., N, d) cell centres, d = 1 or 2.
        components: K, the largest number of components of a row; it may exceed the number of locations.
        iterations: EM steps; the gradient goes through all of them.
        restarts: how many starts to try; the one with the best likelihood is kept, row by row.
        start: "random" (the paper's), "spread", or "split", of which there is only one; see `foveate.ops.starts`.
        mask: (..., N) True where a location counts; weights elsewhere are ignored and the rest is renormalised.
        generator: for the starts; fixed numbers when absent, so that the same call returns the same result.
        floor: covariance of a point in its cell: "cell" reads it off the positions, a number means `floor * I`.
        family: density class of the components (a `functools.partial` sets its options). EM fits Gaussians, because the
            responsibilities of densities with an edge are 0/0 outside; each then becomes the member of the family with
            the same mean and covariance.
        sparse_components: mixing weights by `π = sparsemax(1.5 Σ_n w_n γ_n)` in every M step instead of `Σ_n w_n γ_n`.
            Components in the same region then compete until one is left, so that K varies without model selection;
            components in different regions survive as long as their masses differ by less than 2/3. The weights of a
            "spread" or "random" start halve from one component to the next, so that equal components compete too.
        background: add a uniform density on the image, or on what a mask leaves of it, whose weight EM estimates
            (`Mixture.background`). The
            mixture is then positive everywhere in the image, also with components of bounded support.
        likelihood: "cell", of weights spread over their cells, or "point", of points at the cell centres: the papers'.
            They differ by the trace term of `foveate.ops.em`: up to 2 in `−2 ℓ`, for components on single cells.

    Returns:
        The mixture. All rows use the same random numbers, so that the result of a row does not depend on the batch.
        A component that loses its mass has weight exactly zero. A row without weight has no component at all.

    Reference: Farinhas et al. 2021, §4; `fv.select_mixture` for the number of components.

    >>> from foveate.ops.grid import cell_centres
    >>> positions = cell_centres(8, 8)
    >>> weights = torch.softmax(-60 * (positions - 0.3).square().sum(-1), -1) / 2
    >>> weights = weights + torch.softmax(-60 * (positions - 0.8).square().sum(-1), -1) / 2
    >>> fit = fit_mixture(weights, positions, components=2, start="split")
    >>> fit.components.mean.mul(100).round().tolist()
    [[30.0, 30.0], [80.0, 80.0]]
    """
    where = "fit_mixture"
    _check_options(where, start, components=components, iterations=iterations, restarts=restarts)
    points, filled, length = _points(where, weights, positions, mask, floor, likelihood, background)
    mixing: Mixing | None = _sparse_mixing if sparse_components else None
    begin = initial(start, points, components, restarts, generator, background)
    if sparse_components and start != "split":
        begin = _head_start(begin)
    if restarts > 1:
        with torch.no_grad():
            begin = take(begin, best_restart(expectation_maximisation(points, begin, iterations, mixing)[1]))
    mixtures, log_likelihood = expectation_maximisation(points, begin, iterations, mixing)
    return _result(mixtures, log_likelihood, filled, family, length)


def select_mixture(
    weights: Tensor,
    positions: Tensor,
    max_components: int = 4,
    penalty: float = 0.3,
    restarts: int = 3,
    iterations: int = 10,
    floor: Floor = "cell",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    *,
    start: str = "spread",
    family: Family = Gaussian,
    background: bool = True,
    likelihood: Likelihood = "cell",
    criterion: Criterion = "own",
) -> Mixture:
    """Fit a mixture whose number of components is chosen for every row by itself.

    `K* = argmin_K −2 ℓ_K + λ (1 − π_0)² K`, ℓ_K the log-likelihood of the best fit with K components
    (`foveate.ops.em`), π_0 the weight of the background in the fit with the most components. The likelihood that a
    component can gain is proportional to its mass and to its contrast with the background; hence the square.

    K = 0, the background alone, where no K is better. Under a mask the background is uniform over the locations that
    count, so that ℓ of K = 0 is minus the logarithm of their area.

    Args:
        weights, positions, iterations, restarts, mask, generator, floor, family, likelihood: as in `fit_mixture`.
        max_components: the largest K tried.
        penalty: λ. With floor "cell" 0.3 recovers the number of separate blobs. With a floor of 1e-6 components on
            single cells are too cheap: the likelihood rises with every K, whatever λ.
        start: as in `fit_mixture`; with "spread" three starts find all blobs, where "random" misses one in ten, and the
            choice does not depend on the orientation of the map. Do not combine "random" with a background: it takes
            everything that is far from all starts.
        background: model the uniform haze that softmax leaves everywhere by a background, which does not count in K.
            False is the papers' model, in which a haze of 2 % takes up a component.
        criterion: "own" is the one above, which depends on the row alone. "equation" is equation 15 as printed,
            `−2 ℓ_K + λ K`: the same where there is no background. "batch" is what the code released with that paper
            computes because of a broadcasting error: ℓ_K of the row's mixture summed over the weights of all rows in
            its batch of eight, consecutive rows of the call. Its result for an image depends on the other images; it
            is there to reproduce that paper, with its λ = 5.

    Returns:
        The mixture with `criterion` (..., max_components); components beyond K* have weight zero. The candidates are
        compared without a gradient, then the chosen start is run again with one. With start "spread" a map that is its
        own image in a mirror or rotation of the square has a mixture that is its own image too.

    Reference: Farinhas et al. 2021, equation 15.

    >>> from foveate.ops.grid import cell_centres
    >>> positions = cell_centres(14, 14)
    >>> weights = torch.softmax(-60 * (positions - torch.tensor([[[0.3, 0.3]], [[0.7, 0.7]]])).square().sum(-1), -1)
    >>> fit = select_mixture(torch.stack([weights[0], 0.9 * weights.mean(0) + 0.1 / 196]), positions)
    >>> fit.components_used.tolist(), fit.background.mul(100).round().tolist()
    ([1, 2], [0.0, 10.0])
    """
    where = "select_mixture"
    _check_options(where, start, max_components=max_components, iterations=iterations, restarts=restarts)
    if criterion not in CRITERIA:
        raise WrongValue(
            f"{where}: expected criterion {' or '.join(map(repr, CRITERIA))}, got {criterion!r}; use 'own'"
        )
    check_number(where, "penalty", penalty, least=0, advice="0.3 suits floor='cell'")
    points, filled, length = _points(where, weights, positions, mask, floor, likelihood, background)
    # without background one Gaussian is the same from every start
    plan = [(k, restarts if k > 1 or background else 1) for k in range(1, max_components + 1)]
    choice = choose_components(points, start, plan, penalty, iterations, generator, background, criterion)
    mixtures, log_likelihood = choice.end, choice.log_likelihood
    if choice.begin is not None:
        mixtures, log_likelihood = expectation_maximisation(points, choice.begin, iterations)
    fit = _result(mixtures, log_likelihood, filled, family, length)
    return replace(fit, criterion=choice.criterion.reshape(*filled.shape, max_components))


def _check_options(where: str, start: str, **counts: int) -> None:
    lookup(f"{where} start", start, STARTS)
    check_counts(where, **counts)


def _points(
    where: str,
    weights: Tensor,
    positions: Tensor,
    mask: Tensor | None,
    floor: Floor,
    likelihood: Likelihood,
    background: bool,
) -> tuple[Points, Tensor, Tensor | None]:
    """The points with one batch axis, (...) whether a row has weight, and the unit of length (B or 1, 1), None for one.

    A row without weight gets uniform weights here.
    """
    if likelihood not in ("cell", "point"):
        raise WrongValue(f"{where}: expected likelihood 'cell' or 'point', got {likelihood!r}; the papers' is 'point'")
    check_floating(where, "weights", weights)
    weights = at_least_float32(weights)
    positions = positions.to(weights)
    check_points(where, weights, positions, mask)
    if positions.shape[-1] not in (1, 2):
        raise ShapeError(
            f"{where}: expected positions (..., N, 1) or (..., N, 2), got {tuple(positions.shape)}; use one or two axes"
        )
    if weights.shape[-1] == 0:  # EM needs at least one location: one without weight stands for none
        weights, mask = torch.zeros_like(weights.sum(-1, keepdim=True)), None
        positions = positions.new_full((1, positions.shape[-1]), 0.5)
    batch, N = weights.shape[:-1], weights.shape[-1]
    weights, filled = _unit_weights(where, weights, mask)
    spread, length = floor_diagonal(where, positions, mask, floor), None
    if background:
        cell = spread if floor == "cell" else cell_variance(positions, mask)
        length = _length_of_what_counts(positions, mask, cell)
        positions, spread = positions / length[..., None, None], spread / length[..., None].square()
        length = (length.expand(batch) if length.ndim else length).reshape(-1, 1)
    if positions.ndim > 2:
        positions = positions.expand(*batch, *positions.shape[-2:]).reshape(-1, *positions.shape[-2:])
    if spread.ndim > 1:
        spread = spread.expand(*batch, -1).reshape(-1, spread.shape[-1])
    return Points(weights.reshape(-1, N), positions, spread, likelihood == "cell"), filled.squeeze(-1), length


def _length_of_what_counts(positions: Tensor, mask: Tensor | None, cell: Tensor) -> Tensor:
    """(...) the unit of length in which what counts has an area of one; exactly one on a whole image.

    The background of EM has density one. In this unit it is uniform over the locations that count instead of over the
    whole image, and no shape of a mask is taken for structure.
    """
    count = positions.shape[-2] if mask is None else mask.sum(-1).clamp(min=1)
    area = count * (12 * cell).prod(-1).sqrt()
    return torch.where(area > 0.999, 1.0, area ** (1 / positions.shape[-1])).to(positions)


def _unit_weights(where: str, weights: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights (..., N) divided by their sum over the mask, and (..., 1) whether a row has any; even ones where not."""
    if mask is not None:
        weights = torch.where(mask, weights, 0.0)
    total = weights.sum(-1, keepdim=True)
    check_weights(where, weights, total)
    filled = total > 0
    return torch.where(filled, weights / torch.where(filled, total, 1.0), 1 / weights.shape[-1]), filled


def _head_start(mixtures: GaussianMixtures) -> GaussianMixtures:
    """The mixtures with weights that halve from one component to the next.

    Components of one blob compete under sparsemax, but identical ones would never diverge.
    """
    falling = -math.log(2) * torch.arange(mixtures.log_weights.shape[-1], device=mixtures.mean.device)
    total = mixtures.log_weights.logsumexp(-1, keepdim=True)
    return replace(mixtures, log_weights=total + falling.to(total).log_softmax(-1))


def _sparse_mixing(mass: Tensor) -> Tensor:
    return sparsemax(SPARSE_SCALE * mass)


def _result(
    mixtures: GaussianMixtures, log_likelihood: Tensor, filled: Tensor, family: Family, length: Tensor | None
) -> Mixture:
    """The mixture in the batch shape of `filled` from one Gaussian mixture per row, in units of `length`."""
    if length is not None:
        unit = length[..., None, None]
        mixtures = replace(
            mixtures, mean=mixtures.mean * unit, covariance=mixtures.covariance * unit[..., None].square()
        )
        log_likelihood = log_likelihood - mixtures.mean.shape[-1] * length.log()
    mean = mixtures.mean.reshape(*filled.shape, *mixtures.mean.shape[2:])
    covariance = mixtures.covariance.reshape(*mean.shape, mean.shape[-1])
    weights = torch.where(filled.unsqueeze(-1), mixtures.log_weights.exp().reshape(mean.shape[:-1]), 0.0)
    background = mixtures.log_background
    if background is not None:
        background = torch.where(filled, background.exp().reshape(filled.shape), 0.0)
    likelihood = torch.where(filled, log_likelihood.reshape(filled.shape), 0.0)
    return Mixture(_members(family, mean, covariance), weights, likelihood, background=background)


def _members(family: Family, mean: Tensor, covariance: Tensor) -> Density:
    """The members of the family with these means and covariances."""
    members = family(mean, covariance)
    if not isinstance(members, CompactDensity):
        return members
    return family(mean, scale_of_covariance(covariance.double(), members.power).to(mean.dtype))
