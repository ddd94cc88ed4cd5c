"""The feature store: one file of image features, read at random by any number of processes.

An HDF5 file holds the locations of all images one after the other, so that images with different numbers of
locations need no padding:

    features   (ΣN, D) float16      boxes  (ΣN, 4) float32, in fractions of the image, only for regions
    offsets    (images + 1,)        image p owns the rows offsets[p] : offsets[p + 1]
    ids        (images,) UTF-8      grids  (images, 2) rows and columns, 0 0 for regions
    sizes      (images, 2)          width and height in pixels of the original image, 0 0 if unknown
    checksums  (images,) uint32     CRC-32 of the features and boxes of an image
    skipped    (unreadable, 2)      id and reason of images that could not be read

The features are one contiguous block, the fastest layout to read of those measured (benchmarks/store.py). A memory
map would be faster still, but its pages count as memory of the process until the system reclaims them.
`foveate.lab.data.store_file` opens the file safely, `foveate.lab.data.store_writer` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError, ShapeError, WrongValue
from foveate.lab.data.samples import Id, ImageRecord
from foveate.lab.data.store_file import ROWS, ArrayReader, checksum, read_header, unreadable
from foveate.lab.features import ImageFeatures


@dataclass(frozen=True)
class FeatureRecord:
    """The features of one image, as kept in a store.

    Attributes:
        id: of the image.
        values: (N, D) features, float16 when read from a store.
        grid: (H, W) with H·W = N if the locations are the cells of a grid in row order, None for regions.
        boxes: (N, 4) left, top, right, bottom of each region in fractions of the image, None for a grid.
        size: width and height of the original image in pixels, None if unknown.

    >>> FeatureRecord("1", np.zeros((6, 8)), grid=(2, 3)).values.shape
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
                f"FeatureRecord: expected values (N, D), got {self.values.shape} for image {self.id!r}; "
                "put the locations on one axis"
            )
        N = len(self.values)
        if self.grid is not None and self.grid[0] * self.grid[1] != N:
            raise ShapeError(
                f"FeatureRecord: expected H·W = {N} locations, got a grid {self.grid} for image {self.id!r}; "
                "pass the grid of these values"
            )
        if self.boxes is not None and self.boxes.shape != (N, 4):
            raise ShapeError(
                f"FeatureRecord: expected boxes ({N}, 4), got {self.boxes.shape} for image {self.id!r}; "
                "pass one box per location"
            )


@dataclass(frozen=True)
class StoreDescription:
    """The origin of the features of a store.

    Attributes:
        encoder: name of the encoder, for instance "efficientnet-lite0".
        weights: digest of its parameters, "" if unknown.
        preprocess: JSON description of the preprocessing, "" if unknown.
        source: digest of the images or files that were encoded, "" if unknown.
    """

    encoder: str
    weights: str = ""
    preprocess: str = ""
    source: str = ""


