"""Features that were made before and kept in a store."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from foveate.data.features import ImageFeatures
from foveate.errors import ShapeError


class StoredFeatures(nn.Module):
    """The image encoder of a model that reads a store: float16 features in, float32 out.

    It holds no parameters; the Linear that brings D to the model's own size belongs to the model.

    Args:
        dim: number of features a location, D; `store.dim`.

    >>> import torch
    >>> batch = ImageFeatures(torch.ones(2, 4, 8, dtype=torch.float16), grid=(2, 2))
    >>> StoredFeatures(8)(batch).values.dtype
    torch.float32
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.name, self.dim = "stored", dim

    def forward(self, features: ImageFeatures) -> ImageFeatures:
        """The batch, as `stack_features` made it, in float32."""
        if features.values.ndim != 3 or features.values.shape[-1] != self.dim:
            raise ShapeError(
                f"StoredFeatures: expected values (B, N, {self.dim}), got {tuple(features.values.shape)}; "
                "read the store that the model was made for"
            )
        return replace(features, values=features.values.float())
