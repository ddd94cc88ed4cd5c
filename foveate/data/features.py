"""The feature store: one file of picture features, read at random by any number of processes.

An HDF5 file holds the locations of all pictures one after the other, so that pictures with different numbers of
locations lie side by side without padding:

    features  (ΣN, D) float16      boxes  (ΣN, 4) float32, fractions of the picture, only for regions
    offsets   (pictures + 1,)      picture p owns the rows offsets[p] : offsets[p + 1]
    ids       (pictures,) UTF-8    grids  (pictures, 2) rows and columns, 0 0 for regions
    sizes     (pictures, 2)        width and height in pixels of the original picture, 0 0 when unknown
    skipped   (unreadable, 2)      id and reason of pictures that could not be read

The features are one contiguous block, of the HDF5 layouts measured (benchmarks/store.py) the fastest to read. A memory
map would be twice as fast, but the pages that it has touched count as memory of the process until the system takes them
back. `foveate.data.store_writer` writes the file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveate.data.samples import Id, Picture
from foveate.errors import DataError, ShapeError

FORMAT = "foveate-features"
VERSION = 1


@dataclass(frozen=True)
class PictureFeatures:
    """The features of one picture, as the store keeps them.

    Attributes:
        id: of the picture, as text.
        values: (N, D) features, float16 when read from a store.
        grid: (H, W) with H·W = N when the locations are the cells of a grid in row order, None for regions.
        boxes: (N, 4) left, top, right, bottom of each region in fractions of the picture, None for a grid.
        size: width and height of the original picture in pixels, None when unknown.

    >>> PictureFeatures("1", np.zeros((6, 8)), grid=(2, 3)).values.shape
    (6, 8)
    """

    id: str
    values: np.ndarray
    grid: tuple[int, int] | None = None
    boxes: np.ndarray | None = None
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2:
            raise ShapeError(
                f"PictureFeatures: expected values (N, D), got {self.values.shape} for picture {self.id!r}; "
                "put the locations on one axis"
            )
        N = len(self.values)
        if self.grid is not None and self.grid[0] * self.grid[1] != N:
            raise ShapeError(
                f"PictureFeatures: expected H·W = {N} locations, got a grid {self.grid} for picture {self.id!r}; "
                "give the grid of these values"
            )
        if self.boxes is not None and self.boxes.shape != (N, 4):
            raise ShapeError(
                f"PictureFeatures: expected boxes ({N}, 4), got {self.boxes.shape} for picture {self.id!r}; "
                "give one box a location"
            )


@dataclass(frozen=True)
class ImageFeatures:
    """A batch of picture features, what every image encoder returns.

    Attributes:
        values: (B, N, D) features.
        grid: (H, W) shared by the batch, (B, 2) when pictures differ, None for regions.
        mask: (B, N) True where a location counts, None when all do. Shorter pictures are padded at the end.
        boxes: (B, N, 4) fractions of the picture, zero where padded, None for grids.
    """

    values: Tensor
    grid: tuple[int, int] | Tensor | None = None
    mask: Tensor | None = None
    boxes: Tensor | None = None

    def to(self, device: torch.device | str) -> ImageFeatures:
        """The same batch on another device.

        >>> ImageFeatures(torch.zeros(1, 4, 2), grid=(2, 2)).to("cpu").values.shape
        torch.Size([1, 4, 2])
        """
        moved = {k: v.to(device, non_blocking=True) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **moved)


@dataclass(frozen=True)
class StoreDescription:
    """What the features of a store are.

    Attributes:
        encoder: name that builds the encoder again, for instance "efficientnet-lite0".
        weights: digest of its parameters, "" when unknown.
        preprocess: JSON description of the preprocessing, "" when unknown.
        source: digest of the pictures or files the features were made of, "" when unknown.
    """

    encoder: str
    weights: str = ""
    preprocess: str = ""
    source: str = ""


class FeatureStore:
    """Features of pictures, read at random from one file.

    `store[7]` is the picture at a position, `store.get(picture)` the one of a `Picture` or an id. Copies sent to worker
    processes, forked or spawned, open the file again themselves.

    Args:
        path: of a file that `foveate extract` or `store_writer` wrote.

    A missing, truncated or foreign file raises DataError.

    >>> from tempfile import TemporaryDirectory
    >>> from foveate.data.store_writer import write_store
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "features.h5")
    ...     write_store(path, [PictureFeatures("a", np.ones((6, 8)), grid=(2, 3))], StoreDescription("example"), dim=8)
    ...     store = FeatureStore(path)
    ...     len(store), store.dim, store.get("a").grid
    (1, 8, (2, 3))
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._owner: int | None = None
        self._opened: tuple[Any, Any] | None = None
        file = self._open()
        try:
            self._read_header(file)
        except (KeyError, OSError, ValueError) as error:
            raise _refusal(self.path, str(error)) from None
        finally:
            file.close()

    def __reduce__(self) -> tuple[type[FeatureStore], tuple[Path]]:
        return FeatureStore, (self.path,)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[PictureFeatures]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, key: Id | Picture) -> bool:
        return self._find(key) is not None

    def __getitem__(self, position: int) -> PictureFeatures:
        """The features of the picture at a position, negative ones counted from the end."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"FeatureStore: expected a position below {len(self)}, got {position}; see len(store)")
        position %= len(self)
        values, boxes = self.rows(int(self.offsets[position]), int(self.offsets[position + 1]))
        grid, size = self.grids[position], self.sizes[position]
        return PictureFeatures(
            id=self.ids[position],
            values=values,
            grid=(int(grid[0]), int(grid[1])) if grid[0] else None,
            boxes=boxes,
            size=(int(size[0]), int(size[1])) if size[0] else None,
        )

    def get(self, key: Id | Picture) -> PictureFeatures:
        """The features of a picture: by its id, or for a `Picture` also by its file name without the ending."""
        position = self._find(key)
        if position is None:
            name = key.id if isinstance(key, Picture) else key
            raise DataError(
                f"FeatureStore: expected one of the {len(self)} pictures of {self.path}, got {name!r}; "
                "extract the features of this picture first"
            )
        return self[position]

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows of the features and of the boxes, whatever pictures they belong to."""
        features, boxes = self._datasets()
        return features[start:stop], None if boxes is None else boxes[start:stop]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._opened is not None and self._owner == os.getpid():
            self._opened[0].file.close()
        self._owner, self._opened = None, None

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.ids)}

    def _find(self, key: Id | Picture) -> int | None:
        if not isinstance(key, Picture):
            return self._positions.get(str(key))
        stem = key.source.stem if isinstance(key.source, Path) else str(key.id)
        return self._positions.get(str(key.id), self._positions.get(stem))

    def _datasets(self) -> tuple[Any, Any]:
        # What was opened before a fork is the parent's: the child opens its own.
        if self._opened is None or self._owner != os.getpid():
            file = self._open()
            self._opened, self._owner = (file["features"], file.get("boxes")), os.getpid()
        return self._opened

    def _open(self) -> Any:
        import h5py

        if not self.path.is_file():
            raise DataError(
                f"FeatureStore: expected a feature store at {self.path}, got no file; write it with `foveate extract`"
            )
        try:
            return h5py.File(self.path, "r", locking=False)
        except OSError as error:
            raise _refusal(self.path, str(error)) from None

    def _read_header(self, file: Any) -> None:
        if file.attrs.get("format") != FORMAT:
            raise ValueError("no foveate-features mark")
        if file.attrs["version"] != VERSION:
            raise ValueError(f"format version {file.attrs['version']}, this code reads {VERSION}")
        self.description = StoreDescription(**{f.name: str(file.attrs[f.name]) for f in fields(StoreDescription)})
        self.fingerprint = str(file.attrs["fingerprint"])
        self.offsets, self.grids, self.sizes = (file[name][:] for name in ("offsets", "grids", "sizes"))
        self.ids = [name.decode() for name in file["ids"][:].tolist()]
        self.skipped = {name.decode(): reason.decode() for name, reason in file["skipped"][:].tolist()}
        self.dim, self.has_boxes = int(file["features"].shape[1]), "boxes" in file
        self._check_index(len(file["features"]))

    def _check_index(self, rows: int) -> None:
        counts = np.diff(self.offsets)
        cells = self.grids.prod(axis=1)
        if not (len(self.ids) == len(self.grids) == len(self.sizes) == len(self)):
            raise ValueError(f"{len(self.ids)} ids for {len(self)} pictures")
        if self.offsets[0] != 0 or self.offsets[-1] != rows or (counts < 0).any():
            raise ValueError(f"offsets that do not cover the {rows} rows of features")
        if not ((cells == 0) | (cells == counts)).all():
            raise ValueError("grids that differ from the number of locations")


