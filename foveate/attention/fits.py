"""How discrete weights become a density: the part that makes one continuous attention differ from another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.ops.alpha_gradient import alpha_change
from foveate.ops.basis import Basis
from foveate.ops.beta_gaussian import BetaGaussian
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.mixture_fit import Likelihood, fit_mixture, select_mixture
from foveate.ops.moments import Floor
from foveate.ops.paraboloid import TruncatedParaboloid
from foveate.registry import lookup

FAMILIES: dict[str, type[Gaussian] | type[TruncatedParaboloid] | type[BetaGaussian]] = {
    "gaussian": Gaussian,
    "truncated-paraboloid": TruncatedParaboloid,
    "beta-gaussian": BetaGaussian,
}


class Fit(ABC):
    """Turns weights into a density; a frozen dataclass of options."""

    @abstractmethod
    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        """The density for weights (B, ..., N) at positions (N, d) or (B, ..., N, d)."""

    def expect(self, density: Density, basis: Basis) -> Tensor:
        """Expectation of every basis function under a density of this fit, (B, ..., J)."""
        return density.expect(basis)


@dataclass(frozen=True)
class MatchMoments(Fit):
    """The member of a family with the mean and covariance of the weights (Farinhas 2021, algorithm 2).

    Attributes:
        family: of densities: "gaussian" or "truncated-paraboloid".
        floor: added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers).
    """

    family: str = "gaussian"
    floor: Floor = "cell"

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        return lookup("family", self.family, FAMILIES).from_weights(weights, positions, mask, self.floor)


@dataclass(frozen=True)
class MatchBetaGaussian(Fit):
    """The beta-Gaussian with the mean and covariance of the weights.

    Attributes:
        alpha: 1 < alpha <= 2, from the Gaussian to the truncated paraboloid. A scalar tensor or parameter gets the
            exact gradient of the context; the density and its map are constants in it.
        floor: added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers).
    """

    alpha: float | Tensor = 1.5
    floor: Floor = "cell"

    def __post_init__(self) -> None:
        if isinstance(self.alpha, Tensor) and self.alpha.numel() != 1:
            raise ShapeError(
                f"continuous-entmax: expected alpha as a number or a tensor of one, got {tuple(self.alpha.shape)}; one "
                "alpha serves all heads"
            )

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        return BetaGaussian.from_weights(weights, positions, mask, self.floor, alpha=_number(self.alpha))

    def expect(self, density: Density, basis: Basis) -> Tensor:
        expected = density.expect(basis)
        if not isinstance(self.alpha, Tensor) or not self.alpha.requires_grad or not torch.is_grad_enabled():
            return expected
        return expected + alpha_change(density.mean, density.covariance, self.alpha.reshape(()), basis)


def _number(alpha: float | Tensor) -> float:
    return float(alpha.detach()) if isinstance(alpha, Tensor) else alpha


@dataclass(frozen=True)
class ChooseMixture(Fit):
    """Training: a mixture whose K is drawn for the batch; evaluation: K chosen for each example (Farinhas et al. 2021).

    The papers' own model has `background=False, floor=1e-6, likelihood="point", start="random"`.

    Attributes:
        max_components: the largest number of components K.
        penalty: λ of the choice of K in evaluation: the larger, the fewer components; see `fv.select_mixture`.
        restarts: starts of EM per K in evaluation.
        iterations: EM steps in evaluation.
        training_iterations: EM steps in training.
        floor: added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers).
        likelihood: of a weight under a component: "cell" for the mean over its cell, or "point" for its centre.
        background: whether a uniform component takes up attention that is nowhere in particular.
        start: of EM: "spread", "random" or "split"; random starts of training use torch's global generator.
        family: of the components: "gaussian", "truncated-paraboloid" or "beta-gaussian".
    """

    max_components: int = 4
    penalty: float = 0.3
    restarts: int = 3
    iterations: int = 10
    training_iterations: int = 5
    floor: Floor = "cell"
    likelihood: Likelihood = "cell"
    background: bool = True
    start: str = "spread"
    family: str = "gaussian"

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        family = lookup("family", self.family, FAMILIES)
        if not training:
            return select_mixture(
                weights,
                positions,
                self.max_components,
                self.penalty,
                self.restarts,
                self.iterations,
                self.floor,
                mask,
                start=self.start,
                family=family,
                background=self.background,
                likelihood=self.likelihood,
            )
        draw, seed = torch.randint(self.max_components, ()), torch.randint(2**31, ())
        return fit_mixture(
            weights,
            positions,
            int(draw) + 1,
            self.training_iterations,
            start=self.start,
            mask=mask,
            generator=torch.Generator().manual_seed(int(seed)),
            floor=self.floor,
            family=family,
            background=self.background,
            likelihood=self.likelihood,
        )


@dataclass(frozen=True)
class SplitMixture(Fit):
    """K-MCA: a fixed number of components, started by splitting the image (Farinhas 2021, §6.3).

    Attributes:
        components: number of components K.
        iterations: EM steps; None for 2 with two components and 5 with more, as in the thesis.
        floor: added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers).
        likelihood: of a weight under a component: "cell" for the mean over its cell, or "point" for its centre, as in
            the papers.
        family: of the components: "gaussian", "truncated-paraboloid" or "beta-gaussian".
    """

    components: int = 2
    iterations: int | None = None
    floor: Floor = "cell"
    likelihood: Likelihood = "cell"
    family: str = "gaussian"

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        steps = self.iterations or (2 if self.components <= 2 else 5)
        family = lookup("family", self.family, FAMILIES)
        return fit_mixture(
            weights,
            positions,
            self.components,
            steps,
            start="split",
            mask=mask,
            floor=self.floor,
            family=family,
            likelihood=self.likelihood,
        )


@dataclass(frozen=True)
class SparseMixture(Fit):
    """Mixing weights by sparsemax: superfluous components get weight zero, so K varies without model selection.

    The starts are spread over the weights: the parts of a symmetric map would be identical and would never compete.

    Attributes:
        max_components: number of components at the start.
        iterations: EM steps.
        floor: added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers).
        family: of the components: "gaussian", "truncated-paraboloid" or "beta-gaussian".
    """

    max_components: int = 4
    iterations: int = 10
    floor: Floor = "cell"
    family: str = "gaussian"

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        return fit_mixture(
            weights,
            positions,
            self.max_components,
            self.iterations,
            start="spread",
            mask=mask,
            floor=self.floor,
            family=lookup("family", self.family, FAMILIES),
            sparse_components=True,
        )
