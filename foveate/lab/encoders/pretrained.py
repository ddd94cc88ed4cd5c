"""Rows of the table of encoders, and building encoders by name, alone or with their features joined."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foveate.errors import DataError, ShapeError, UnknownName, WrongValue
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.encoders.image_encoder import ImageEncoder, Preprocess
from foveate.lab.features import ImageFeatures
from foveate.registry import lookup


@dataclass(frozen=True)
class Encoder:
    """A row of the table of encoders.

    Attributes:
        build: builds the encoder; accepts the options of its class.
        reads: its input: "images", "features" of a store, or "tokens".
        pretrained: True if it is useful without training, so that `foveate extract` can run it.
        model: True if its name is followed by a colon and the name of a model.
        extra: the optional packages it needs.
    """

    build: Callable[..., Any]
    reads: Literal["images", "features", "tokens"]
    pretrained: bool = False
    model: bool = False
    extra: str | None = None


def pretrained_encoder(name: str, *, size: int | None = None) -> ImageEncoder:
    """Build a pretrained encoder by name, in evaluation mode.

    Args:
        name: of a pretrained row of `ENCODERS`; "hf:<model>" for a model of `transformers`; several names joined by a
            plus for a `JoinedEncoder`.
        size: side of the images in pixels, the encoder's own by default.
    """
    from foveate.lab.encoders import ENCODERS

    if "+" in name:
        return JoinedEncoder([pretrained_encoder(part, size=size) for part in name.split("+")]).eval()
    kind, colon, model = name.partition(":")
    table = {key: row for key, row in ENCODERS.items() if row.pretrained}
    row = lookup("extract", kind, table)
    if row.model != bool(model) or (colon and not row.model):
        raise UnknownName("extract", name, [f"{key}:<model>" if r.model else key for key, r in table.items()])
    options: dict[str, Any] = {"size": size} if size is not None else {}
    encoder: ImageEncoder = row.build(model, **options) if row.model else row.build(**options)
    return encoder.eval()


def describe_encoder(encoder: ImageEncoder) -> StoreDescription:
    """Return the description of an encoder that a store keeps with its features."""
    return StoreDescription(encoder.name, encoder.weights(), encoder.preprocess.describe())


def encoder_of(description: StoreDescription) -> ImageEncoder:
    """Build the encoder that computed the features of a store, to encode new images the same way.

    Raises DataError if its weights or its preprocessing have changed since.
    """
    if not description.preprocess:
        raise DataError(
            f"encoder_of: expected features from `foveate extract`, got imported ones of {description.encoder!r}; "
            "new images can only be encoded by the program that computed them"
        )
    side = Preprocess.from_description(description.preprocess).size[0]
    encoder = pretrained_encoder(description.encoder, size=side)
    now = describe_encoder(encoder)
    if (now.weights, now.preprocess) != (description.weights, description.preprocess):
        raise DataError(
            f"encoder_of: expected {description.encoder!r} with weights {description.weights} and preprocessing "
            f"{description.preprocess}, got {now.weights} and {now.preprocess}; extract the features again"
        )
    return encoder


class JoinedEncoder(ImageEncoder):
    """Encoders with the same preprocessing and the same grid; D is the sum of their dimensions.

    Its name, and that of its stores, is theirs joined by a plus: `efficientnet-lite0+efficientnet-lite2`.

    Args:
        parts: at least two encoders that return a grid.

    >>> from foveate.lab.encoders import ConvEncoder
    >>> part = ConvEncoder((8, 8), size=32)
    >>> joined = JoinedEncoder([part, part])
    >>> joined.dim, joined(torch.zeros(1, 3, 32, 32)).values.shape[-1]
    (16, 16)
    """

    def __init__(self, parts: Sequence[ImageEncoder]) -> None:
        super().__init__()
        if len(parts) < 2 or len({part.preprocess for part in parts}) != 1:
            raise WrongValue(
                "JoinedEncoder: expected two or more encoders with the same preprocessing, got "
                f"{[(part.name, part.preprocess.size) for part in parts]}; join encoders of one family and size"
            )
        self.parts = nn.ModuleList(parts)
        self.name = "+".join(part.name for part in parts)
        self.dim, self.preprocess = sum(part.dim for part in parts), parts[0].preprocess
        self._digests = [part.weights() for part in parts]

    def weights(self) -> str:
        """Return a digest of the digests of the parts."""
        return hashlib.sha256("".join(self._digests).encode()).hexdigest()[:16]

    def forward(self, images: Tensor) -> ImageFeatures:
        features: list[ImageFeatures] = [part(images) for part in self.parts]
        grids = {one.grid for one in features}
        if len(grids) != 1:
            raise ShapeError(
                f"JoinedEncoder: expected one grid, got {sorted(map(str, grids))} of {self.name}; "
                "join encoders that reduce images by the same factor"
            )
        return ImageFeatures(torch.cat([one.values for one in features], -1), grid=features[0].grid)
