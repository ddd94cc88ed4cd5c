"""Mixtures of densities, what multimodal attention attends with: the density, its fit, and the choice of its size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, is_tracing
from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.compact import CompactDensity
from foveate.ops.density import Density, Ellipses
from foveate.ops.em import Mixing, Points, State, expectation_maximisation
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.moments import Floor, check_points, check_weights, floor_matrix
from foveate.ops.precision import at_least_float32
from foveate.ops.radial import scale_of_covariance
from foveate.ops.simplex import sparsemax
from foveate.ops.starts import random_start, split_start, spread_start
from foveate.registry import lookup

STARTS = {"random": random_start, "spread": spread_start, "split": split_start}

SPARSE_SCALE = 1.5  # of the masses under sparsemax: two components survive while their masses differ by less than 2/3

Family = Callable[[Tensor, Tensor], Density]


@dataclass(frozen=True, eq=False)
class Mixture(Density):
    """Weighted sum of densities of one family, `p(t) = Σ_k π_k p_k(t)`.

    Attributes:
        components: one density whose batch shape is (..., K).
        weights: (..., K) the mixing weights π, non-negative; they sum to one, or all are zero in a row with nothing to
            attend to, where `p` is zero. A component of weight zero is absent: it adds nothing and gets no gradient.
        log_likelihood: (...) ℓ of the Gaussians behind a fit (`foveate.ops.em`), zero where there is nothing to attend
            to; None when the mixture was not fitted.
        criterion: (..., K_max) what `select_mixture` minimised, for every number of components; otherwise None.

    Reference: Farinhas et al. 2021, equations 4 and 5.

    >>> pair = Gaussian(torch.tensor([[0.25, 0.5], [0.75, 0.5]]), 0.01 * torch.eye(2).expand(2, 2, 2))
    >>> mixture = Mixture(pair, torch.tensor([0.5, 0.5]))
    >>> mixture.mean.tolist(), round(mixture.covariance[0, 0].item(), 4)  # 0.01 within, 0.0625 between
    ([0.5, 0.5], 0.0725)
    """

    components: Density
    weights: Tensor
    log_likelihood: Tensor | None = None
    criterion: Tensor | None = None

    def __post_init__(self) -> None:
        check_floating("Mixture", "weights", self.weights)
        expected = self.components.mean.shape[:-1]
        if self.weights.shape != expected or not expected:
            raise ShapeError(
                f"Mixture: expected weights (..., K) of the components' batch shape {tuple(expected)}, "
                f"got {tuple(self.weights.shape)}; give every component one weight"
            )
        check_weights("Mixture", self.weights, self.weights.sum(-1, keepdim=True))

    @classmethod
    def from_weights(
        cls, weights: Tensor, positions: Tensor, mask: Tensor | None = None, floor: Floor = "cell"
    ) -> Mixture:
        """The mixture that `select_mixture` chooses with its defaults."""
        return select_mixture(weights, positions, floor=floor, mask=mask)

    @property
    def mean(self) -> Tensor:
        """(..., d) expected position, `Σ π_k μ_k`."""
        return self._sum(self.components.mean)

    @property
    def covariance(self) -> Tensor:
        """(..., d, d) covariance, `Σ π_k (Σ_k + (μ_k − μ)(μ_k − μ)ᵀ)`."""
        apart = self.components.mean - self.mean.unsqueeze(-2)
        return self._sum(self.components.covariance + apart.unsqueeze(-1) * apart.unsqueeze(-2))

    @property
    def components_used(self) -> Tensor:
        """(...) number of components with weight above zero."""
        return (self.weights > 0).sum(-1)

    def pdf(self, points: Tensor) -> Tensor:
        """Density at `points`, (P, d) shared or (..., P, d) per example -> (..., P)."""
        return self._sum(self._each(points))

    def expect(self, basis: Basis) -> Tensor:
        """Expectation of every basis function, (..., J): `Σ π_k r_k`."""
        return self._sum(self.components.expect(basis))

    def to_map(self, H: int, W: int | None = None) -> Tensor:
        """Mass in each cell, (..., H, W), or (..., H) in one dimension; tails outside the picture are not counted."""
        return self._sum(self.components.to_map(H, W))

    def support_area(self) -> Tensor:
        """(...) length or area of the union of the components' supports inside the picture.

        The sum of the areas less what they share: exact while no two supports overlap or one covers the picture. The
        shared part is counted on 256 x 256 points (4096 on a line); its error is below 1e-3.
        """
        present = self.weights > 0
        areas = torch.where(present, self.components.support_area(), 0.0)
        grid = cell_centres(256, 256) if self.components.mean.shape[-1] == 2 else cell_centres_1d(4096)
        shared = torch.zeros_like(areas[..., 0])
        for part in grid.split(4096):
            inside = (self._each(part) > 0) & present.unsqueeze(-1)
            shared = shared + (inside.sum(-2) - 1).clamp(min=0).sum(-1) / len(grid)
        largest = areas.amax(-1)
        return torch.where(largest >= 1, largest, areas.sum(-1) - shared)

    def ellipses(self, level: float) -> Ellipses:
        """Contours that hold the share `level` of each component's mass, K an example, with the components' weights."""
        each = self.components.ellipses(level)
        return Ellipses(each.centre.squeeze(-2), each.radii.squeeze(-2), each.angle.squeeze(-1), self.weights)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(..., n, d) independent draws, differentiable in the components but not in the weights.

        A row whose weights are all zero draws from all its components alike.
        """
        weights = self.weights.detach().flatten(0, -2) if self.weights.ndim > 1 else self.weights.detach()[None]
        weights = torch.where(weights.sum(-1, keepdim=True) > 0, weights, 1.0)
        drawn = torch.multinomial(weights, n, replacement=True, generator=generator)
        draws = self.components.sample(n, generator)
        index = drawn.view(*draws.shape[:-3], 1, n, 1).expand(*draws.shape[:-3], 1, n, draws.shape[-1])
        return draws.gather(-3, index).squeeze(-3)

    def _each(self, points: Tensor) -> Tensor:
        """Density of every component, (..., K, P)."""
        return self.components.pdf(points if points.ndim == 2 else points.unsqueeze(-3))

    def _sum(self, each: Tensor) -> Tensor:
        """`Σ_k π_k each_k` over the components present, (..., K, *) -> (..., *)."""
        axis = self.weights.ndim - 1
        weights = self.weights.reshape(self.weights.shape + (1,) * (each.ndim - self.weights.ndim))
        return torch.where(weights > 0, weights * each, 0.0).sum(axis)


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
) -> Mixture:
    """Fit a mixture of K components to weights by expectation-maximisation.

    Args:
        weights: (..., N) non-negative, rows sum to one; half precision is computed in float32.
        positions: (N, d) shared or (..., N, d) cell centres, d = 1 or 2.
        components: K, the most components a row can have; it may exceed the number of locations.
        iterations: EM steps; the gradient goes through all of them.
        restarts: how many starts to try; the one with the best likelihood is kept, row by row.
        start: "random" (the paper's), "spread", or "split", of which there is only one; see `foveate.ops.starts`.
        mask: (..., N) True where a location counts; weights elsewhere are ignored and the rest is renormalised.
        generator: for the starts; the generator of seed 0 when absent, so that the same call gives the same result.
        floor: covariance of a point in its cell: "cell" reads it off the positions, a number means `floor * I`.
        family: density class of the components (a `functools.partial` sets its options). EM fits Gaussians, because the
            responsibilities of densities with an edge are 0/0 outside; each then becomes the member of the family with
            the same mean and covariance.
        sparse_components: mixing weights by `π = sparsemax(1.5 Σ_n w_n γ_n)` in every M step instead of `Σ_n w_n γ_n`.
            Components that share a region then compete until one is left, so that K varies without a choice of model;
            components apart from each other stay as long as their masses differ by less than 2/3.

    Returns:
        The mixture. The draws behind the starts are the same for all rows: a row's result does not depend on the batch.
        A component that loses its mass has weight exactly zero. A row without weight has no component at all.

    Reference: Farinhas et al. 2021, §4; `fv.select_mixture` for the number of components.

    >>> positions = cell_centres(8, 8)
    >>> weights = torch.softmax(-60 * (positions - 0.3).square().sum(-1), -1) / 2
    >>> weights = weights + torch.softmax(-60 * (positions - 0.8).square().sum(-1), -1) / 2
    >>> fit = fit_mixture(weights, positions, components=2, start="split")
    >>> fit.components.mean.mul(100).round().tolist()
    [[30.0, 30.0], [80.0, 80.0]]
    """
    where = "fit_mixture"
    _check_options(where, start, components=components, iterations=iterations, restarts=restarts)
    points, filled = _points(where, weights, positions, mask, floor)
    mixing: Mixing | None = _sparse_mixing if sparse_components else None
    begin = STARTS[start](points, components, restarts, generator or torch.Generator().manual_seed(0))
    if restarts > 1:
        with torch.no_grad():
            begin = _take(begin, expectation_maximisation(points, begin, iterations, mixing)[1].argmax(-1))
    state, log_likelihood = expectation_maximisation(points, begin, iterations, mixing)
    return _result(state, log_likelihood, filled, family)


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
) -> Mixture:
    """Fit a mixture whose number of components is chosen for every row by itself.

    `K* = argmin_K −2 ℓ_K + λ K`, ℓ_K the log-likelihood of the best fit with K components (`foveate.ops.em`).

    Args:
        weights, positions, iterations, restarts, mask, generator, floor, family: as in `fit_mixture`.
        max_components: the largest K tried.
        penalty: λ. With floor "cell" 0.3 finds the number of separate blobs. A floor of 1e-6 charges too little for
            components on single cells: every K buys likelihood, and no λ repairs that.
        start: as in `fit_mixture`; "spread" finds all the blobs in three starts where "random" misses one in every ten.

    Returns:
        The mixture with `criterion` (..., max_components); components beyond K* have weight zero. The candidates are
        compared without a gradient, then the chosen start is run again with one.

    Reference: Farinhas et al. 2021, equation 15; their likelihood is summed over the batch, ours is not.

    >>> positions = cell_centres(14, 14)
    >>> weights = torch.softmax(-60 * (positions - torch.tensor([[[0.3, 0.3]], [[0.7, 0.7]]])).square().sum(-1), -1)
    >>> select_mixture(torch.stack([weights[0], weights.mean(0)]), positions).components_used.tolist()
    [1, 2]
    """
    where = "select_mixture"
    _check_options(where, start, max_components=max_components, iterations=iterations, restarts=restarts)
    check_number(where, "penalty", penalty, least=0, advice="0.3 suits floor='cell'")
    points, filled = _points(where, weights, positions, mask, floor)
    generator = generator or torch.Generator().manual_seed(0)
    begins, states, likelihoods = [], [], []
    for components in range(1, max_components + 1):
        begin = STARTS[start](points, components, restarts if components > 1 else 1, generator)
        with torch.no_grad():
            state, likelihood = expectation_maximisation(points, begin, iterations)
            best = likelihood.argmax(-1)
        begins.append(_pad(_take(begin, best), max_components))
        states.append(_pad(_take(state, best), max_components))
        likelihoods.append(likelihood.amax(-1))
    likelihood = torch.stack(likelihoods, dim=-1)
    criterion = penalty * torch.arange(1, max_components + 1, device=likelihood.device) - 2 * likelihood
    chosen = criterion.argmin(-1)
    if is_tracing() or (points.weights.requires_grad and torch.is_grad_enabled()):
        state, log_likelihood = expectation_maximisation(points, _take(_join(begins), chosen), iterations)
    else:
        state, log_likelihood = _take(_join(states), chosen), likelihood.gather(-1, chosen[:, None])
    fit = _result(state, log_likelihood, filled, family)
    return replace(fit, criterion=criterion.reshape(*filled.shape, max_components))


