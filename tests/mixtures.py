"""Weights to fit mixtures to, and ways to compare fits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from foveate.ops import kernels
from foveate.ops.grid import cell_centres
from foveate.ops.mixture import Mixture


@contextmanager
def only_torch() -> Iterator[None]:
    """Compute without the native kernels."""
    module, kernels._module = kernels._module, None
    try:
        yield
    finally:
        kernels._module = module


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_weights(*shape: int, seed: int = 0, sharpness: float = 2.0) -> Tensor:
    return torch.softmax(sharpness * torch.randn(shape, dtype=torch.float64, generator=seeded(seed)), -1)


def bumps(positions: Tensor, centres: Tensor, deviation: float) -> Tensor:
    """Weights from equal round bumps at `centres` (..., K, 2)."""
    distance2 = (positions - centres.to(positions)[..., None, :]).square().sum(-1)
    return torch.softmax(-0.5 * distance2 / deviation**2, -1).mean(-2)


def planted_maps(count: int, K: int, seed: int, noise: float = 0.3) -> Tensor:
    """14 x 14 maps of K separate blobs of random place, size, shape and mass; each cell is off by a random factor."""
    g, positions, maps = seeded(seed), cell_centres(14, 14, dtype=torch.float64), []
    while len(maps) < count:
        centres = 0.1 + 0.8 * torch.rand(K, 2, dtype=torch.float64, generator=g)
        if K > 1 and torch.pdist(centres).min() < 0.4:
            continue
        deviations = 0.04 + 0.04 * torch.rand(K, 1, 2, dtype=torch.float64, generator=g)
        masses = 0.5 + 0.5 * torch.rand(K, 1, dtype=torch.float64, generator=g)
        blobs = torch.exp(-0.5 * ((positions - centres[:, None]) / deviations).square().sum(-1))
        blob = (masses * blobs / blobs.sum(-1, keepdim=True)).sum(0)
        blob = blob * torch.exp(noise * torch.randn(196, dtype=torch.float64, generator=g))
        maps.append(blob / blob.sum())
    return torch.stack(maps)


def everything(fit: Mixture) -> list[Tensor]:
    parts = fit.components
    return [fit.weights, parts.mean, parts.covariance, fit.log_likelihood]


def assert_same(first: Mixture, second: Mixture, tolerance: float = 1e-9) -> None:
    for a, b in zip(everything(first), everything(second), strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def differ(first: Mixture, second: Mixture) -> bool:
    return any((a - b).abs().max() > 1e-6 for a, b in zip(everything(first), everything(second), strict=True))
