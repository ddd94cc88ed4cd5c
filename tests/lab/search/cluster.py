"""What the tests of Ray run on its workers: an encoder and an embedder that are slow enough to be killed in between."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foveate.lab.encoders import ImageEncoder, Preprocess
from foveate.lab.encoders.image_encoder import grid_features
from foveate.lab.features import ImageFeatures
from tests.lab.search.runs import Colours

PAUSE = 0.2  # seconds per batch


class SlowEncoder(ImageEncoder):
    """A convolution to a grid of 2 x 3 cells."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.name, self.dim = "slow", 8
        self.preprocess = Preprocess((8, 12), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.layer = nn.Conv2d(3, 8, 4, stride=4)

    def forward(self, images: Tensor) -> ImageFeatures:
        time.sleep(PAUSE)
        return grid_features(self.layer(images))


class SlowColours(Colours):
    """Embeds by colour."""

    def encode_image(self, images: Sequence[Any]) -> Tensor:
        time.sleep(PAUSE)
        return super().encode_image(images)


def load() -> tuple[SlowColours, str, str]:
    return SlowColours(), "colours", "abc"


def run_index(out: str, items: Sequence[str], batch_size: int) -> None:
    """Build an index on the running cluster."""
    from foveate.lab.search.builder import build_with_ray

    build_with_ray(out, load, items, batch_size=batch_size, actors=2, progress=False)
