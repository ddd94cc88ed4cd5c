"""Writing the feature store so that nothing half-written is ever taken for whole.

Work is cut into blocks of pictures. A block is a small store of its own: written under a temporary name, forced to the
disk, then renamed, so that a file with a block's name is whole, whatever kills the program. The blocks lie in a folder
beside the store to be; processes, on one machine or several that share the folder, write different blocks. When all are
there they are copied, in order, into one file that appears under its name by one more rename. A block is named by a
digest of what goes into it, so that work that was interrupted goes on where it stopped, and work on other pictures or
with another encoder never mixes with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from foveate.data.features import FORMAT, VERSION, FeatureStore, PictureFeatures, StoreDescription
from foveate.data.writing import sync
from foveate.errors import DataError, ShapeError

MERGE_ROWS = 4096
SLACK = 1 << 20  # for what HDF5 writes of its own


@dataclass(frozen=True)
class _Index:
    """What a store says of its pictures, apart from the features themselves."""

    ids: list[str]
    offsets: np.ndarray
    grids: np.ndarray
    sizes: np.ndarray
    skipped: Mapping[str, str]
    dim: int
    has_boxes: bool


def digest(*parts: Any) -> str:
    """Sixteen hexadecimal digits that change with any of the parts, which must be JSON.

    >>> digest("a", 1) == digest("a", 1), digest("a", 1) == digest("a", 2)
    (True, False)
    """
    return hashlib.sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()[:16]


def check_unique(where: str, ids: Iterable[str]) -> None:
    """Refuse an id that comes twice.

    >>> check_unique("example", ["a", "b"])
    """
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise DataError(f"{where}: expected pictures with different ids, got {name!r} twice; rename the second")
        seen.add(name)


def write_store(
    path: Path,
    items: Iterable[PictureFeatures],
    description: StoreDescription,
    *,
    dim: int,
    skipped: Mapping[str, str] | None = None,
) -> None:
    """Write a store from features in memory, whole or not at all.

    Args:
        path: of the file to appear.
        items: the pictures in the order of the store; all or none with boxes.
        description: what the features are.
        dim: number of features a location, D; it must be told since there may be no picture.
        skipped: reasons by id of pictures that could not be read.

    Values are kept as float16: one that is not finite there raises DataError with the picture's id.
    """
    items = list(items)
    for item in items:
        _check_item(item, dim)
    has_boxes = any(item.boxes is not None for item in items)
    if any((item.boxes is not None) != has_boxes for item in items):
        raise DataError("write_store: expected all pictures with boxes or none, got both; write them apart")
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
    """Copy stores one after the other into one, whole or not at all.

    Args:
        parts: stores with the same D, all or none with boxes; empty ones are passed over.
        path: of the file to appear; a file already there is replaced.
        description: of the whole.
        scratch: folder for the unfinished file, on the same disk; that of `path` when absent.

    The disk must have room for the whole beside the parts: otherwise DataError, and the parts are kept.
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
    """The unfinished store: a folder of blocks beside the file that they will become.

    Args:
        out: the file to appear; the folder is `<out>.partial`.
        description: of the features, without its source.
        dim: number of features a location.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     work = Workspace(Path(folder, "features.h5"), StoreDescription("example"), dim=2)
    ...     work.write("first", [PictureFeatures("a", np.ones((1, 2)), grid=(1, 1))])
    ...     work.write("second", [PictureFeatures("b", np.ones((1, 2)), grid=(1, 1))])
    ...     work.finish(["first", "second"]).ids
    ['a', 'b']
    """

    def __init__(self, out: Path, description: StoreDescription, *, dim: int) -> None:
        self.out, self.description, self.dim = Path(out), description, dim
        self.folder = self.out.with_name(self.out.name + ".partial")
        if not self.out.parent.is_dir():
            raise DataError(
                f"Workspace: expected a folder {self.out.parent} to write {self.out.name} into, got none; make it first"
            )

    def finished(self, keys: Sequence[str]) -> FeatureStore | None:
        """The store if these very blocks have become it already; DataError when another file has its name."""
        if not self.out.exists():
            return None
        store = FeatureStore(self.out)
        if store.description != replace(self.description, source=digest(*keys)):
            raise DataError(
                f"Workspace: expected no file at {self.out} or the store of the same pictures and encoder, got "
                f"{len(store)} pictures encoded by {store.description.encoder!r}; remove it or choose another name"
            )
        return store

    def has(self, key: str) -> bool:
        """True when the block is there and whole; a damaged one is removed, to be written again."""
        try:
            FeatureStore(self._block(key))
        except DataError:
            self._block(key).unlink(missing_ok=True)
            return False
        return True

    def write(self, key: str, items: Iterable[PictureFeatures], *, skipped: Mapping[str, str] | None = None) -> None:
        """Write one block, whole or not at all."""
        self.folder.mkdir(exist_ok=True)
        write_store(self._block(key), items, self.description, dim=self.dim, skipped=skipped)

    def skipped(self, keys: Iterable[str]) -> dict[str, str]:
        """Reasons by id of the pictures that could not be read, over the blocks."""
        return {name: reason for key in keys for name, reason in FeatureStore(self._block(key)).skipped.items()}

    def finish(self, keys: Sequence[str]) -> FeatureStore:
        """Make the store of the blocks, in this order, and remove the folder."""
        parts = [FeatureStore(self._block(key)) for key in keys]
        description = replace(self.description, source=digest(*keys))
        merge_stores(parts, self.out, description, scratch=self.folder)
        self.clean()
        return FeatureStore(self.out)

    def clean(self) -> None:
        """Remove the folder of blocks."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _block(self, key: str) -> Path:
        return self.folder / f"{key}.h5"


def import_features(
    items: Iterable[PictureFeatures], out: Path, description: StoreDescription, *, block: int = 256
) -> FeatureStore:
    """Make a store of features that come one picture at a time, never holding more than `block` of them.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     items = (PictureFeatures(str(n), np.ones((1, 2)), grid=(1, 1)) for n in range(5))
    ...     len(import_features(items, Path(folder, "features.h5"), StoreDescription("example"), block=2))
    5
    """
    items = iter(items)
    first = next(items, None)
    if first is None:
        raise DataError(f"import_features: expected at least one picture for {out}, got none; check the source")
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


def _write(
    path: Path,
    scratch: Path,
    index: _Index,
    description: StoreDescription,
    chunks: Iterable[tuple[np.ndarray, np.ndarray | None]],
) -> None:
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
    need = rows * (2 * index.dim + 16 * index.has_boxes) + sum(table.nbytes for table in tables.values()) + SLACK
    with _appearing(path, scratch, need) as temporary, h5py.File(temporary, "r+") as file:
        file.attrs.update(format=FORMAT, version=VERSION, **asdict(description))
        for name, table in tables.items():
            file[name] = table
        features = file.create_dataset("features", (rows, index.dim), np.float16)
        boxes = file.create_dataset("boxes", (rows, 4), np.float32) if index.has_boxes else None
        file.attrs["fingerprint"] = _copy(chunks, features, boxes, index.ids)
        file.flush()  # a failure to write while closing would only be printed


def _copy(chunks: Iterable[tuple[np.ndarray, np.ndarray | None]], features: Any, boxes: Any, ids: list[str]) -> str:
    """Fill the datasets; the fingerprint is a digest of the ids and of every value."""
    hashes, row = [hashlib.sha256(json.dumps(ids).encode()), hashlib.sha256()], 0
    for chunk in chunks:
        stop = row + len(chunk[0])
        for dataset, array, sha in zip((features, boxes), chunk, hashes, strict=True):
            if dataset is None or array is None or stop == row:
                continue
            array = np.ascontiguousarray(array, dataset.dtype)
            dataset[row:stop] = array
            sha.update(array.data)
        row = stop
    return digest(*(sha.hexdigest() for sha in hashes))


@contextmanager
def _appearing(path: Path, scratch: Path, need: int) -> Iterator[Path]:
    """An empty HDF5 file with room for `need` bytes that becomes `path`, forced to the disk, if the body succeeds."""
    temporary = scratch / f".{path.name}.{uuid.uuid4().hex}.tmp"
    try:
        _reserve(temporary, need)
        yield temporary
        FeatureStore(temporary)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except (OSError, RuntimeError) as error:  # h5py raises either
        raise DataError(
            f"write_store: expected to write {path}, got {error}; nothing was kept of it, make room "
            "or mend the rights and start again"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _reserve(path: Path, need: int) -> None:
    """Make an empty HDF5 file that owns its room on the disk: HDF5 may crash where a write finds no space."""
    import h5py

    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise OSError(f"{free / 1e9:.3f} GB free where {need / 1e9:.3f} are needed")
    with h5py.File("empty", "w", driver="core", backing_store=False) as empty:
        empty.flush()
        image = empty.id.get_file_image()
    with path.open("xb") as file:
        file.write(image)
        file.flush()
        if hasattr(os, "posix_fallocate"):  # closing the HDF5 file gives back what is left over
            os.posix_fallocate(file.fileno(), 0, need)


def _rows_of(parts: Sequence[FeatureStore]) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    for part in parts:
        rows = int(part.offsets[-1])
        for start in range(0, rows, MERGE_ROWS):
            yield part.rows(start, min(start + MERGE_ROWS, rows))
        part.close()


def _encode(texts: Sequence[str]) -> np.ndarray:
    return np.array([text.encode() for text in texts], dtype=np.bytes_ if texts else "S1")


def _check_item(item: PictureFeatures, dim: int) -> None:
    if item.values.shape[1] != dim:
        raise ShapeError(
            f"write_store: expected {dim} features a location, got {item.values.shape[1]} for picture {item.id!r}; "
            "write the features of one encoder"
        )
    with np.errstate(over="ignore"):
        finite = np.isfinite(item.values.astype(np.float16, copy=False)).all()
    if not finite:
        raise DataError(
            f"write_store: expected values that are finite as float16, got others for picture {item.id!r}; "
            "look at the encoder or scale its output"
        )
