"""How discrete weights become a density: the part that makes one continuous attention differ from another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any
from warnings import warn

import torch
from torch import Tensor

from foveate.errors import ShapeError
from foveate.ops.basis import Basis
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid, alpha_change
from foveate.ops.density import Density
from foveate.ops.gaussian import Gaussian
from foveate.ops.mixture_choice import Criterion
from foveate.ops.mixture_fit import Likelihood, fit_mixture, select_mixture
from foveate.ops.moments import Floor
from foveate.registry import lookup

RESTARTS, TRAINING_ITERATIONS = 3, 5  # Farinhas 2021, §6.3.1; Farinhas et al. 2021, §6
# Beside criterion="batch": the options with which Farinhas et al. 2021 was run, §6.1 and the released code.
RELEASED = {
    **{"max_components": 4, "penalty": 5.0, "iterations": 10, "floor": 1e-6, "likelihood": "point"},
    **{"background": False, "start": "random"},
}
FAMILIES: dict[str, type[Gaussian] | type[TruncatedParaboloid] | type[BetaGaussian]] = {
    "gaussian": Gaussian,
    "truncated-paraboloid": TruncatedParaboloid,
    "beta-gaussian": BetaGaussian,
}


class Fit(ABC):
    """Turns weights into a density; a frozen dataclass of options, annotated with their meanings."""

    @abstractmethod
    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        """The density for weights (B, ..., N) at positions (N, d) or (B, ..., N, d)."""

    def expect(self, density: Density, basis: Basis) -> Tensor:
        """Expectation of every basis function under a density of this fit, (B, ..., J)."""
        return density.expect(basis)

    def learnable(self) -> dict[str, Any]:
        """The options that training may change, by name."""
        return {}

    def using(self, learned: Mapping[str, Any]) -> Fit:
        """This fit with the options that training changes as they are now."""
        return replace(self, **learned) if learned else self  # type: ignore[type-var]


CellFloor = Annotated[
    Floor, 'added to the variances: "cell" for the variance of one cell, or a number (1e-6 in the papers)'
]
Parts = Annotated[str, 'of the components: "gaussian", "truncated-paraboloid" or "beta-gaussian"']
Of = Annotated[
    Likelihood, 'of a weight: "cell" for the mean over its cell, or "point" for its centre, as in the papers'
]


@dataclass(frozen=True)
class MatchMoments(Fit):
    """The member of a family with the mean and covariance of the weights (Farinhas 2021, algorithm 2)."""

    family: Annotated[str, 'of densities: "gaussian" or "truncated-paraboloid"'] = "gaussian"
    floor: CellFloor = "cell"

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        return lookup("family", self.family, FAMILIES).from_weights(weights, positions, mask, self.floor)


@dataclass(frozen=True)
class MatchBetaGaussian(Fit):
    """The beta-Gaussian with the mean and covariance of the weights."""

    alpha: Annotated[
        float | Tensor,
        "1 < alpha <= 2, from the Gaussian to the truncated paraboloid; a scalar tensor or parameter gets the exact "
        "gradient of the context, and the density and its map are constants in it",
    ] = 1.5
    floor: CellFloor = "cell"

    def __post_init__(self) -> None:
        if isinstance(self.alpha, Tensor) and self.alpha.numel() != 1:
            raise ShapeError(
                f"continuous-entmax: expected alpha as a number or a tensor of one, got {tuple(self.alpha.shape)}; one "
                "alpha serves all heads"
            )

    def learnable(self) -> dict[str, Any]:
        return {"alpha": self.alpha}

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
    """

    max_components: Annotated[int, "the largest number of components K"] = 4
    penalty: Annotated[float, "λ of the choice of K in evaluation: the larger, the fewer; see `fv.select_mixture`"] = (
        0.3
    )
    iterations: Annotated[int, "EM steps in evaluation; training takes 5, as in the papers"] = 10
    floor: CellFloor = "cell"
    likelihood: Of = "cell"
    background: Annotated[bool, "whether a uniform component takes up attention that is nowhere in particular"] = True
    start: Annotated[str, 'of EM: "spread", "random" (by torch\'s global generator in training) or "split"'] = "spread"
    family: Parts = "gaussian"
    criterion: Annotated[
        Criterion,
        'of the choice of K: "own", "equation" as printed in the paper, or "batch", that of its released code, which '
        "depends on the other images of the batch; see `fv.select_mixture`",
    ] = "own"

    def __post_init__(self) -> None:
        if self.criterion == "batch" and any(getattr(self, name) != value for name, value in RELEASED.items()):
            theirs = ", ".join(f"{name}={value!r}" for name, value in RELEASED.items())
            warn(
                "multimodal: criterion='batch' makes the result of an image depend on the other images of its batch; "
                f"it reproduces Farinhas et al. 2021 together with {theirs}; use criterion='own' for anything else",
                stacklevel=2,
            )

    def __call__(self, weights: Tensor, positions: Tensor, mask: Tensor | None, *, training: bool) -> Density:
        family = lookup("family", self.family, FAMILIES)
        if not training:
            return select_mixture(
                weights,
                positions,
                self.max_components,
                self.penalty,
                RESTARTS,
                self.iterations,
                self.floor,
                mask,
                start=self.start,
                family=family,
                background=self.background,
                likelihood=self.likelihood,
                criterion=self.criterion,
            )
        draw, seed = torch.randint(self.max_components, ()), torch.randint(2**31, ())
        return fit_mixture(
            weights,
            positions,
            int(draw) + 1,
            TRAINING_ITERATIONS,
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
    """K-MCA: a fixed number of components, started by splitting the image (Farinhas 2021, §6.3)."""

    components: Annotated[int, "number of components K"] = 2
    iterations: Annotated[int | None, "EM steps; None for 2 with two components and 5 with more, as in the thesis"] = (
        None
    )
    floor: CellFloor = "cell"
    likelihood: Of = "cell"
    family: Parts = "gaussian"

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
    """

    max_components: Annotated[int, "number of components at the start"] = 4
    iterations: Annotated[int, "EM steps"] = 10
    floor: CellFloor = "cell"
    family: Parts = "gaussian"

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
