"""The features of a batch of images, as passed from encoders and stores to models, and how usual an image's are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from foveate.errors import DataError

DIRECTIONS = 32
ADVICE = "the file is damaged or was written by a newer foveate"
LEAST = 20  # images to train on; fewer say too little about others
USUAL = 0.99  # of the validation images are within the limit


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


@dataclass(frozen=True)
class Familiarity:
    """The features of the training images: their mean and main directions, and how far images usually are from these.

    `d(f) = ‖(f − μ) − V Vᵀ (f − μ)‖ / limit` for the mean f of an image's features over its locations, the mean μ of f
    over the training images and the main directions V of its variation

    Attributes:
        mean: (D,), μ.
        directions: (K, D), the rows of Vᵀ.
        limit: what 99 % of the validation images do not exceed.
    """

    mean: Tensor
    directions: Tensor
    limit: float

    @classmethod
    def fit(cls, train: Tensor, val: Tensor) -> Familiarity | None:
        """From the features (n, D) of training and validation images; None if there are too few.

        >>> images = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
        >>> bool(Familiarity.fit(images, images).distance(images + 9).min() > 1)
        True
        """
        if len(train) < LEAST or not len(val):
            return None
        mean = train.mean(0)
        # At most half of the axes, so that something is left to measure.
        count = min(DIRECTIONS, len(train) // 4, train.shape[1] // 2)
        directions = torch.linalg.svd(train - mean, full_matrices=False).Vh[:count]
        found = cls(mean, directions, 1.0)
        limit = float(found.distance(val).quantile(USUAL))
        return cls(mean, directions, limit) if limit > 0 else None

    def distance(self, features: Tensor) -> Tensor:
        """Distances (B,) of images with mean features (B, D); above 1 they are unlike the training images."""
        rest = features - self.mean
        rest = rest - rest @ self.directions.T @ self.directions
        distances: Tensor = torch.linalg.vector_norm(rest, dim=-1) / self.limit
        return distances

    def tensors(self) -> dict[str, Tensor]:
        """To be saved."""
        return {"mean": self.mean, "directions": self.directions, "limit": torch.tensor([self.limit])}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Familiarity:
        """From what `tensors` returned; raises DataError for anything else."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        D = shapes.get("mean", (0,))[0] if len(shapes.get("mean", ())) == 1 else 0
        K = shapes.get("directions", (0,))[0] if shapes.get("directions") else 0
        if shapes != {"mean": (D,), "directions": (K, D), "limit": (1,)} or not float(tensors["limit"]) > 0:
            raise DataError(
                f"familiarity: expected mean (D,), directions (K, D) and limit (1,), got {shapes}; {ADVICE}"
            )
        return cls(tensors["mean"].float(), tensors["directions"].float(), float(tensors["limit"]))


def mean_features(features: ImageFeatures) -> Tensor:
    """The mean (B, D) of features over their locations.

    >>> mean_features(ImageFeatures(torch.ones(2, 3, 4), mask=torch.tensor([[True, False, False]] * 2))).shape
    torch.Size([2, 4])
    """
    values = features.values.float()
    if features.mask is None:
        return values.mean(1)
    mask = features.mask[..., None].to(values.dtype)
    return (values * mask).sum(1) / mask.sum(1).clamp(min=1)


def describe_distance(distance: float, dataset: str) -> str | None:
    """A warning about an image that is unlike the training images; None if it is like them.

    >>> describe_distance(0.8, "scenes"), describe_distance(2.06, "scenes")[:52]
    (None, 'this image is unlike those that the run was trained ')
    """
    if distance <= 1:
        return None
    return (
        f"this image is unlike those that the run was trained on ({dataset}): its features are {distance:.1f} times as "
        "far from theirs as usual; the result may mean nothing"
    )
