"""Rows of the table of encoders and how a name becomes an encoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from foveate.data.features import StoreDescription
from foveate.encoders.images import PictureEncoder
from foveate.encoders.preprocess import Preprocess
from foveate.errors import DataError, UnknownName
from foveate.registry import lookup


@dataclass(frozen=True)
class Encoder:
    """A row of the table of encoders.

    Attributes:
        build: makes it; takes the options of its class.
        reads: what it encodes: "pictures", "features" of a store, or "words".
        pretrained: True when it is of use without training, so that `foveate extract` can run it.
        model: True when its name needs the name of a model after a colon.
        extra: the optional packages that it needs.
    """

    build: Callable[..., Any]
    reads: Literal["pictures", "features", "words"]
    pretrained: bool = False
    model: bool = False
    extra: str | None = None


def pretrained_encoder(name: str, *, size: int | None = None) -> PictureEncoder:
    """The pretrained encoder of a name, ready to encode.

    Args:
        name: of a pretrained row of `ENCODERS`; "hf:<model>" for a model of `transformers`.
        size: side of the pictures in pixels; the encoder's own when absent.
    """
    from foveate.encoders import ENCODERS

    kind, colon, model = name.partition(":")
    table = {key: row for key, row in ENCODERS.items() if row.pretrained}
    row = lookup("extract", kind, table)
    if row.model != bool(model) or (colon and not row.model):
        raise UnknownName("extract", name, [f"{key}:<model>" if r.model else key for key, r in table.items()])
    options: dict[str, Any] = {"size": size} if size is not None else {}
    return (row.build(model, **options) if row.model else row.build(**options)).eval()


def describe_encoder(encoder: PictureEncoder) -> StoreDescription:
    """What a store says of the encoder that made its features."""
    return StoreDescription(encoder.name, encoder.weights(), encoder.preprocess.describe())


def encoder_of(description: StoreDescription) -> PictureEncoder:
    """The encoder that made the features of a store, to encode new pictures the same way.

    DataError when its weights or its preprocessing have changed since.
    """
    if not description.preprocess:
        raise DataError(
            f"encoder_of: expected features made by `foveate extract`, got imported ones of {description.encoder!r}; "
            "new pictures can only be encoded by the program that made them"
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