def _check_options(where: str, start: str, **counts: int) -> None:
    lookup(f"{where} start", start, STARTS)
    for name, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{where}: expected {name} as a whole number >= 1, got {value!r}; ask for at least one")


def _points(where: str, weights: Tensor, positions: Tensor, mask: Tensor | None, floor: Floor) -> tuple[Points, Tensor]:
    """The points with one batch axis, and (...) whether a row has weight; a row without gets even weights meanwhile."""
    check_floating(where, "weights", weights)
    weights = at_least_float32(weights)
    positions = positions.to(weights)
    check_points(where, weights, positions, mask)
    if positions.shape[-1] not in (1, 2):
        raise ShapeError(
            f"{where}: expected positions (..., N, 1) or (..., N, 2), got {tuple(positions.shape)}; use one or two axes"
        )
    batch, N = weights.shape[:-1], weights.shape[-1]
    if N == 0:
        raise ShapeError(f"{where}: expected at least one location, got weights {tuple(weights.shape)}; skip such rows")
    if mask is not None:
        weights = torch.where(mask, weights, 0.0)
    total = weights.sum(-1, keepdim=True)
    check_weights(where, weights, total)
    filled = total > 0
    weights = torch.where(filled, weights / torch.where(filled, total, 1.0), 1 / N)
    spread = floor_matrix(where, positions, mask, floor).diagonal(dim1=-2, dim2=-1)
    if positions.ndim > 2:
        positions = positions.expand(*batch, *positions.shape[-2:]).reshape(-1, *positions.shape[-2:])
    if spread.ndim > 1:
        spread = spread.expand(*batch, -1).reshape(-1, spread.shape[-1])
    return Points(weights.reshape(-1, N), positions, spread), filled.squeeze(-1)


