"""Writing the feature store atomically, in blocks that survive interruptions.

The images are split into blocks. A block is a small store of its own, written atomically, so that a file with the name
of a block is complete whatever kills the program. The blocks are in a directory next to the final file; processes, on
one machine or on several that share the directory, write different blocks. Finally all blocks are copied, in order,
into one file, again written atomically. A block is named by a digest of its input, so that an interrupted extraction
resumes where it stopped and never mixes with blocks of other images or another encoder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from foveate.errors import DataError, ShapeError
from foveate.io import atomic_write
from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription
from foveate.lab.data.store_file import FORMAT, INDEX, ROWS, VERSION, block_size, checksum, write_block

WRITE_ROWS = 4096
SLACK = 1 << 20  # for the metadata of HDF5
_Rows = tuple[np.ndarray, np.ndarray | None]


@dataclass(frozen=True)
class _Index:
    """Everything a store keeps about its images except the features."""

    ids: list[str]
    offsets: np.ndarray
    grids: np.ndarray
    sizes: np.ndarray
    skipped: Mapping[str, str]
    dim: int
    has_boxes: bool


def digest(*parts: Any) -> str:
    """Return sixteen hexadecimal digits that change with any of the parts, which must be JSON values.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


def check_unique(where: str, ids: Iterable[str]) -> None:
    """Raises DataError if an id occurs twice.

    >>> check_unique("example", ["a", "b"])
    """
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise DataError(f"{where}: expected images with different ids, got {name!r} twice; rename the second")
        seen.add(name)


def write_store(
    path: Path,
    items: Iterable[FeatureRecord],
    description: StoreDescription,
    *,
    dim: int,
    skipped: Mapping[str, str] | None = None,
) -> None:
    """Write a store atomically from features in memory.

    Args:
        path: of the file to write.
        items: the images in the order of the store; all or none with boxes.
        description: how the features were computed.
        dim: number of features per location, D, since there may be no image.
        skipped: reasons by id of images that could not be read.

    Values are stored as float16; raises DataError with the id of the image if one is not finite in this type.
    """
    items = list(items)
    for item in items:
        _check_item(item, dim)
    has_boxes = any(item.boxes is not None for item in items)
    if any((item.boxes is not None) != has_boxes for item in items):
        raise DataError("write_store: expected all images with boxes or none, got both; write two stores")
    index = _Index(
        ids=[item.id for item in items],
        offsets=np.cumsum([0] + [len(item.values) for item in items]),
        grids=np.array([item.grid or (0, 0) for item in items], np.int32).reshape(-1, 2),
        sizes=np.array([item.size or (0, 0) for item in items], np.int32).reshape(-1, 2),
        skipped=skipped or {},
        dim=dim,
        has_boxes=has_boxes,
    )
    _write(path, path.parent, index, description, ((item.values, item.boxes) for item in items))


def merge_stores(
    parts: Sequence[FeatureStore], path: Path, description: StoreDescription, *, scratch: Path | None = None
) -> None:
    """Concatenate stores into one, written atomically.

    Args:
        parts: stores with the same D, all or none with boxes; empty ones are skipped.
        path: of the file to write; an existing file is replaced.
        description: of the result.
        scratch: directory for the temporary file, on the same file system; that of `path` by default.

    Raises DataError if the disk has no room for the result in addition to the parts, which are kept.
    """
    full = [part for part in parts if len(part)] or list(parts[:1])
    if len({(part.dim, part.has_boxes) for part in full}) != 1:
        raise DataError(
            f"merge_stores: expected parts with the same D, all or none with boxes, got "
            f"{sorted({(part.dim, part.has_boxes) for part in full})}; merge stores of one encoder"
        )
    starts = np.cumsum([0] + [part.offsets[-1] for part in full])
    index = _Index(
        ids=[name for part in full for name in part.ids],
        offsets=np.concatenate([[0], *(part.offsets[1:] + start for part, start in zip(full, starts, strict=False))]),
        grids=np.concatenate([part.grids for part in full]),
        sizes=np.concatenate([part.sizes for part in full]),
        skipped={name: reason for part in parts for name, reason in part.skipped.items()},
        dim=full[0].dim,
        has_boxes=full[0].has_boxes,
    )
    _write(path, scratch or path.parent, index, description, _rows_of(full))


