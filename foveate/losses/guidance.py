"""Guidance of attention towards where people looked, or where the truth says one must look."""

from __future__ import annotations

from torch import Tensor

from foveate.checks import check_shape
from foveate.ops.divergence import js_divergence, kl_divergence

# The mass below which a cell counts as empty inside a logarithm: a sparse map has cells with none at all.
FLOOR = 1e-6


def kl_guidance(maps: Tensor, targets: Tensor) -> Tensor:
    """`Σ_b KL(target_b ‖ map_b)` in nats: leaving out what must be seen costs most.

    Args:
        maps: (B, H, W) attention as `Attended.map` gives it.
        targets: (B, H, W) distributions on the same grid; a row of zeros has no target and counts nothing.

    Returns:
        a scalar. Mass below 1e-6 is taken for 1e-6, so that the value is finite for sparse maps; a cell below it gets
        no gradient of its own.

    >>> import torch
    >>> kl_guidance(torch.full((1, 1, 2), 0.5), torch.tensor([[[1.0, 0.0]]])).exp().item()
    2.0
    """
    _check("kl_guidance", maps, targets)
    return kl_divergence(targets, maps, floor=FLOOR).sum()


def js_guidance(maps: Tensor, targets: Tensor) -> Tensor:
    """`Σ_b JS(target_b, map_b)` in bits: bounded by one an example, and looking elsewhere costs too.

    Args and returns as `kl_guidance`.

    >>> import torch
    >>> js_guidance(torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 0.0]]])).item()
    1.0
    """
    _check("js_guidance", maps, targets)
    has = targets.sum((-2, -1)) > 0
    return (js_divergence(targets, maps, floor=FLOOR) * has).sum()


def _check(where: str, maps: Tensor, targets: Tensor) -> None:
    check_shape(where, "maps", maps, (None, None, None), "(B, H, W)")
    check_shape(where, "targets", targets, tuple(maps.shape), "(B, H, W)")
