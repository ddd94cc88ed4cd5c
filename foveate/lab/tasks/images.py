"""Images as a task reads them: through an encoder inside the model, a feature store or a frozen encoder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab.data.feature_store import (
    FeatureRecord,
    FeatureStore,
    JoinedStores,
    StoreDescription,
    stack_features,
    unstack_features,
)
from foveate.lab.data.files import need_directory
from foveate.lab.data.samples import DataDirectory, DataRoot, Dataset, Id, ImageRecord
from foveate.lab.data.store_writer import merge_stores
from foveate.lab.encoders import (
    ConvEncoder,
    ImageEncoder,
    Preprocess,
    StoredFeatures,
    encoder_of,
    extract_features,
    image_views,
    pretrained_encoder,
)
from foveate.lab.encoders.image_encoder import load_scenes_weights
from foveate.lab.encoders.pretrained import describe_encoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import AnyImageEncoder

if TYPE_CHECKING:
    from PIL import Image

ImageSource: TypeAlias = Preprocess | FeatureStore | JoinedStores | ImageEncoder
ImageLike: TypeAlias = "str | Path | bytes | np.ndarray[Any, Any] | Tensor | Image.Image | FeatureRecord"

# Decoded images, or features computed from them, are cached up to this many bytes, enough for all of Scenes.
CACHE_BYTES = 400_000_000


@dataclass(frozen=True)
class Conv:
    """Images through a small convolutional encoder inside the model; see `ConvEncoder`.

    Attributes:
        channels, blocks, size: as in `ConvEncoder`.
        start: "scenes" starts from an encoder that recognises the shapes of Scenes (see `scenes_conv`), "random" at
            random.
        trained: train it with the model; otherwise its weights stay fixed.
    """

    reads_images: ClassVar[bool] = True
    views: ClassVar[int] = 1

    channels: tuple[int, ...] = (16, 32, 64, 96)
    blocks: int = 1
    size: int = 112
    start: Literal["random", "scenes"] = "random"
    trained: bool = True

    def describe(self, root: DataRoot) -> tuple[int | None, StoreDescription | None]:
        """No features are stored, so there is nothing to describe."""
        return None, None

    def source(self, root: DataRoot, split: str, description: StoreDescription | None) -> ImageSource:
        """The preprocessing of the encoder."""
        return self.build_encoder(None).preprocess

    def build_encoder(self, dim: int | None) -> ConvEncoder:
        """The encoder inside the model."""
        return ConvEncoder(self.channels, blocks=self.blocks, size=self.size).requires_grad_(self.trained)

    def initialise(self, encoder: AnyImageEncoder) -> None:
        """Load the weights that the encoder starts from."""
        if self.start == "scenes" and isinstance(encoder, ConvEncoder):
            load_scenes_weights(encoder)


class _Features:
    """Base of `Stored`, `Frozen` and `Extracted`: features come from outside the model, which only passes them on."""

    def build_encoder(self, dim: int | None) -> AnyImageEncoder:
        """The encoder inside the model, which returns its input."""
        if dim is None:
            raise DataError(
                "images: expected the size of the features in vocabulary.json, got none; train the run again"
            )
        return StoredFeatures(dim)

    def initialise(self, encoder: AnyImageEncoder) -> None:
        """Nothing to load."""


# Splits whose images are among those of another split, so that one store serves both.
SHARED_SPLITS = {"test-dev": "test"}


@dataclass(frozen=True)
class Stored(_Features):
    """Images as features of a store.

    Attributes:
        store: a path, relative to the directory of the data. A "{split}" in it stands for the name of the split, if
            each has its own store; that of "train+val" is made of both, and test-dev is read from the store of test
            if it has none of its own.
        views: views of an image to train on, of those that `foveate extract --views` stored: an epoch reads every
            image this many times, each time another view.
    """

    reads_images: ClassVar[bool] = False

    store: str = "features.h5"
    views: int = 1

    def __post_init__(self) -> None:
        check_number("images", "views", self.views, least=1, advice="use 1 for the image alone")

    def describe(self, root: DataRoot) -> tuple[int | None, StoreDescription | None]:
        """Size and origin of the features, from the store of the training split."""
        store = self._open(root, "train")
        return store.dim, store.description

    def source(self, root: DataRoot, split: str, description: StoreDescription | None) -> ImageSource:
        """The store of a split, or of several joined by a plus."""
        names = split.split("+") if "{split}" in self.store else [split]
        stores = [self._open(root, name) for name in names]
        return stores[0] if len(stores) == 1 else JoinedStores(tuple(stores))

    def _open(self, root: DataRoot, split: str) -> FeatureStore:
        path = self._path(root, split)
        if split in SHARED_SPLITS and not path.is_file():
            path = self._path(root, SHARED_SPLITS[split])
        return FeatureStore(path, verify=DataDirectory.of(root).verify)

    def _path(self, root: DataRoot, split: str) -> Path:
        path = Path(self.store.replace("{split}", split)).expanduser()
        home = DataDirectory.of(root).path
        return path if home is None else home / path


@dataclass(frozen=True)
class Frozen(_Features):
    """Images through a pretrained encoder that is not trained further; its features are cached in memory.

    For small data, for which a store is not worthwhile. `encoder_name` is one that `foveate extract` takes.
    """

    reads_images: ClassVar[bool] = True
    views: ClassVar[int] = 1

    encoder_name: str = "efficientnet-lite0"

    def describe(self, root: DataRoot) -> tuple[int | None, StoreDescription | None]:
        """Size and origin of the features."""
        encoder = pretrained_encoder(self.encoder_name)
        return encoder.dim, describe_encoder(encoder)

    def source(self, root: DataRoot, split: str, description: StoreDescription | None) -> ImageSource:
        """The encoder of the description."""
        return pretrained_encoder(self.encoder_name) if description is None else encoder_of(description)


@dataclass(frozen=True)
class Extracted(_Features):
    """Images as features that are extracted before they are first needed, into a store beside the data.

    What `foveate extract` wrote under the same name is used as it is; images that were added since are extracted.

    Attributes:
        encoder: one that `foveate extract` takes: efficientnet-lite0, hf:<model>, ...
        size: side in pixels to which images are resized, the encoder's own by default.
        views: as in `Stored`.
    """

    reads_images: ClassVar[bool] = True

    encoder: str = "efficientnet-lite0"
    size: int | None = None
    views: int = 1

    def path(self, root: DataRoot) -> Path:
        """The file of the features.

        >>> Extracted("hf:facebook/dinov2-small", size=448).path(Path(".")).name
        'hf-facebook-dinov2-small-448.h5'
        """
        name = re.sub(r"[^\w.+-]+", "-", self.encoder)
        parts = [name, *([str(self.size)] if self.size else []), *([f"{self.views}-views"] if self.views > 1 else [])]
        return need_directory("images", DataDirectory.of(root).path, "it holds the images") / f"{'-'.join(parts)}.h5"

    def extract(self, root: DataRoot, images: Sequence[ImageRecord]) -> None:
        """Extract what the store does not hold yet."""
        path = self.path(root)
        missing = self._missing(path, images) if path.exists() else list(images)
        if not missing:
            return
        encoder, views = pretrained_encoder(self.encoder, size=self.size), image_views(missing, self.views)
        if not path.exists():
            extract_features(encoder, views, path, progress=True)
            return
        added = path.with_name(f"{path.stem}-added.h5")
        store = extract_features(encoder, views, added, progress=True)
        merge_stores([FeatureStore(path), store], path, FeatureStore(path).description)
        added.unlink()

    def describe(self, root: DataRoot) -> tuple[int | None, StoreDescription | None]:
        """Size and origin of the features."""
        store = FeatureStore(self.path(root))
        return store.dim, store.description

    def source(self, root: DataRoot, split: str, description: StoreDescription | None) -> ImageSource:
        """The store of all splits."""
        return FeatureStore(self.path(root), verify=DataDirectory.of(root).verify)

    @staticmethod
    def _missing(path: Path, images: Sequence[ImageRecord]) -> list[ImageRecord]:
        store = FeatureStore(path)
        return [image for image in images if image not in store]


Images: TypeAlias = Conv | Stored | Frozen | Extracted


class ImageReader:
    """Reads the images of a split as a task needs them: pixels, or features from a store or an encoder.

    Args:
        source: preprocessing of pixels, a store of features, or an encoder that computes them. What is computed is
            cached up to `CACHE_BYTES`.
        views: how many views of an image there are in a store to choose from.
        pooled: reduce the features of an image to their mean and maximum, see `pool_record`, and cache them.
    """

    def __init__(self, source: ImageSource, views: int = 1, *, pooled: bool = False) -> None:
        self.source, self.views, self.pooled = source, views, pooled
        self._cache: dict[tuple[Id, int], Tensor | FeatureRecord] = {}

    def __call__(self, image: ImageRecord, view: int = 0) -> Tensor | FeatureRecord:
        """(3, h, w) uint8, or features of a view of the image, 0 being the whole."""
        if isinstance(self.source, FeatureStore | JoinedStores) and not self.pooled:
            return self.source.get(image, view)
        if (image.id, view) not in self._cache:
            computed = self._compute(image, self.source, view)
            if self.pooled and isinstance(computed, FeatureRecord):
                computed = pool_record(computed)
            size = computed.nbytes if isinstance(computed, Tensor) else computed.values.nbytes
            if (len(self._cache) + 1) * size > CACHE_BYTES:
                return computed
            self._cache[image.id, view] = computed
        return self._cache[image.id, view]

    def locate(self, number: int, rows: int) -> tuple[int, int]:
        """View and row of an example; raises IndexError beyond the last one, which ends a loop over the examples."""
        if not -rows * self.views <= number < rows * self.views:
            raise IndexError(f"expected an example below {rows * self.views}, got {number}")
        return divmod(number % (rows * self.views), rows)

    def readable(self, data: Dataset, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Those of the positions whose image `foveate extract --skip-broken` has not skipped."""
        skipped = self.source.skipped if isinstance(self.source, FeatureStore | JoinedStores) else {}
        left_out = [row for row in rows.tolist() if str(data.images[row].id) in skipped] if skipped else []
        return np.setdiff1d(rows, left_out) if left_out else rows

    def fingerprint(self, data: Dataset) -> str:
        """The fingerprint of the annotations, joined with that of the features if there are any."""
        own = data.fingerprint()
        if isinstance(self.source, FeatureStore | JoinedStores):
            return f"{own}-{self.source.fingerprint}"
        return own if isinstance(self.source, Preprocess) else f"{own}-{self.source.weights()}"

    @staticmethod
    def _compute(image: ImageRecord, source: ImageSource, view: int) -> Tensor | FeatureRecord:
        if isinstance(source, FeatureStore | JoinedStores):
            return source.get(image, view)
        if isinstance(source, Preprocess):
            return source.pixels(image.pixels())
        return unstack_features(source.encode([image.pixels()]), [str(image.id)])[0]


