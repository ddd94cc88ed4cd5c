"""The base class of image encoders, the preprocessing of their input, and the encoders that models contain."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.checks import check_ndim
from foveate.errors import DataError, ShapeError, WrongValue
from foveate.lab.features import ImageFeatures
from foveate.ops.grid import cell_centres

if TYPE_CHECKING:
    from PIL import Image

MAX_SIZE = 8192  # pixels per side, when read from a file


@dataclass(frozen=True)
class Preprocess:
    """Resize an image to a fixed size and normalise it: `(pixel / 255 − mean) / std`.

    The image is never cropped: the unit square of the features is the whole image, and a box in fractions of the image
    is a box in fractions of the feature grid.

    Attributes:
        size: rows and columns of the result.
        mean, std: per colour channel, on a scale of 0 to 1.
        resample: Pillow's interpolation.

    >>> prepare = Preprocess((2, 2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    >>> prepare(np.full((4, 6, 3), 255, np.uint8)).shape
    torch.Size([3, 2, 2])
    >>> Preprocess.from_description(prepare.describe()) == prepare
    True
    """

    size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    resample: Literal["bilinear", "bicubic"] = "bicubic"

    def __call__(self, image: np.ndarray | Image.Image) -> Tensor:
        """Turn an image (H, W, 3) uint8 into (3, rows, columns) float32."""
        return self.normalise(self.pixels(image))

    def pixels(self, image: np.ndarray | Image.Image) -> Tensor:
        """Resize an image to (3, rows, columns) uint8; the first step, done in worker processes."""
        from PIL import Image

        array = np.asarray(image)
        if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8 or not array.size:
            raise ShapeError(
                f"Preprocess: expected an image (H, W, 3) of uint8, got {array.shape} of {array.dtype}; "
                "convert it to RGB"
            )
        resized = Image.fromarray(np.ascontiguousarray(array))
        resized = resized.resize(self.size[::-1], Image.Resampling[self.resample.upper()])
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()

    def normalise(self, pixels: Tensor) -> Tensor:
        """Normalise (..., 3, rows, columns) uint8 to float32; the second step, done on the device of the model."""
        mean, std = (pixels.new_tensor(x, dtype=torch.float32)[:, None, None] for x in (self.mean, self.std))
        return (pixels.float() / 255 - mean) / std

    def describe(self) -> str:
        """Return the settings as JSON, which a store keeps with its features."""
        return json.dumps(asdict(self))

    @classmethod
    def from_description(cls, text: str) -> Preprocess:
        """Return the object described by the output of `describe`."""
        try:
            fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
            found = cls(**fields)
            found._check()
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise DataError(
                f"Preprocess: expected the JSON written by describe(), got {text!r:.80}; extract the features again"
            ) from None
        return found

    def _check(self) -> None:
        """Raises ValueError or TypeError if the fields are not those of a usable object."""
        sizes = isinstance(self.size, tuple) and len(self.size) == 2 and all(type(n) is int for n in self.size)
        if not sizes or not all(0 < n <= MAX_SIZE for n in self.size) or self.resample not in ("bilinear", "bicubic"):
            raise WrongValue("size or resample")
        for numbers in (self.mean, self.std):
            if not isinstance(numbers, tuple) or len(numbers) != 3 or not all(abs(n) < 1e6 for n in numbers):
                raise WrongValue("mean or std")
        if not all(n > 0 for n in self.std):
            raise WrongValue("std")


class ImageEncoder(nn.Module, ABC):
    """An encoder of images: maps normalised (B, 3, h, w) to `ImageFeatures`.

    Attributes:
        name: as accepted by `foveate extract`.
        dim: number of features per location, D.
        preprocess: turns an image into the input of the encoder.
    """

    name: str
    dim: int
    preprocess: Preprocess

    @abstractmethod
    def forward(self, images: Tensor) -> ImageFeatures:
        """Return the features of normalised images (B, 3, h, w)."""

    def weights(self) -> str:
        """Return a digest of the weights, by which a store identifies the encoder of its features."""
        return weights_digest(self)

    def encode_pixels(self, pixels: Tensor) -> ImageFeatures:
        """Return the features of resized images (B, 3, h, w) uint8 on the encoder's device, without gradient."""
        with torch.no_grad():
            features: ImageFeatures = self(self.preprocess.normalise(pixels))
        return features

    def encode(self, images: Iterable[np.ndarray]) -> ImageFeatures:
        """Return the features of images (H, W, 3) uint8, computed as at extraction, without gradient."""
        pixels = torch.stack([self.preprocess.pixels(image) for image in images])
        return self.encode_pixels(pixels.to(next(self.parameters()).device))


def grid_features(maps: Tensor) -> ImageFeatures:
    """Turn feature maps (B, D, H, W) into locations in row order.

    >>> grid_features(torch.zeros(2, 8, 3, 4)).values.shape
    torch.Size([2, 12, 8])
    """
    if maps.ndim != 4:
        raise ShapeError(
            f"grid_features: expected maps (B, D, H, W), got {tuple(maps.shape)}; keep rows and columns separate"
        )
    return ImageFeatures(maps.flatten(2).transpose(1, 2), grid=(maps.shape[2], maps.shape[3]))


def weights_digest(module: nn.Module) -> str:
    """Return sixteen hexadecimal digits that change with any parameter or buffer.

    >>> weights_digest(nn.Identity())
    'e3b0c44298fc1c14'
    """
    sha = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        sha.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()[:16]


GROUPS = 8
# The encoder that recognises the shapes of Scenes; `scenes_conv` trains it.
SCENES_WEIGHTS = Path(__file__).parent / "scenes_conv.safetensors"
SCENES_CHANNELS, SCENES_BLOCKS = (16, 32, 64, 96), 1


class ConvEncoder(ImageEncoder):
    """Convolutions of stride 2 followed by residual blocks on the final grid.

    Each entry of `channels` halves the image: 112 pixels become 7x7 after four and 14x14 after three. Residual blocks
    come last, where the grid is small: one step earlier a block costs four times as much. Group normalisation makes the
    features of an image independent of its batch, in training and evaluation, with one process or several.

    Args:
        channels: output channels of the halving convolutions, multiples of 8; the last is D.
        blocks: residual blocks on the last grid.
        size: side of the images in pixels, a multiple of 2^len(channels).
        coordinates: pass the position (x, y) of each pixel to the first convolution as two more channels, so that
            features distinguish left from right and above from below.

    >>> ConvEncoder(size=112)(torch.zeros(1, 3, 112, 112)).values.shape
    torch.Size([1, 49, 256])
    """

    recomputable: ClassVar[bool] = True

    def __init__(
        self,
        channels: Sequence[int] = (32, 64, 128, 256),
        *,
        blocks: int = 1,
        size: int = 112,
        coordinates: bool = True,
    ) -> None:
        super().__init__()
        _check_options(channels, size)
        self.name, self.dim, self.coordinates = "conv", channels[-1], coordinates
        self.preprocess = Preprocess((size, size), mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), resample="bilinear")
        inputs = (5 if coordinates else 3, *channels[:-1])
        halving = [
            layer for i, o in zip(inputs, channels, strict=True) for layer in (*_conv_norm(i, o, stride=2), nn.ReLU())
        ]
        self.layers = nn.Sequential(*halving, *(_Residual(self.dim) for _ in range(blocks)))

    def forward(self, images: Tensor) -> ImageFeatures:
        check_ndim("ConvEncoder", "images", images, 4, "(B, 3, h, w)")
        if self.coordinates:
            B, _, h, w = images.shape
            position = cell_centres(h, w, dtype=images.dtype, device=images.device).T.reshape(1, 2, h, w)
            images = torch.cat([images, (position * 2 - 1).expand(B, 2, h, w)], dim=1)
        return grid_features(self.layers(images))


def load_scenes_weights(encoder: ConvEncoder) -> None:
    """Load the encoder that recognises the shapes of Scenes; raises DataError if `encoder` has another shape."""
    weights = {name: tensor.float() for name, tensor in load_file(SCENES_WEIGHTS).items()}
    expected = {name: tensor.shape for name, tensor in encoder.state_dict().items()}
    if {name: tensor.shape for name, tensor in weights.items()} != expected:
        raise DataError(
            f"scenes encoder: expected channels {SCENES_CHANNELS} and {SCENES_BLOCKS} residual block, got another "
            "encoder; set them, or use start=random"
        )
    encoder.load_state_dict(weights)


class _Residual(nn.Module):
    """`relu(x + norm(conv(relu(norm(conv(x))))))`."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(*_conv_norm(channels, channels), nn.ReLU(), *_conv_norm(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return (x + branch).relu()


def _conv_norm(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.GroupNorm(GROUPS, outputs)


def _check_options(channels: Sequence[int], size: int) -> None:
    if not channels or any(c <= 0 or c % GROUPS for c in channels):
        raise WrongValue(
            f"ConvEncoder: expected channels as positive multiples of {GROUPS}, got {tuple(channels)}; "
            "for instance (32, 64, 128, 256)"
        )
    if size <= 0 or size % 2 ** len(channels):
        raise WrongValue(
            f"ConvEncoder: expected a size divisible by {2 ** len(channels)} for {len(channels)} halvings, got {size}; "
            "change the size or the number of channels"
        )


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
