"""An exponential moving average of the weights, which is what is evaluated and kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """`a ← d a + (1 − d) w` after every step, with d = min(decay, (1 + step) / (10 + step)).

    The smaller d of the first steps forgets the random weights that training begins with.

    Args:
        model: whose parameters are averaged; buffers are statistics already and stay as they are.
        decay: below one; 0.99 averages over about a hundred steps.

    >>> layer = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(layer, decay=0.9)
    >>> with average.applied():
    ...     bool(torch.equal(layer.weight, average.tensors["weight"]))
    True
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.tensors = {name: p.detach().clone() for name, p in self._trained()}

    def _trained(self) -> list[tuple[str, Tensor]]:
        return [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the average towards the weights after `step` steps."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        names, weights = zip(*self._trained(), strict=True)
        torch._foreach_lerp_([self.tensors[name] for name in names], [p.detach() for p in weights], share)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within the body the model has the averaged weights."""
        own = {name: p.detach().clone() for name, p in self._trained()}
        self._copy(self.tensors)
        try:
            yield
        finally:
            self._copy(own)

    @torch.no_grad()
    def _copy(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self._trained():
            parameter.copy_(tensors[name])