def pool_record(record: FeatureRecord) -> FeatureRecord:
    """The mean and the maximum over the locations (N, D) of an image, as one location of 2 D features.

    >>> pool_record(FeatureRecord("a", np.array([[1.0, 0.0], [3.0, 2.0]]), (1, 2))).values.tolist()
    [[2.0, 1.0, 3.0, 2.0]]
    """
    values = np.asarray(record.values, np.float32)
    return FeatureRecord(record.id, np.concatenate([values.mean(0), values.max(0)])[None], (1, 1))


def is_on_disk(image: ImageRecord) -> bool:
    """True if the pixels of an image can be read: it is generated, or its file exists."""
    return not isinstance(image.source, Path) or image.source.is_file()


def captioned_images(data: Dataset) -> list[ImageRecord]:
    """The images that have captions and whose pixels can be read, in order."""
    return [image for image in data.images if data.captions_of(image.id) and is_on_disk(image)]


def stack_images(images: Sequence[Tensor | FeatureRecord]) -> Tensor | ImageFeatures:
    """Collate the values that `ImageReader` returned into a batch."""
    features = [image for image in images if isinstance(image, FeatureRecord)]
    if features:
        return stack_features(features)
    return torch.stack([image for image in images if isinstance(image, Tensor)])


def encoder_input(encoder: AnyImageEncoder, images: Tensor | ImageFeatures) -> Tensor | ImageFeatures:
    """The input of a model's image encoder: pixels are normalised, features are passed on."""
    if isinstance(images, Tensor) and isinstance(encoder, ImageEncoder):
        return encoder.preprocess.normalise(images)
    return images


