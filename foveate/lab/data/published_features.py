"""Formats of published features by name, and the readers of directories with one file or entry per image.

`foveate import` and the tables of the papers read them.
"""

from __future__ import annotations

import base64
import io
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.files import coco_id, need_directory
from foveate.lab.data.karpathy import SOURCE
from foveate.lab.data.precomp import read_bottom_up, read_grid_feats, read_scan
from foveate.registry import lookup, optional

NPZ_SOURCE = "openvqa publishes train2014.tar.gz, val2014.tar.gz and test2015.tar.gz of <image>.jpg.npz"
NPY_SOURCE = "a folder has <image_id>.npy of (N, D), (D, H, W) or (H, W, D)"
LMDB_SOURCE = "MMF and ViLBERT publish directories with data.mdb"
# What an entry of LMDB may contain besides plain values: nothing else is created while it is unpickled.
SAFE = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}


def read_npz(directory: Path) -> Iterator[FeatureRecord]:
    """Yield the regions of openvqa: x (D, N) or (N, D), bbox (N, 4) in pixels, image_w and image_h."""
    for path in _files(directory, ".npz", "read_npz", NPZ_SOURCE):
        with _load("read_npz", path) as content:
            fields = {name: np.asarray(content[name]) for name in content.files}
        yield _regions("read_npz", path, _id(path), fields)


def read_npy(directory: Path) -> Iterator[FeatureRecord]:
    """Yield the features of a folder of arrays: regions (N, D), or a grid (D, H, W) or (H, W, D), also after a 1.

    Of a grid, the longest axis at either end is taken as D. Files `*_info.npy`, which hold Python objects, are skipped.
    """
    for path in _files(directory, ".npy", "read_npy", NPY_SOURCE):
        if path.stem.endswith("_info"):
            continue
        values = np.asarray(_load("read_npy", path))
        values = values[0] if values.ndim == 4 and len(values) == 1 else values
        if values.ndim not in (2, 3) or not values.size or values.dtype.kind not in "fiu":
            raise DataError(f"read_npy: expected numbers, got {values.dtype} {values.shape} in {path}; {NPY_SOURCE}")
        if values.ndim == 2:
            yield FeatureRecord(_id(path), values.astype(np.float32))
            continue
        grid = np.moveaxis(values, 0, -1) if values.shape[0] >= values.shape[-1] else values
        H, W, D = grid.shape
        yield FeatureRecord(_id(path), np.ascontiguousarray(grid.reshape(H * W, D), np.float32), grid=(H, W))


def read_lmdb(directory: Path) -> Iterator[FeatureRecord]:
    """Yield the regions of an LMDB: entries with features, boxes or bbox, and the size of the image.

    Entries are unpickled without creating anything but arrays: other objects raise DataError and are never run.
    """
    lmdb = optional("read_lmdb", "lmdb", extra="tables")
    directory = need_directory("read_lmdb", directory, LMDB_SOURCE)
    found = 0
    try:
        database = lmdb.open(str(directory), readonly=True, lock=False, readahead=False)
    except lmdb.Error as error:
        raise DataError(f"read_lmdb: expected data.mdb in {directory}, got {error}; {LMDB_SOURCE}") from None
    with database, database.begin() as transaction:
        for key, value in transaction.cursor():
            if key == b"keys":
                continue
            entry = _unpickle(directory, key, value)
            found += 1
            yield _regions("read_lmdb", directory, _stem(str(entry.get("image_id", key.decode()))), _decoded(entry))
    if not found:
        raise DataError(f"read_lmdb: expected entries in {directory}, got none; {LMDB_SOURCE}")


def _regions(where: str, path: Path, name: str, fields: Mapping[str, Any]) -> FeatureRecord:
    values, boxes = (next((fields[key] for key in keys if key in fields), None) for keys in (FEATURES, BOXES))
    if values is None or np.ndim(values) != 2:
        raise DataError(f"{where}: expected features (N, D), got the fields {sorted(fields)} in {path} for {name!r}")
    boxes = (
        None if boxes is None or not np.size(boxes) else np.asarray(boxes, np.float32).reshape(-1, np.shape(boxes)[-1])
    )
    count = len(boxes) if boxes is not None else int(fields.get("num_boxes", fields.get("num_bbox", len(values))))
    values = np.asarray(values, np.float32)
    # openvqa and MCAN store the features with the regions along the second axis.
    values = values.T if len(values) != count and values.shape[1] == count else values
    width, height = (next((int(fields[key]) for key in keys if key in fields), 0) for keys in (WIDTHS, HEIGHTS))
    if boxes is None or not width or not height or len(boxes) != len(values):
        return FeatureRecord(name, np.ascontiguousarray(values))
    fractions = (boxes[:, :4] / np.array([width, height] * 2, np.float32)).clip(0, 1)
    return FeatureRecord(name, np.ascontiguousarray(values), boxes=fractions, size=(width, height))


