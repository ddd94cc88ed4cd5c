"""Mixtures: time of a fit and of the choice of K, beside scikit-learn, and how often the planted K is found.

    OMP_NUM_THREADS=1 python benchmarks/mixtures.py [--save]

Batch size 64, float32, one thread; microseconds per example, best and median of several runs. Target: 300 for K = 4,
196 locations, 10 iterations with backward; 500 for the choice among K <= 4 with 3 restarts, forward.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from measure import machine, save, show
from sklearn.mixture import GaussianMixture
from torch import Tensor

from foveate.ops.compact import TruncatedParaboloid
from foveate.ops.grid import cell_centres
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_fit import fit_mixture, select_mixture

B = 64


def cost(f: Callable[[], object], repeat: int = 21) -> dict[str, float]:
    """Best and median time of a call, in microseconds per example."""
    for _ in range(3):
        f()
    times = []
    for _ in range(repeat):
        start = perf_counter()
        f()
        times.append((perf_counter() - start) / B * 1e6)
    return {"best us": min(times), "median us": median(times)}


def forward(run: Callable[..., Mixture], H: int = 14, W: int = 14, **options: Any) -> Callable[[], object]:
    weights, positions = torch.softmax(2 * torch.randn(B, H * W), -1), cell_centres(H, W)
    return lambda: run(weights, positions, **options)


def with_backward(run: Callable[..., Mixture], H: int = 14, W: int = 14, **options: Any) -> Callable[[], object]:
    scores, positions = (2 * torch.randn(B, H * W)).requires_grad_(), cell_centres(H, W)

    def step() -> object:
        mixture = run(torch.softmax(scores, -1), positions, **options)
        value = mixture.weights.square().sum() + mixture.components.mean.sum() + mixture.components.covariance.sum()
        return torch.autograd.grad(value, scores)

    return step


def scikit_learn() -> object:
    """The same number of points, components and iterations, without weights and gradient, example by example."""
    points = np.random.default_rng(0).random((196, 2))
    model = GaussianMixture(4, init_params="random", max_iter=10, tol=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [model.fit(points) for _ in range(B)]


def headline_rows() -> list[dict[str, Any]]:
    none = "-"
    work: list[tuple[str, float | str, Callable[[], object]]] = [
        ("EM, K = 4, 10 iterations, with backward", 300, with_backward(fit_mixture, components=4)),
        ("the same, forward", none, forward(fit_mixture, components=4)),
        ("choice among K <= 4, 3 restarts, forward", 500, forward(select_mixture)),
        ("the same, with backward", none, with_backward(select_mixture)),
        ("sparse components, with backward", none, with_backward(fit_mixture, components=4, sparse_components=True)),
        ("paraboloids, with backward", none, with_backward(fit_mixture, components=4, family=TruncatedParaboloid)),
        ("scikit-learn, K = 4, 10 iterations, forward", none, scikit_learn),
    ]
    return [{"work": name, **cost(f), "to reach": target} for name, target, f in work]


def growth_rows() -> list[dict[str, Any]]:
    """Forward and backward of EM by N, by K and by the number of iterations."""
    shapes: list[dict[str, Any]] = [{"H": H, "W": W} for H, W in ((7, 7), (10, 10), (14, 14), (19, 32))]
    shapes += [{"components": K} for K in (1, 2, 4, 8)] + [{"iterations": n} for n in (2, 5, 10, 20)]
    rows = []
    for changed in shapes:
        setting = {"H": 14, "W": 14, "components": 4, "iterations": 10} | changed
        row = {"N": setting["H"] * setting["W"], "K": setting["components"], "iterations": setting["iterations"]}
        rows.append({"against": "N" if "H" in changed else next(iter(changed))} | row)
        rows[-1] |= cost(with_backward(fit_mixture, **setting), repeat=11)
    return rows


def planted_maps(count: int, K: int, noise: float, generator: torch.Generator) -> Tensor:
    """14 x 14 maps of K blobs at least 0.4 apart; each cell is multiplied by exp(noise z) with normal z."""
    positions, maps = cell_centres(14, 14), []
    while len(maps) < count:
        centres = 0.1 + 0.8 * torch.rand(K, 2, generator=generator)
        if K > 1 and torch.pdist(centres).min() < 0.4:
            continue
        deviations = 0.04 + 0.04 * torch.rand(K, 1, 2, generator=generator)
        blobs = torch.exp(-0.5 * ((positions - centres[:, None]) / deviations).square().sum(-1))
        masses = 0.5 + 0.5 * torch.rand(K, 1, generator=generator)
        weights = (masses * blobs / blobs.sum(-1, keepdim=True)).sum(0)
        weights = weights * torch.exp(noise * torch.randn(196, generator=generator))
        maps.append(weights / weights.sum())
    return torch.stack(maps)


def choice_rows() -> list[dict[str, Any]]:
    """Fraction of 200 maps of one, two and three blobs for which the planted number is found."""
    positions = cell_centres(14, 14)
    ways: list[tuple[str, Callable[[Tensor], Mixture]]] = [
        ("choice, floor cell, spread", lambda w: select_mixture(w, positions)),
        ("choice, floor cell, random", lambda w: select_mixture(w, positions, start="random")),
        ("choice, floor 1e-6, spread", lambda w: select_mixture(w, positions, floor=1e-6)),
        ("choice, floor 1e-6, spread, penalty 1", lambda w: select_mixture(w, positions, floor=1e-6, penalty=1.0)),
        ("sparse components, spread", lambda w: fit_mixture(w, positions, 4, 10, 3, "spread", sparse_components=True)),
    ]
    rows = []
    for noise in (0.3, 0.6):
        generator = torch.Generator().manual_seed(0)
        maps = {K: planted_maps(200, K, noise, generator) for K in (1, 2, 3)}
        for name, run in ways:
            right = {f"{K} blobs": float((run(maps[K]).components_used == K).float().mean()) for K in maps}
            rows.append({"way": name, "noise": noise} | right)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results/mixtures.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = machine(["foveate", "torch", "scikit-learn"])
    tables = {"cost": headline_rows(), "growth": growth_rows(), "planted": choice_rows()}
    for title, rows in tables.items():
        show(f"{title}: batch {B}, float32, {where['processor']}", rows)
    if options.save:
        print("saved in", save("mixtures", where, tables))


if __name__ == "__main__":
    main()
