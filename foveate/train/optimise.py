"""Optimisers made of their settings, and what happens to gradients before a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from foveate.train.config import SGD, Adam, AdamW
from foveate.train.config import Optimiser as Settings

OPTIMISERS: dict[type, type[Optimizer]] = {Adam: torch.optim.Adam, AdamW: torch.optim.AdamW, SGD: torch.optim.SGD}


def build_optimiser(settings: Settings, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """The optimiser over the parameters that train.

    >>> build_optimiser(SGD(0.1, momentum=0.9), [nn.Parameter(torch.zeros(1))]).defaults["momentum"]
    0.9
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return OPTIMISERS[type(settings)](trained, **asdict(settings))


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def scale_and_clip(gradients: list[Tensor], scale: Tensor | float, clip: float | None) -> Tensor:
    """Multiply gradients by `scale`, then shorten them to the norm `clip`, in place, and return the norm before that.

    `g ← s g · min(1, clip / ‖s g‖)` with the Euclidean norm over all gradients together.

    >>> gradients = [torch.tensor([3.0]), torch.tensor([4.0])]
    >>> float(scale_and_clip(gradients, 2.0, clip=5.0)), gradients[1].tolist()
    (10.0, [4.0])
    """
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients)
    norm = torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms])) * scale
    factor = scale if clip is None else scale * (clip / norm.clamp_min(clip))
    torch._foreach_mul_(gradients, factor)
    return norm