FEATURES, BOXES = ("x", "features", "feature"), ("bbox", "boxes")
WIDTHS, HEIGHTS = ("image_w", "image_width", "img_w"), ("image_h", "image_height", "img_h")


def _decoded(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an entry; ViLBERT's arrays are base64 of float32."""
    fields = dict(entry)
    count = int(fields.get("num_boxes", 0))
    for name in ("features", "boxes"):
        if isinstance(fields.get(name), str | bytes) and count:
            fields[name] = np.frombuffer(base64.b64decode(fields[name]), np.float32).reshape(count, -1)
    return fields


class _Arrays(pickle.Unpickler):
    """Unpickles arrays and plain values only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in SAFE:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return super().find_class(module, name)


def _unpickle(directory: Path, key: bytes, value: bytes) -> dict[str, Any]:
    try:
        entry = _Arrays(io.BytesIO(value)).load()
    except Exception as error:  # a damaged pickle fails in many ways
        raise DataError(
            f"read_lmdb: expected arrays and plain values in the entry {key!r:.60} of {directory}, got {error}; "
            "other objects are never created; fetch the database from its publisher"
        ) from None
    if not isinstance(entry, dict):
        raise DataError(f"read_lmdb: expected named fields in the entry {key!r:.60} of {directory}, got {type(entry)}")
    return entry


def _load(where: str, path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged file fails in many ways
        raise DataError(f"{where}: expected arrays in {path}, got {error}; fetch the file again") from None


def _files(directory: Path, suffix: str, where: str, source: str) -> list[Path]:
    directory = need_directory(where, directory, source)
    paths = sorted(path for path in directory.iterdir() if path.suffix == suffix)
    if not paths:
        raise DataError(f"{where}: expected files ending in {suffix} in {directory}, got none; {source}")
    return paths


def _id(path: Path) -> str:
    return _stem(path.name.removesuffix(path.suffix))


def _stem(text: str) -> str:
    number = coco_id(text)
    return text.removesuffix(".jpg") if number is None else str(number)


Reader = Callable[[Path, str], Iterator[FeatureRecord]]
FORMATS: Mapping[str, Reader] = {
    "scan": read_scan,
    "bottom-up": lambda path, split: read_bottom_up(path),
    "grid-feats": lambda path, split: read_grid_feats(path),
    "openvqa": lambda path, split: read_npz(path),
    "npy": lambda path, split: read_npy(path),
    "lmdb": lambda path, split: read_lmdb(path),
}


def read_published(
    format: str, source: Path, split: str | None = None, names: Path | None = None
) -> Iterator[FeatureRecord]:
    """The features of a publisher, image by image.

    Args:
        format: a row of `FORMATS`.
        source: the directory or file.
        split: of SCAN's directory; the other formats have none.
        names: Karpathy's file that tells which image a number of SCAN's directory is.
    """
    reader = lookup("import", format, FORMATS)
    if (format == "scan") != (split is not None):
        raise DataError(
            f"import: expected a split for scan and none for other formats, got split={split!r} for {format}; "
            "for instance split=train with scan"
        )
    records = reader(Path(source), split or "")
    return records if names is None else _renamed(records, names)


def _renamed(records: Iterator[FeatureRecord], path: Path) -> Iterator[FeatureRecord]:
    """The features under the names of the images: SCAN's files number images by Karpathy's imgid, or COCO's id."""
    content = read_json("import", path, SOURCE)
    entries = content.get("images", []) if isinstance(content, dict) else []
    by_number = {str(entry.get("imgid")): entry for entry in entries}
    known = {str(entry["cocoid"]) for entry in entries if "cocoid" in entry}
    found = list(records) if known else records
    # The numbers of COCO are its own if all of them are known as such.
    own = known and all(one.id in known for one in found)
    for one in found:
        entry = by_number.get(one.id)
        if not own and entry is None:
            raise DataError(
                f"import: expected the imgid of an image in {path}, got {one.id!r}; use Karpathy's file of this dataset"
            )
        yield one if own or entry is None else replace(one, id=_name(entry))


def _name(entry: Mapping[str, Any]) -> str:
    return str(entry["cocoid"]) if "cocoid" in entry else Path(str(entry["filename"])).stem