def stack_features(items: Iterable[PictureFeatures]) -> ImageFeatures:
    """Put pictures into one batch, padding the shorter ones with zeros at the end.

    Args:
        items: pictures with the same D, either all on grids or all regions; boxes are kept when all have them.

    Returns:
        The batch; its mask is None when no picture was padded.

    >>> one, two = np.ones((1, 8), np.float16), np.ones((2, 8), np.float16)
    >>> batch = stack_features([PictureFeatures("a", one, (1, 1)), PictureFeatures("b", two, (1, 2))])
    >>> batch.mask.tolist(), batch.grid.tolist()
    ([[True, False], [True, True]], [[1, 1], [1, 2]])
    """
    items = list(items)
    if not items:
        raise ShapeError("stack_features: expected at least one picture, got none; skip empty batches")
    if len({item.values.shape[1] for item in items}) > 1 or len({item.grid is None for item in items}) > 1:
        raise ShapeError(
            f"stack_features: expected pictures with the same D, all grids or all regions, got "
            f"{[(item.id, item.values.shape, item.grid) for item in items[:4]]}; take them from one store"
        )
    counts = torch.tensor([len(item.values) for item in items])
    padded = bool((counts != counts[0]).any())
    mask = torch.arange(int(counts.max()))[None] < counts[:, None] if padded else None
    boxes = [item.boxes for item in items if item.boxes is not None]
    return ImageFeatures(
        values=_pad([item.values for item in items]),
        grid=_shared_grid([item.grid for item in items]),
        mask=mask,
        boxes=_pad(boxes) if len(boxes) == len(items) else None,
    )


def _pad(arrays: Sequence[np.ndarray]) -> Tensor:
    N = max(len(array) for array in arrays)
    if all(len(array) == N for array in arrays):
        return torch.from_numpy(np.stack(arrays))
    batch = np.zeros((len(arrays), N, arrays[0].shape[1]), arrays[0].dtype)
    for row, array in zip(batch, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(batch)


def _shared_grid(grids: Sequence[tuple[int, int] | None]) -> tuple[int, int] | Tensor | None:
    if len(set(grids)) == 1:
        return grids[0]
    return torch.tensor(grids)


def _refusal(path: Path, reason: str) -> DataError:
    return DataError(
        f"FeatureStore: expected a whole feature store, got {path}, which cannot be read ({reason}); "
        "copy it again or write it again with `foveate extract`"
    )
