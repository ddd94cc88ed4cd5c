"""The features of a batch of images, as passed from encoders and stores to models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageFeatures:
    """Features of a batch of images, the output of every image encoder.

    Attributes:
        values: (B, N, D) features.
        grid: (H, W) shared by the batch, (B, 2) when images differ, None for regions.
        mask: (B, N) True where a location counts, None when all do. Shorter images are padded at the end.
        boxes: (B, N, 4) in fractions of the image, zero where padded, None for grids.
    """

    values: Tensor
    grid: tuple[int, int] | Tensor | None = None
    mask: Tensor | None = None
    boxes: Tensor | None = None

    def __getitem__(self, index: int | slice | Sequence[int] | Tensor) -> ImageFeatures:
        """Select images; the result is always a batch.

        Args:
            index: one position, a slice, positions (repeated ones are allowed) or a (B,) boolean mask.

        >>> features = ImageFeatures(torch.arange(3.0)[:, None, None], grid=(1, 1))
        >>> features[torch.tensor([2, 0, 0])].values.flatten().tolist(), features[-1].values.shape
        ([2.0, 0.0, 0.0], torch.Size([1, 1, 1]))
        """
        rows = [index] if isinstance(index, int) else index
        return self._map(lambda part: part[rows])

    def to(self, device: torch.device | str) -> ImageFeatures:
        """Move the batch to another device.

        >>> ImageFeatures(torch.zeros(1, 4, 2), grid=(2, 2)).to("cpu").values.shape
        torch.Size([1, 4, 2])
        """
        return self._map(lambda part: part.to(device, non_blocking=True))

    def _map(self, change: Callable[[Tensor], Tensor]) -> ImageFeatures:
        # Every tensor has the batch as its first axis; a grid as a pair is shared by the batch and stays.
        return replace(self, **{name: change(part) for name, part in vars(self).items() if isinstance(part, Tensor)})
