"""Regions of images: boxes around what may be an object, each with the features inside it (extra `regions`)."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError
from foveate.lab.encoders.hf_vision import hf_preprocess
from foveate.lab.encoders.image_encoder import ImageEncoder, weights_digest
from foveate.lab.features import ImageFeatures
from foveate.ops.boxes import box_area, pool_boxes, suppress_overlaps
from foveate.registry import optional

COUNT = 36  # regions per image, as in bottom-up attention
SMALLEST = 0.004  # of the area of the image
SEARCH_SIDE = 224  # pixels; selective search takes four times as long on twice the side


class Proposer(nn.Module, ABC):
    """Finds boxes around what may be an object."""

    name: str

    @abstractmethod
    def boxes(self, pixels: Tensor) -> Tensor:
        """Boxes (R, 4) of an image (3, h, w) uint8, in fractions of it, the best first; at least one."""

    def weights(self) -> str:
        """A digest of what the boxes depend on."""
        return weights_digest(self)


class SelectiveSearch(Proposer):
    """Selective search (Uijlings et al. 2013), its fast setting, on an image of 224x224 pixels (extra `regions`).

    It finds several hundred boxes. Of these the largest are kept that overlap no larger one by an IoU above 0.5, the
    first of which is the whole image: of the boxes of Flickr30k Entities on 120 training images of Flickr8k, 65 % have
    an IoU above 0.5 with one of 36 boxes chosen in this way (87 % with one of all 580), and 39 % with the first 36 in
    the order of the search.

    Args:
        count: boxes per image, at most.
    """

    def __init__(self, count: int = COUNT) -> None:
        super().__init__()
        self.name, self.count = "selective-search", count
        self.search = optional("regions", "cv2", extra="regions").ximgproc.segmentation

    def boxes(self, pixels: Tensor) -> Tensor:
        search = self.search.createSelectiveSearchSegmentation()
        search.setBaseImage(_resized(pixels, SEARCH_SIDE))
        search.switchToSelectiveSearchFast()
        found = np.unique(np.asarray(search.process()), axis=0)  # sorted: the order of the search is random
        corners = torch.from_numpy(np.concatenate([found[:, :2], found[:, :2] + found[:, 2:]], 1)).float() / SEARCH_SIDE
        corners = torch.cat([torch.tensor([[0.0, 0.0, 1.0, 1.0]]), corners.clamp(0, 1)])
        corners = corners[box_area(corners) >= SMALLEST]
        corners = corners[box_area(corners).argsort(descending=True, stable=True)]
        return corners[suppress_overlaps(corners, above=0.5, count=self.count)]


class Detector(Proposer):
    """The boxes of an object detector of `transformers`, such as DETR, RT-DETR or YOLOS (extra `hf`).

    Boxes are ranked by the probability that they hold an object of any class; one that overlaps a better one by an IoU
    above 0.7 is dropped.

    Args:
        model: name on the hub, or a directory written by `save_pretrained`.
        count: boxes per image, at most.
    """

    def __init__(self, model: str, count: int = COUNT) -> None:
        super().__init__()
        transformers = optional("regions", "transformers", extra="hf")
        self.name, self.count = model, count
        self.network: Any = transformers.AutoModelForObjectDetection.from_pretrained(model).eval()
        self.preprocess = hf_preprocess(transformers, model, None)

    def boxes(self, pixels: Tensor) -> Tensor:
        device = next(self.network.parameters()).device
        image = self.preprocess(pixels.movedim(0, -1).cpu().numpy())[None].to(device)
        with torch.no_grad():
            found = self.network(pixel_values=image)
        scores = _objectness(found.logits[0].float(), self.network.config.num_labels).cpu()
        centre, size = found.pred_boxes[0].cpu().float().split(2, -1)
        corners = torch.cat([centre - size / 2, centre + size / 2], -1).clamp(0, 1)
        corners = corners[scores.argsort(descending=True, stable=True)]
        corners = corners[box_area(corners) >= SMALLEST]
        if not len(corners):
            return torch.tensor([[0.0, 0.0, 1.0, 1.0]])
        return corners[suppress_overlaps(corners, above=0.7, count=self.count)]


class RegionEncoder(ImageEncoder):
    """Regions of an image, each with the mean features of the cells that it covers; see `pool_boxes`.

    An image with fewer regions than others of its batch is padded, which the mask of its features shows.

    Args:
        proposer: finds the boxes.
        features: computes the features on a grid.
        name: as `foveate extract` takes it.
    """

    def __init__(self, proposer: Proposer, features: ImageEncoder, name: str) -> None:
        super().__init__()
        self.proposer, self.features, self.name = proposer, features, name
        self.dim, self.preprocess = features.dim, features.preprocess

    def weights(self) -> str:
        """A digest of those of the proposer and of the features."""
        parts = [self.proposer.name, self.proposer.weights(), self.features.name, self.features.weights()]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]

    def forward(self, images: Tensor) -> ImageFeatures:
        maps: ImageFeatures = self.features(images)
        if not isinstance(maps.grid, tuple):
            raise DataError(
                f"regions: expected features on a grid from {self.features.name}, got {maps.grid}; use another encoder"
            )
        found = [self.proposer.boxes(pixels).to(images.device) for pixels in self._pixels(images)]
        pooled = [pool_boxes(own, maps.grid, boxes) for own, boxes in zip(maps.values, found, strict=True)]
        lengths = torch.tensor([len(boxes) for boxes in found], device=images.device)
        values, boxes = (nn.utils.rnn.pad_sequence(part, batch_first=True) for part in (pooled, found))
        mask = torch.arange(values.shape[1], device=images.device)[None] < lengths[:, None]
        return ImageFeatures(values, None, None if bool(mask.all()) else mask, boxes)

    def _pixels(self, images: Tensor) -> Tensor:
        """The images before they were normalised, (B, 3, h, w) uint8."""
        mean, std = (images.new_tensor(x)[:, None, None] for x in (self.preprocess.mean, self.preprocess.std))
        return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def search_regions(*, size: int = 448) -> RegionEncoder:
    """Regions by selective search with features of EfficientNet-Lite0 on 14x14 cells (extras `regions`, `photos`)."""
    return RegionEncoder(SelectiveSearch(), _lite0(size), "regions")


def detected_regions(model: str, *, size: int = 448) -> RegionEncoder:
    """Regions by a detector of `transformers`, with features of EfficientNet-Lite0 on 14x14 cells."""
    return RegionEncoder(Detector(model), _lite0(size), f"regions-hf:{model}")


def _lite0(size: int) -> ImageEncoder:
    from foveate.lab.encoders.pretrained import pretrained_encoder

    return pretrained_encoder("efficientnet-lite0", size=size)


def _objectness(scores: Tensor, classes: int) -> Tensor:
    """(Q,) probability of any class: one minus that of "no object", the last of a softmax, or the largest sigmoid."""
    return 1 - scores.softmax(-1)[:, -1] if scores.shape[-1] > classes else scores.sigmoid().amax(-1)


def _resized(pixels: Tensor, side: int) -> np.ndarray:
    """An image (3, h, w) uint8 as (side, side, 3), in the order of channels of OpenCV."""
    from PIL import Image

    array = pixels.movedim(0, -1).cpu().numpy()
    return np.ascontiguousarray(
        np.asarray(Image.fromarray(array).resize((side, side), Image.Resampling.BOX))[:, :, ::-1]
    )