def _sparse_mixing(mass: Tensor) -> Tensor:
    return sparsemax(SPARSE_SCALE * mass)


def _take(state: State, index: Tensor) -> State:
    """The mixture `index` (B,) of every row, as a state with one mixture a row."""
    row = torch.arange(len(index), device=index.device)
    return State(*(x[row, index].unsqueeze(1) for x in (state.log_weights, state.mean, state.covariance)))


def _pad(state: State, components: int) -> State:
    """The state with absent components added up to `components`."""
    B, R, K, d = state.mean.shape
    missing = components - K
    eye = torch.eye(d, dtype=state.mean.dtype, device=state.mean.device)
    return State(
        torch.nn.functional.pad(state.log_weights, (0, missing), value=-torch.inf),
        torch.nn.functional.pad(state.mean, (0, 0, 0, missing), value=0.5),
        torch.cat([state.covariance, (eye / 12).expand(B, R, missing, d, d)], dim=2),
    )


def _join(states: list[State]) -> State:
    parts = ([s.log_weights for s in states], [s.mean for s in states], [s.covariance for s in states])
    return State(*(torch.cat(part, dim=1) for part in parts))


def _result(state: State, log_likelihood: Tensor, filled: Tensor, family: Family) -> Mixture:
    """The mixture in the batch shape of `filled` from a state with one mixture a row."""
    mean = state.mean.reshape(*filled.shape, *state.mean.shape[2:])
    covariance = state.covariance.reshape(*mean.shape, mean.shape[-1])
    weights = torch.where(filled.unsqueeze(-1), state.log_weights.exp().reshape(mean.shape[:-1]), 0.0)
    likelihood = torch.where(filled, log_likelihood.reshape(filled.shape), 0.0)
    return Mixture(_members(family, mean, covariance), weights, likelihood)


def _members(family: Family, mean: Tensor, covariance: Tensor) -> Density:
    """The members of the family with these means and covariances."""
    members = family(mean, covariance)
    if not isinstance(members, CompactDensity):
        return members
    scale = scale_of_covariance(covariance.double(), members.power).to(mean.dtype)
    return replace(cast(Any, members), scale=scale)