class FeatureStore:
    """Features of images, read at random from one file.

    `store[7]` is the image at a position, `store.get(image)` that of an `ImageRecord` or an id. A store can be sent to
    worker processes, forked or spawned.

    Args:
        path: of a file written by `foveate extract` or `store_writer`.
        verify: raise DataError if a checksum does not match, when opening the file and for each image read.

    Raises DataError if the file is missing, truncated, damaged or no feature store.

    >>> from tempfile import TemporaryDirectory
    >>> from foveate.lab.data.store_writer import write_store
    >>> with TemporaryDirectory() as directory:
    ...     path = Path(directory, "features.h5")
    ...     write_store(path, [FeatureRecord("a", np.ones((6, 8)), grid=(2, 3))], StoreDescription("example"), dim=8)
    ...     store = FeatureStore(path)
    ...     len(store), store.dim, store.get("a").grid
    (1, 8, (2, 3))
    """

    def __init__(self, path: Path | str, *, verify: bool = True) -> None:
        self.path, self.verify = Path(path), verify
        header = read_header(self.path, verify=verify)
        self.description = StoreDescription(**{f.name: header.attributes[f.name] for f in fields(StoreDescription)})
        self.fingerprint = header.attributes["fingerprint"]
        self._reader = reader = ArrayReader(self.path, header)
        self.offsets, self.grids, self.sizes = (reader.table(name) for name in ("offsets", "grids", "sizes"))
        self.checksums = reader.table("checksums")
        self.dim, self.has_boxes = header.tables["features"].shape[1], "boxes" in header.tables
        try:
            self.ids = [name.decode() for name in reader.table("ids").tolist()]
            self.skipped = {name.decode(): reason.decode() for name, reason in reader.table("skipped").tolist()}
            self._check_index({header.tables[name].shape[0] for name in ROWS if name in header.tables})
        except ValueError as error:
            raise unreadable(self.path, str(error)) from None
        finally:
            reader.close()  # many stores may be open at a time; the first read of features opens the file again

    def __reduce__(self) -> tuple[Callable[..., FeatureStore], tuple[Path, bool]]:
        return _reopen, (self.path, self.verify)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[FeatureRecord]:
        return (self[position] for position in range(len(self)))

    def __contains__(self, key: Id | ImageRecord) -> bool:
        return self._find(key) is not None

    def __getitem__(self, position: int) -> FeatureRecord:
        """Return the features of the image at a position; negative positions count from the end."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"FeatureStore: expected a position below {len(self)}, got {position}; see len(store)")
        position %= len(self)
        start, stop = int(self.offsets[position]), int(self.offsets[position + 1])
        values = self._reader.rows("features", start, stop)
        boxes = self._reader.rows("boxes", start, stop) if self.has_boxes else None
        if self.verify and checksum(values, boxes) != self.checksums[position]:
            raise DataError(
                f"FeatureStore: expected the checksum of image {self.ids[position]!r} in {self.path}, got another: the "
                "file is damaged; copy it again or write it again with `foveate extract`"
            )
        grid, size = self.grids[position], self.sizes[position]
        return FeatureRecord(
            id=self.ids[position],
            values=values,
            grid=(int(grid[0]), int(grid[1])) if grid[0] else None,
            boxes=boxes,
            size=(int(size[0]), int(size[1])) if size[0] else None,
        )

    def get(self, key: Id | ImageRecord, view: int = 0) -> FeatureRecord:
        """Return the features of an image by its id, or for an `ImageRecord` also by its file name without suffix,
        alone or after the name of its directory.

        Args:
            key: the image.
            view: 0 is the whole image, 1 the first of the others that `foveate extract --views` adds.
        """
        position = self._find(key, view)
        if position is None:
            name = key.id if isinstance(key, ImageRecord) else key
            name = view_id(name, view) if view else name
            advice = f"extract again with --views {view + 1}" if view else "extract the features of this image first"
            raise DataError(
                f"FeatureStore: expected one of the {len(self)} images of {self.path}, got {name!r}; " + advice
            )
        return self[position]

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        self._reader.close()

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.ids)}

    def _find(self, key: Id | ImageRecord, view: int = 0) -> int | None:
        if not isinstance(key, ImageRecord):
            return self._positions.get(view_id(key, view))
        for name in self._names(key):
            if view_id(name, view) in self._positions:
                return self._positions[view_id(name, view)]
        return None

    @staticmethod
    def _names(image: ImageRecord) -> Iterator[Id]:
        """The names that an image may have in a store: its id, that without a suffix, its file's without a suffix."""
        yield image.id
        if isinstance(image.source, Path):
            if isinstance(image.id, str) and image.id.endswith(image.source.suffix):
                yield image.id.removesuffix(image.source.suffix)
            yield image.source.stem
            # In a store of a directory with subdirectories: "train2014/COCO_train2014_000000000009".
            yield f"{image.source.parent.name}/{image.source.stem}"

    def _check_index(self, lengths: set[int]) -> None:
        """Raises ValueError if the tables of the index contradict each other or the `lengths` of the row blocks."""
        tables: list[Sized] = [self.ids, self.grids, self.sizes, self.checksums]
        if any(len(table) != len(self) for table in tables):
            raise WrongValue(f"{len(self.ids)} ids for {len(self)} images")
        if len(self._positions) != len(self.ids):
            raise WrongValue("an id twice")
        counts, rows = np.diff(self.offsets), max(lengths)
        if len(self) < 0 or self.offsets[0] != 0 or self.offsets[-1] != rows or (counts < 0).any() or len(lengths) > 1:
            raise WrongValue(f"offsets that do not cover the {rows} rows of features")
        if self.dim < 1:
            raise WrongValue("no features per location")
        # In 64 bits the product of two 32-bit numbers cannot overflow and pass for another number of cells.
        cells = self.grids.astype(np.int64).prod(axis=1)
        on_grid = self.grids.any(axis=1)
        if (
            (self.grids < 0).any()
            or not np.where(on_grid, cells == counts, True).all()
            or not (cells[on_grid] > 0).all()
        ):
            raise WrongValue("grids that differ from the number of locations")
        if (self.sizes < 0).any():
            raise WrongValue("negative sizes of images")