def to_pixels(image: ImageLike) -> np.ndarray[Any, Any]:
    """An image in any form as (H, W, 3) uint8; DataError if it cannot be read.

    Arrays and tensors are (H, W, 3) or (3, H, W), of uint8 or of floating-point numbers from 0 to 1.

    >>> to_pixels(np.zeros((2, 3, 3), np.uint8)).shape, to_pixels(torch.zeros(3, 2, 3, dtype=torch.uint8)).shape
    ((2, 3, 3), (2, 3, 3))
    >>> int(to_pixels(torch.ones(3, 2, 4)).max())
    255
    """
    if isinstance(image, str | Path | bytes):
        return decode_image(image)
    if isinstance(image, Tensor):
        plain = image.detach().cpu()
        plain = plain.movedim(0, -1) if plain.ndim == 3 and len(plain) == 3 else plain  # tensors are (3, H, W) first
        image = (plain.float() if plain.is_floating_point() else plain).numpy()  # NumPy has no bfloat16
    if isinstance(image, np.ndarray):
        return _eight_bits(image if image.ndim != 3 or image.shape[-1] == 3 else np.moveaxis(image, 0, -1))
    convert = getattr(image, "convert", None)
    if convert is None:
        raise DataError(
            f"image: expected a path, bytes, an array, a tensor or a Pillow image, got {type(image).__name__}; "
            "pass one image, or a list to the call that takes several"
        )
    return np.asarray(convert("RGB"))


def _eight_bits(pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array (H, W, 3) as uint8; raises DataError for other shapes, and for numbers that are no brightness."""
    if pixels.ndim != 3 or pixels.shape[-1] != 3 or 0 in pixels.shape:
        raise DataError(
            f"image: expected an array (H, W, 3) or (3, H, W), got {pixels.shape}; pass one image with three colours"
        )
    if pixels.dtype == np.uint8:
        return pixels
    if np.issubdtype(pixels.dtype, np.floating) and 0 <= pixels.min() <= pixels.max() <= 1:
        return np.asarray((pixels * 255).round(), np.uint8)
    raise DataError(
        f"image: expected uint8 from 0 to 255, or floating-point numbers from 0 to 1, got {pixels.dtype} from "
        f"{pixels.min():.4g} to {pixels.max():.4g}; undo its normalisation, or pass the file"
    )
