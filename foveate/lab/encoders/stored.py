"""Features read from a store instead of being computed."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from foveate.errors import ShapeError
from foveate.lab.features import ImageFeatures


class StoredFeatures(nn.Module):
    """The image encoder of a model that reads a store: converts float16 features to float32.

    It has no parameters; the projection from D to the size of the model belongs to the model.

    Args:
        dim: number of features per location, D; `store.dim`.

    >>> import torch
    >>> batch = ImageFeatures(torch.ones(2, 4, 8, dtype=torch.float16), grid=(2, 2))
    >>> StoredFeatures(8)(batch).values.dtype
    torch.float32
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.name, self.dim = "stored", dim

    def forward(self, features: ImageFeatures) -> ImageFeatures:
        """Convert a batch from `stack_features` to float32."""
        if features.values.ndim != 3 or features.values.shape[-1] != self.dim:
            raise ShapeError(
                f"StoredFeatures: expected values (B, N, {self.dim}), got {tuple(features.values.shape)}; "
                "use the store that the model was trained on"
            )
        return replace(features, values=features.values.float())