class Workspace:
    """An unfinished store: a directory of blocks next to the file that they will become.

    Args:
        out: the file to write; the directory is `<out>.partial`.
        description: of the features, without `source`.
        dim: number of features per location.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     work = Workspace(Path(directory, "features.h5"), StoreDescription("example"), dim=2)
    ...     work.write("first", [FeatureRecord("a", np.ones((1, 2)), grid=(1, 1))])
    ...     work.write("second", [FeatureRecord("b", np.ones((1, 2)), grid=(1, 1))])
    ...     work.finish(["first", "second"]).ids
    ['a', 'b']
    """

    def __init__(self, out: Path, description: StoreDescription, *, dim: int) -> None:
        self.out, self.description, self.dim = Path(out), description, dim
        self.directory = self.out.with_name(self.out.name + ".partial")
        if not self.out.parent.is_dir():
            raise DataError(
                f"Workspace: expected a directory {self.out.parent} to write {self.out.name} to, got none; create it"
            )

    def finished(self, keys: Sequence[str]) -> FeatureStore | None:
        """Return the store if it was already made of these blocks; raises DataError if another file has its name."""
        if not self.out.exists():
            return None
        store = FeatureStore(self.out)
        if store.description != replace(self.description, source=digest(*keys)):
            raise DataError(
                f"Workspace: expected no file at {self.out} or the store of the same images and encoder, got "
                f"{len(store)} images encoded by {store.description.encoder!r}; remove it or choose another name"
            )
        return store

    def has(self, key: str) -> bool:
        """Return True if the block is complete; a damaged block is removed, to be written again."""
        try:
            FeatureStore(self._block(key))
        except DataError:
            self._block(key).unlink(missing_ok=True)
            return False
        return True

    def write(self, key: str, items: Iterable[FeatureRecord], *, skipped: Mapping[str, str] | None = None) -> None:
        """Write one block atomically."""
        self.directory.mkdir(exist_ok=True)
        write_store(self._block(key), items, self.description, dim=self.dim, skipped=skipped)

    def skipped(self, keys: Iterable[str]) -> dict[str, str]:
        """Return the reasons by id of the images in these blocks that could not be read."""
        return {name: reason for key in keys for name, reason in FeatureStore(self._block(key)).skipped.items()}

    def finish(self, keys: Sequence[str]) -> FeatureStore:
        """Merge the blocks, in this order, into the store and remove the directory."""
        parts = [FeatureStore(self._block(key)) for key in keys]
        description = replace(self.description, source=digest(*keys))
        merge_stores(parts, self.out, description, scratch=self.directory)
        self.clean()
        return FeatureStore(self.out)

    def clean(self) -> None:
        """Remove the directory of blocks."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def _block(self, key: str) -> Path:
        return self.directory / f"{key}.h5"


def import_features(
    items: Iterable[FeatureRecord], out: Path, description: StoreDescription, *, block: int = 256
) -> FeatureStore:
    """Write a store of features that arrive one image at a time, holding at most `block` of them in memory.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     items = (FeatureRecord(str(n), np.ones((1, 2)), grid=(1, 1)) for n in range(5))
    ...     len(import_features(items, Path(directory, "features.h5"), StoreDescription("example"), block=2))
    5
    """
    items = iter(items)
    first = next(items, None)
    if first is None:
        raise DataError(f"import_features: expected at least one image for {out}, got none; check the source")
    work = Workspace(out, description, dim=first.values.shape[1])
    if work.out.exists():
        raise DataError(f"import_features: expected no file at {out}, got one; remove it or choose another name")
    work.clean()
    keys: list[str] = []
    chunk = [first, *islice(items, block - 1)]
    while chunk:
        keys.append(str(len(keys)))
        work.write(keys[-1], chunk)
        chunk = list(islice(items, block))
    return work.finish(keys)


def _write(path: Path, scratch: Path, index: _Index, description: StoreDescription, images: Iterable[_Rows]) -> None:
    import h5py

    check_unique("write_store", index.ids)
    tables = {
        "offsets": index.offsets,
        "grids": index.grids,
        "sizes": index.sizes,
        "ids": _encode(index.ids),
        "skipped": _encode([text for pair in index.skipped.items() for text in pair]).reshape(-1, 2),
    }
    rows = int(index.offsets[-1])
    held = sum(table.nbytes for table in tables.values()) + 4 * len(index.ids)
    with atomic_write(path, scratch=scratch, shared=True) as temporary:
        block = block_size({**asdict(description), "fingerprint": digest()})
        _reserve(temporary, rows * (2 * index.dim + 16 * index.has_boxes) + held + SLACK, block)
        try:
            with h5py.File(temporary, "r+") as file:
                file.attrs.update(format=FORMAT, version=VERSION, **asdict(description))
                for name, table in tables.items():
                    kind, _ = INDEX[name]
                    file[name] = table if kind == "S" else table.astype(kind)
                features = file.create_dataset("features", (rows, index.dim), ROWS["features"][0])
                boxes = file.create_dataset("boxes", (rows, 4), ROWS["boxes"][0]) if index.has_boxes else None
                file.attrs["fingerprint"], file["checksums"] = _copy(images, features, boxes, index.ids)
                file.flush()  # a failure to write while closing would only be printed
        except RuntimeError as error:  # h5py raises either this or OSError when the disk is full
            raise OSError(str(error)) from error
        write_block(temporary)
        FeatureStore(temporary)  # only a file that can be read back is renamed into place


def _copy(images: Iterable[_Rows], features: Any, boxes: Any, ids: list[str]) -> tuple[str, np.ndarray]:
    """Fill the datasets; return the fingerprint, a digest of the ids and of every value, and a checksum per image."""
    hashes, row = [hashlib.sha256(json.dumps(ids).encode()), hashlib.sha256()], 0
    checksums: list[int] = []
    for group in _grouped(images, features.dtype, None if boxes is None else boxes.dtype):
        checksums += [checksum(*image) for image in group]
        stop = row + sum(len(values) for values, _ in group)
        for dataset, arrays, sha in zip((features, boxes), zip(*group, strict=True), hashes, strict=True):
            if dataset is None or stop == row:
                continue
            joined = np.concatenate(arrays)
            dataset[row:stop] = joined
            sha.update(joined.data)
        row = stop
    return digest(*(sha.hexdigest() for sha in hashes)), np.array(checksums, INDEX["checksums"][0])


def _grouped(images: Iterable[_Rows], values_type: Any, boxes_type: Any) -> Iterator[list[_Rows]]:
    """Yield the images in groups of `WRITE_ROWS` rows or more, in the types of the file: fewer, larger writes."""
    group: list[_Rows] = []
    for values, boxes in images:
        values = np.ascontiguousarray(values, values_type)
        group.append((values, None if boxes is None else np.ascontiguousarray(boxes, boxes_type)))
        if sum(len(values) for values, _ in group) >= WRITE_ROWS:
            yield group
            group = []
    if group:
        yield group


def _reserve(path: Path, need: int, block: int) -> None:
    """Create an empty HDF5 file after a user block, with its space on disk allocated: HDF5 may crash on a full disk."""
    import h5py

    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise OSError(f"{free / 1e9:.3f} GB free where {need / 1e9:.3f} are needed")
    with h5py.File("empty", "w", driver="core", backing_store=False, userblock_size=block) as empty:
        empty.flush()
        image = empty.id.get_file_image()  # without the user block
    with path.open("xb") as file:
        file.write(bytes(block) + image)
        file.flush()
        if hasattr(os, "posix_fallocate"):  # what is left over is released when the HDF5 file is closed
            os.posix_fallocate(file.fileno(), 0, need)


def _rows_of(parts: Sequence[FeatureStore]) -> Iterator[_Rows]:
    for part in parts:
        yield from ((record.values, record.boxes) for record in part)
        part.close()


def _encode(texts: Sequence[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts], dtype=np.bytes_ if texts else "S1")


def _check_item(item: FeatureRecord, dim: int) -> None:
    if item.values.shape[1] != dim:
        raise ShapeError(
            f"write_store: expected {dim} features per location, got {item.values.shape[1]} for image {item.id!r}; "
            "write the features of one encoder"
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(item.values.astype(np.float16, copy=False)).all()
    if not finite:
        raise DataError(
            f"write_store: expected values that are finite as float16, got others for image {item.id!r}; "
            "check the encoder or scale its output"
        )