@dataclass(frozen=True)
class JoinedStores:
    """Several stores of the same encoder as one, for a training split made of several splits.

    Raises ShapeError if the features differ in size.
    """

    stores: tuple[FeatureStore, ...]

    def __post_init__(self) -> None:
        sizes = {store.path.name: store.dim for store in self.stores}
        if len(set(sizes.values())) > 1:
            raise ShapeError(
                f"JoinedStores: expected features of one size, got {sizes}; extract all of them with one encoder"
            )

    @property
    def fingerprint(self) -> str:
        """The fingerprints of the stores."""
        return "-".join(store.fingerprint for store in self.stores)

    @property
    def skipped(self) -> dict[str, str]:
        """Images that could not be read, with the reason, of all stores."""
        return {name: reason for store in self.stores for name, reason in store.skipped.items()}

    def get(self, key: Id | ImageRecord, view: int = 0) -> FeatureRecord:
        """Return the features of an image from the first store that has it; see `FeatureStore.get`."""
        return next((store for store in self.stores if key in store), self.stores[-1]).get(key, view)


def view_id(name: Id, view: int) -> str:
    """The id in a store of a view of an image; view 0 is the image itself.

    >>> view_id("cat", 0), view_id("cat", 2)
    ('cat', 'cat#2')
    """
    return f"{name}#{view}" if view else str(name)


def _reopen(path: Path, verify: bool) -> FeatureStore:
    return FeatureStore(path, verify=verify)


def stack_features(items: Iterable[FeatureRecord]) -> ImageFeatures:
    """Stack images into a batch, padding the shorter ones with zeros at the end.

    Args:
        items: images with the same D, either all on grids or all regions; boxes are kept if all have them.

    Returns:
        The batch; its mask is None if no image was padded.

    >>> one, two = np.ones((1, 8), np.float16), np.ones((2, 8), np.float16)
    >>> batch = stack_features([FeatureRecord("a", one, (1, 1)), FeatureRecord("b", two, (1, 2))])
    >>> batch.mask.tolist(), batch.grid.tolist()
    ([[True, False], [True, True]], [[1, 1], [1, 2]])
    """
    items = list(items)
    if not items:
        raise ShapeError("stack_features: expected at least one image, got none; skip empty batches")
    if len({item.values.shape[1] for item in items}) > 1 or len({item.grid is None for item in items}) > 1:
        raise ShapeError(
            f"stack_features: expected images with the same D, all grids or all regions, got "
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


def unstack_features(
    features: ImageFeatures, ids: Sequence[str], sizes: Sequence[tuple[int, int] | None] | None = None
) -> list[FeatureRecord]:
    """Split a batch into its images, without padding and as float16; the inverse of `stack_features`.

    Args:
        features: of B images.
        ids: of the images.
        sizes: width and height of each in pixels, None if unknown.

    >>> values = torch.ones(2, 3, 8)
    >>> [record.values.shape for record in unstack_features(ImageFeatures(values, grid=(1, 3)), ["a", "b"])]
    [(3, 8), (3, 8)]
    """
    B, N = features.values.shape[:2]
    counts = [N] * B if features.mask is None else features.mask.sum(-1).tolist()
    grids: list[tuple[int, int] | None] = [None] * B
    if features.grid is not None:
        pairs = features.grid.tolist() if isinstance(features.grid, Tensor) else [features.grid] * B
        grids = [(H, W) for H, W in pairs]
    values = features.values.half().cpu().numpy()
    boxes = None if features.boxes is None else features.boxes.float().cpu().numpy()
    return [
        FeatureRecord(
            name,
            values[b, : counts[b]],
            grid=grids[b],
            boxes=None if boxes is None else boxes[b, : counts[b]],
            size=None if sizes is None else sizes[b],
        )
        for b, name in enumerate(ids)
    ]


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
