"""Draw every figure of the documentation from made pictures, the same on every run.

python docs/figures.py [name ...]
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

import foveate as fv
from foveate import plot
from foveate.ops import cell_centres

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path(__file__).resolve().parent / "images"
DPI = 110


def ellipse(long: float, short: float, degrees: float) -> Tensor:
    """Covariance with deviations `long` and `short`, the long axis turned by `degrees`, y down."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = torch.tensor([[c, -s], [s, c]])
    return turn @ torch.diag(torch.tensor([long**2, short**2])) @ turn.T


def from_moments(mean: Tensor, covariance: Tensor) -> dict[str, fv.ops.Density]:
    """One member of every family with the same mean and covariance, by title."""
    from foveate.ops.radial import scale_of_covariance

    return {
        "Gaussian": fv.Gaussian(mean, covariance),
        "beta-Gaussian, alpha 1.25": fv.BetaGaussian(mean, scale_of_covariance(covariance, 4), 1.25),
        "beta-Gaussian, alpha 1.5": fv.BetaGaussian(mean, scale_of_covariance(covariance, 2), 1.5),
        "truncated paraboloid": fv.TruncatedParaboloid(mean, scale_of_covariance(covariance, 1)),
    }


def blobs(*centres: tuple[float, float], noise: float = 0.0, seed: int = 0, grid: tuple[int, int] = (14, 14)) -> Tensor:
    """Weights (1, N) of equal round blobs, with noise in the logarithms."""
    positions = cell_centres(*grid)
    distance2 = (positions - torch.tensor(centres)[:, None]).square().sum(-1)
    mass = torch.exp(-distance2 / (2 * 0.07**2)).sum(0)
    rough = torch.randn(len(positions), generator=torch.Generator().manual_seed(seed))
    weights = mass * torch.exp(noise * rough)
    return (weights / weights.sum())[None]


def density_families() -> Figure:
    return plot.compare(None, from_moments(torch.tensor([0.5, 0.5]), ellipse(0.17, 0.08, -25)))


def density_line() -> Figure:
    return plot.profiles(from_moments(torch.tensor([0.5]), torch.tensor([[0.12**2]])))


def density_mixture() -> Figure:
    means = torch.tensor([[0.3, 0.35], [0.68, 0.66]])
    covariances = torch.stack([ellipse(0.14, 0.06, -35), ellipse(0.08, 0.08, 0)])
    weights = torch.tensor([0.6, 0.4])
    kinds = from_moments(means, covariances)
    kept = ("Gaussian", "beta-Gaussian, alpha 1.5", "truncated paraboloid")
    return plot.compare(None, {f"mixture: {name}": fv.Mixture(kinds[name], weights) for name in kept})


def density_choice() -> Figure:
    places = ((0.27, 0.3), (0.72, 0.38), (0.42, 0.76))
    positions = cell_centres(14, 14)
    drawn: dict[str, fv.Attended | fv.ops.Density] = {}
    for count in (1, 2, 3):
        weights = blobs(*places[:count], noise=0.5, seed=count)
        drawn[f"weights, {count} planted"] = fv.Attended(torch.zeros(1, 0), weights, grid=(14, 14))
    for count in (1, 2, 3):
        fit = fv.select_mixture(blobs(*places[:count], noise=0.5, seed=count), positions)
        drawn[f"chosen, {count} planted"] = fit.mixture
    return plot.compare(None, drawn, columns=3, style=None)


def density_floor() -> Figure:
    positions, weights = cell_centres(14, 14), blobs((0.35, 0.6), noise=0.5, seed=1)
    return plot.compare(
        None,
        {
            "weights, 1 planted": fv.Attended(torch.zeros(1, 0), weights, grid=(14, 14)),
            'floor="cell"': fv.select_mixture(weights, positions).mixture,
            "floor=1e-6": fv.select_mixture(weights, positions, floor=1e-6).mixture,
        },
        top=60,
    )


FIGURES: dict[str, Callable[[], Figure]] = {
    "density-families": density_families,
    "density-line": density_line,
    "density-mixture": density_mixture,
    "density-choice": density_choice,
    "density-floor": density_floor,
}


def main(names: list[str]) -> None:
    torch.manual_seed(0)
    for name in names or FIGURES:
        buffer = BytesIO()
        FIGURES[name]().savefig(buffer, dpi=DPI)
        # a palette is enough for the eye and makes the file three times smaller
        Image.open(buffer).convert("RGB").quantize(256).save(OUT / f"{name}.png", optimize=True)
        print(OUT / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
