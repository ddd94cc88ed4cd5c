"""How a task gets its pictures: through an encoder inside the model, from a store of features, or a frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, TypeAlias, cast

from torch import Tensor, nn

from foveate.data.features import FeatureStore, ImageFeatures, StoreDescription
from foveate.encoders import (
    ConvEncoder,
    PictureEncoder,
    Preprocess,
    StoredFeatures,
    encoder_of,
    pretrained_encoder,
)
from foveate.encoders.table import describe_encoder
from foveate.models.answering import ImageEncoder
from foveate.tasks.scenes_encoder import put_weights

PictureSource: TypeAlias = Preprocess | FeatureStore | PictureEncoder


@dataclass(frozen=True)
class Conv:
    """Pictures through a small convolutional encoder inside the model; see `ConvEncoder`.

    Attributes:
        channels, blocks, size: of the encoder.
        start: "scenes" begins with an encoder that knows the things of Scenes, see `scenes_encoder`; "random" does not.
        trained: train it with the model; otherwise it stays as it began.
    """

    reads_pictures: ClassVar[bool] = True

    channels: tuple[int, ...] = (16, 32, 64, 96)
    blocks: int = 1
    size: int = 112
    start: Literal["random", "scenes"] = "random"
    trained: bool = True

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """No features before the model: nothing to describe."""
        return None, None

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """How a picture becomes pixels."""
        return self.encoder(None).preprocess

    def encoder(self, dim: int | None) -> ConvEncoder:
        """The encoder inside the model."""
        return ConvEncoder(self.channels, blocks=self.blocks, size=self.size).requires_grad_(self.trained)

    def initialise(self, encoder: nn.Module) -> None:
        """Put the weights in that the encoder begins with."""
        if self.start == "scenes":
            put_weights(cast(ConvEncoder, encoder))


@dataclass(frozen=True)
class Stored:
    """Pictures as features of a store; `store` is a path, taken inside the folder of the data when not absolute.

    A "{split}" in it stands for the name of the split, where each has a store of its own.
    """

    reads_pictures: ClassVar[bool] = False

    store: str = "features.h5"

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """Size of the features and what they are, from the store of the training split."""
        store = self._open(root, "train")
        return store.dim, store.description

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """The store of a split."""
        return self._open(root, split)

    def encoder(self, dim: int | None) -> ImageEncoder:
        """The encoder inside the model, which only hands features on."""
        return _handed_on(dim)

    def initialise(self, encoder: nn.Module) -> None:
        """Nothing to put in."""

    def _open(self, root: Path | None, split: str) -> FeatureStore:
        path = Path(self.store.replace("{split}", split)).expanduser()
        return FeatureStore(path if root is None else Path(root) / path)


@dataclass(frozen=True)
class Frozen:
    """Pictures through a pretrained encoder that is not trained further; its features are kept in memory.

    For small data, where a store is not worth the trouble. `encoder_name` is one that `foveate extract` takes.
    """

    reads_pictures: ClassVar[bool] = True

    encoder_name: str = "efficientnet-lite0"

    def describe(self, root: Path | None) -> tuple[int | None, StoreDescription | None]:
        """Size of the features and what they are."""
        encoder = pretrained_encoder(self.encoder_name)
        return encoder.dim, describe_encoder(encoder)

    def source(self, root: Path | None, split: str, description: StoreDescription | None) -> PictureSource:
        """The encoder of the description."""
        assert description is not None
        return encoder_of(description)

    def encoder(self, dim: int | None) -> ImageEncoder:
        """The encoder inside the model, which only hands features on."""
        return _handed_on(dim)

    def initialise(self, encoder: nn.Module) -> None:
        """Nothing to put in."""


def _handed_on(dim: int | None) -> StoredFeatures:
    assert dim is not None  # `describe` gave it
    return StoredFeatures(dim)


Images: TypeAlias = Conv | Stored | Frozen


def encoder_input(encoder: nn.Module, pictures: Tensor | ImageFeatures) -> Tensor | ImageFeatures:
    """What the encoder of a model reads, from a batch: pixels are normalised, features handed on."""
    return cast(PictureEncoder, encoder).preprocess.normalise(pictures) if isinstance(pictures, Tensor) else pictures
