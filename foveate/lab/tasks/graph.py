"""A trained model as one graph with tensors as inputs and outputs: what `foveate export` writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError
from foveate.lab.features import ImageFeatures


@dataclass(frozen=True)
class RunGraph:
    """A module whose inputs and outputs are tensors, with examples.

    Attributes:
        module: in evaluation mode.
        inputs: example tensors; the first axis of each is the batch.
        input_names, output_names: of the graph.
        usage: what the inputs and outputs are, for a person.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    usage: str


class TensorModule(nn.Module):
    """A function of a model's tensors as a module, so that torch can export it.

    >>> TensorModule(nn.Linear(2, 1), lambda model, x: model(x))(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, *inputs: Tensor) -> Any:
        """What the function returns."""
        return self.function(self.model, *inputs)


def example_pixels(read: Callable[[list[np.ndarray]], Tensor | ImageFeatures], count: int = 2) -> Tensor:
    """Random images as the model reads them.

    Raises DataError if the model reads features from a store instead of pixels.
    """
    noise = np.random.default_rng(0).integers(0, 256, (count, 112, 112, 3), dtype=np.uint8)
    pixels = read(list(noise))
    if not isinstance(pixels, Tensor):
        raise DataError(
            "export: expected a run that reads images, got one that reads a feature store; export the model with "
            "foveate.export.to_onnx and the features of your encoder"
        )
    return pixels


def example_tokens(vocabulary: int, count: int = 2, length: int = 8) -> tuple[Tensor, Tensor]:
    """Random token ids and a mask with padding at the end."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, max(vocabulary, 5), (count, length), generator=generator)
    return tokens, torch.arange(length)[None] < torch.tensor([length, max(length - 3, 1)] * count)[:count, None]
