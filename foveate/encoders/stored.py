"""Features that were made before and kept in a store."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from foveate.checks import check_number
from foveate.data.features import ImageFeatures
from foveate.errors import ShapeError


class StoredFeatures(nn.Module):
    """The image encoder of a model that reads a store: float16 features in, sign(x) |x|^power in float32 out.

    It holds no parameters; the Linear that brings D to the model's own size belongs to the model.

    Args:
        dim: number of features a location, D; `store.dim`.
        power: 1 hands features on as they are; 0.5 evens out those of a network that ends in a ReLU, of which most are
            zero and few are large.

    >>> import torch
    >>> batch = ImageFeatures(torch.ones(2, 4, 8, dtype=torch.float16), grid=(2, 2))
    >>> StoredFeatures(8)(batch).values.dtype
    torch.float32
    """

    def __init__(self, dim: int, *, power: float = 1.0) -> None:
        super().__init__()
        check_number("StoredFeatures", "power", power, above=0, advice="1 hands features on, 0.5 takes the root")
        self.name, self.dim, self.power = "stored", dim, power

    def forward(self, features: ImageFeatures) -> ImageFeatures:
        """The batch, as `stack_features` made it, in float32."""
        if features.values.ndim != 3 or features.values.shape[-1] != self.dim:
            raise ShapeError(
                f"StoredFeatures: expected values (B, N, {self.dim}), got {tuple(features.values.shape)}; "
                "read the store that the model was made for"
            )
        values = features.values.float()
        if self.power != 1:
            values = values.sign() * values.abs() ** self.power
        return replace(features, values=values)
