"""The parts of examples that tasks share: a split of the data, its pictures, words as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from foveate.data import DATASETS
from foveate.data.features import FeatureStore, ImageFeatures, PictureFeatures, stack_features
from foveate.data.samples import Dataset, Id, Picture
from foveate.data.vocabulary import PAD
from foveate.encoders import PictureEncoder, Preprocess
from foveate.errors import DataError, UnknownName
from foveate.registry import lookup
from foveate.tasks.pictures import PictureSource

# Decoded pictures, or their features, are kept in memory up to so many bytes, which holds all of Scenes.
CACHE_BYTES = 400_000_000

Content = Literal["questions", "captions"]


def check_data(name: str, content: Content) -> None:
    """Refuse the name of data that does not exist, or that has no questions or captions.

    >>> check_data("flickr8k", "questions")
    Traceback (most recent call last):
    foveate.errors.UnknownName: data with questions: expected a known name, got 'flickr8k'; known: folder, scenes, \
scenes-large, vqa-coco, vqa-hat, vqa-v1, vqa-v1-choice, vqa-v2
    """
    lookup("data", name, DATASETS)
    fit = [other for other, source in DATASETS.items() if content in source.contents]
    if name not in fit:
        raise UnknownName(f"data with {content}", name, fit)


def load_split(
    name: str, root: Path | None, split: str, *, content: Content, limit: int | None = None, need_pictures: bool = True
) -> Dataset:
    """A split of the data of a name; DataError when it has none of what the task needs.

    Args:
        name: a row of `DATASETS`.
        root: folder of published data; embedded data need none.
        split: of that data.
        content: what the task needs.
        limit: only the first so many pictures.
        need_pictures: refuse pictures that are not on disk.
    """
    data = lookup("data", name, DATASETS).read(root, split, count=limit, need_pictures=need_pictures)
    if not getattr(data, content):
        raise DataError(f"{name}: expected {content} in the split {split}, got none; check the folder and the split")
    return data


class PictureReader:
    """The pictures of a split as a task needs them: pixels, or features from a store or an encoder.

    Args:
        source: how a picture becomes pixels, the store of its features, or the encoder that makes them. What is made
            rather than read is kept in memory, up to `CACHE_BYTES`.
    """

    def __init__(self, source: PictureSource) -> None:
        self.source = source
        self._kept: dict[Id, Tensor | PictureFeatures] = {}

    def __call__(self, picture: Picture) -> Tensor | PictureFeatures:
        """(3, h, w) uint8, or features."""
        if isinstance(self.source, FeatureStore):
            return self.source.get(picture)
        if picture.id not in self._kept:
            made = self._make(picture)
            size = made.nbytes if isinstance(made, Tensor) else made.values.nbytes
            if (len(self._kept) + 1) * size > CACHE_BYTES:
                return made
            self._kept[picture.id] = made
        return self._kept[picture.id]

    def fingerprint(self, data: Dataset) -> str:
        """That of the annotations, and of the features where there are some."""
        own = data.fingerprint()
        if isinstance(self.source, FeatureStore):
            return f"{own}-{self.source.fingerprint}"
        return own if isinstance(self.source, Preprocess) else f"{own}-{self.source.weights()}"

    def _make(self, picture: Picture) -> Tensor | PictureFeatures:
        if isinstance(self.source, PictureEncoder):
            seen = self.source.encode([picture.pixels()])
            assert isinstance(seen.grid, tuple)
            return PictureFeatures(str(picture.id), seen.values[0].half().cpu().numpy(), seen.grid)
        assert isinstance(self.source, Preprocess)
        return self.source.pixels(picture.pixels())


def stack_pictures(pictures: Sequence[Tensor | PictureFeatures]) -> Tensor | ImageFeatures:
    """What `PictureReader` gave for each picture, as a batch."""
    features = [picture for picture in pictures if isinstance(picture, PictureFeatures)]
    if features:
        return stack_features(features)
    return torch.stack([picture for picture in pictures if isinstance(picture, Tensor)])


def pad_words(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Rows of word numbers as (B, T), and (B, T) True where there is a word; T is the longest, at least one.

    >>> tokens, mask = pad_words([[4, 5], [4]])
    >>> tokens.tolist(), mask.tolist()
    ([[4, 5], [4, 0]], [[True, True], [True, False]])
    """
    T = max([1, *map(len, rows)])
    tokens = torch.tensor([[*row, *[PAD] * (T - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(T)[None] < lengths[:, None]
