"""Published features: SCAN's arrays, bottom-up attention's tables, grid-feats' tensors.

Each reader yields one image at a time, so that features can be imported into a store (`store_writer.import_features`)
without holding all of them in memory. Ids are strings, COCO's without their leading zeros. The captions of SCAN's
directories are also a dataset.
"""

from __future__ import annotations

import base64
import binascii
import math
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError, UnknownName, WrongValue
from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.files import MAX_SIDE, coco_id, complete_file, find_file, need_directory, read_lines
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.data.vocabulary import tokenize

SCAN_SOURCE = "SCAN's precomputed features come as {split}_ims.npy and {split}_caps.txt (f30k_precomp, coco_precomp)"
BOTTOM_UP_SOURCE = "bottom-up attention publishes trainval_36.zip and test2015_36.zip, each with one .tsv inside"
GRID_SOURCE = "grid-feats publishes train2014, val2014 and test2015 archives of <image_id>.pth"

BOTTOM_UP_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
MAX_LINE = 1 << 26  # bytes; a thousand boxes of 2048 features take 11 MB
# The same features as distributed by LXMERT.
LXMERT_COLUMNS = (
    "img_id",
    "img_h",
    "img_w",
    "objects_id",
    "objects_conf",
    "attrs_id",
    "attrs_conf",
    *BOTTOM_UP_COLUMNS[3:],
)


class ScanSplit(NamedTuple):
    """One split of SCAN's precomputed data.

    Attributes:
        ids: of its images.
        features: (images, N, D), mapped from the file, not read.
        captions: one tuple per image.
    """

    ids: tuple[str, ...]
    features: np.ndarray
    captions: tuple[tuple[str, ...], ...]


def open_scan(directory: Path, split: str) -> ScanSplit:
    """Open SCAN's `{split}_ims.npy`, `{split}_caps.txt` and, if present, `{split}_ids.txt`.

    An image has 5 captions, or 1; the array has one row per image, or repeats it for every caption: both are read as
    one row per image. Without a file of ids, the id of an image is its position.

    Args:
        directory: for instance `f30k_precomp`.
        split: "train", "dev", "test" or "testall".
    """
    directory = need_directory("open_scan", directory, SCAN_SOURCE)
    path = find_file("open_scan", [directory], [f"{split}_ims.npy"], SCAN_SOURCE)
    features = _open_array(path)
    captions = read_lines(
        "open_scan", find_file("open_scan", [directory], [f"{split}_caps.txt"], SCAN_SOURCE), SCAN_SOURCE
    )
    each, repeats = _scan_layout(path, features, len(captions))
    features = features[::repeats]
    grouped = tuple(tuple(captions[i : i + each]) for i in range(0, len(captions), each))
    return ScanSplit(_scan_ids(directory / f"{split}_ids.txt", len(features)), features, grouped)


def read_scan(directory: Path, split: str) -> Iterator[FeatureRecord]:
    """Yield the regions of SCAN's precomputed data image by image, without boxes; see `open_scan`."""
    data = open_scan(directory, split)
    for name, features in zip(data.ids, data.features, strict=True):
        yield FeatureRecord(name, np.array(features))


def read_bottom_up(path: Path) -> Iterator[FeatureRecord]:
    """Yield the regions of a bottom-up attention table line by line.

    A line has `BOTTOM_UP_COLUMNS` (or `LXMERT_COLUMNS`) separated by tabs, boxes and features as base64 of float32.
    Raises DataError with the number of the line if it is truncated, repeats an id, has a box outside its image or
    another number of features than the first.
    """
    path = find_file("read_bottom_up", [Path(path).parent], [Path(path).name], BOTTOM_UP_SOURCE)
    seen: set[str] = set()
    dim = None
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
            item = _bottom_up_row(f"line {number} of {path}", line)
            if item.id in seen:
                raise DataError(
                    f"read_bottom_up: expected different ids, got {item.id!r:.60} again in line {number} of {path}; "
                    "remove the line"
                )
            seen.add(item.id)
            dim = _check_dim("read_bottom_up", f"line {number} of {path}", item, dim)
            yield item
    if not seen:
        raise DataError(f"read_bottom_up: expected lines in {path}, got an empty file; {BOTTOM_UP_SOURCE}")


def read_grid_feats(directory: Path) -> Iterator[FeatureRecord]:
    """Yield the grids in a directory of `<image_id>.pth`, in the order of their ids.

    Each file contains one tensor (1, D, H, W) or (D, H, W). Files are opened with `weights_only=True`: code in a file
    raises DataError and is never run.
    """
    directory = need_directory("read_grid_feats", directory, GRID_SOURCE)
    paths = [path for path in directory.iterdir() if path.suffix == ".pth"]
    if not paths:
        raise DataError(f"read_grid_feats: expected <image_id>.pth in {directory}, got none; {GRID_SOURCE}")
    dim = None
    for path in sorted(paths, key=_by_number):
        item = _grid(path)
        dim = _check_dim("read_grid_feats", str(path), item, dim)
        yield item


def _by_number(path: Path) -> tuple[bool, int, str]:
    numbered = path.stem.isdecimal()
    return not numbered, int(path.stem) if numbered else 0, path.stem


def _check_dim(where: str, name: str, item: FeatureRecord, dim: int | None) -> int:
    """Return the number of features of an image; raises DataError if it is zero or differs from the others."""
    found = int(item.values.shape[1])
    if not item.values.size or dim not in (None, found):
        raise DataError(
            f"{where}: expected {dim or 'one or more'} features per location, got {item.values.shape} in {name}; "
            "import features of one encoder"
        )
    return found


def _grid(path: Path) -> FeatureRecord:
    tensor = _load_tensor(path)
    if tensor.ndim == 4 and tensor.shape[0] == 1:
        tensor = tensor[0]
    # A tensor with repeated elements (stride 0) is larger than its file, up to more than fits into memory.
    fits = tensor.layout is torch.strided and math.prod(tensor.shape) * tensor.element_size() <= path.stat().st_size
    if tensor.ndim != 3 or not tensor.is_floating_point() or not fits:
        raise DataError(
            f"read_grid_feats: expected floating-point (1, D, H, W) in {path}, "
            f"got {tensor.dtype} {tuple(tensor.shape)} {tensor.layout}; {GRID_SOURCE}"
        )
    D, H, W = tensor.shape
    return FeatureRecord(_id(path.stem), tensor.permute(1, 2, 0).reshape(H * W, D).float().numpy(), grid=(H, W))


def _load_tensor(path: Path) -> Tensor:
    with complete_file("read_grid_feats", "tensor", path, GRID_SOURCE):
        _check_archive(path)
        try:
            found = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError:
            raise DataError(
                f"read_grid_feats: expected only a tensor in {path}, got a file with other Python objects or code in "
                "it, which is not opened; fetch the file from its publisher or save it again as a tensor"
            ) from None
    if not isinstance(found, Tensor) or found.is_nested or found.is_quantized:
        raise DataError(
            f"read_grid_feats: expected a tensor in {path}, got {type(found).__name__}; save a plain tensor alone"
        )
    return found.detach()


def _check_archive(path: Path) -> None:
    """Raises ValueError if the archive of a tensor would unpack to more than the file; torch never compresses."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise WrongValue("an archive that unpacks to more than its size")


def _bottom_up_row(where: str, line: bytes) -> FeatureRecord:
    cells = line.rstrip(b"\r\n").split(b"\t")
    columns = LXMERT_COLUMNS if len(cells) == len(LXMERT_COLUMNS) else BOTTOM_UP_COLUMNS
    if len(cells) != len(columns):
        raise DataError(
            f"read_bottom_up: expected {len(BOTTOM_UP_COLUMNS)} columns separated by tabs, got {len(cells)} in "
            f"{where}; {BOTTOM_UP_SOURCE}"
        )
    row = {column.replace("img_", "image_"): cell for column, cell in zip(columns, cells, strict=True)}
    try:
        name = _id(row["image_id"].decode())
        width, height, count = int(row["image_w"]), int(row["image_h"]), int(row["num_boxes"])
        boxes = np.frombuffer(base64.b64decode(row["boxes"], validate=True), np.float32).reshape(count, 4)
        features = np.frombuffer(base64.b64decode(row["features"], validate=True), np.float32).reshape(count, -1)
        if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE and count > 0):
            raise WrongValue("an image or a number of boxes of impossible size")
    except (ValueError, binascii.Error) as error:
        raise DataError(
            f"read_bottom_up: expected numbers and base64 of complete float32 rows, got {error} in {where}; "
            "the file may be truncated, fetch it again"
        ) from None
    fractions = boxes / np.array([width, height] * 2, np.float32)
    slack = np.array([1 / width, 1 / height] * 2, np.float32)
    if not ((fractions >= -slack) & (fractions <= 1 + slack)).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise DataError(
            f"read_bottom_up: expected boxes inside the {width} x {height} image, got one outside in {where}; "
            "correct the line"
        )
    return FeatureRecord(name, features.copy(), boxes=fractions.clip(0, 1), size=(width, height))


def _open_array(path: Path) -> np.ndarray:
    """Map an array (images, regions, features) of numbers."""
    try:
        features: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # a damaged header is parsed as Python, which fails in many ways
        raise DataError(
            f"open_scan: expected a complete array in {path}, got a file that cannot be read ({error}); {SCAN_SOURCE}"
        ) from None
    if features.ndim != 3 or not features.size or features.dtype.kind not in "fiu":
        raise DataError(
            f"open_scan: expected numbers (images, regions, features) in {path}, got {features.dtype} of shape "
            f"{features.shape}; {SCAN_SOURCE}"
        )
    return features


def _scan_layout(path: Path, features: np.ndarray, count: int) -> tuple[int, int]:
    """Return the number of captions per image and of rows per image."""
    rows = len(features)
    if count == 5 * rows:
        return 5, 1
    if count == rows:
        repeated = rows % 5 == 0 and all(np.array_equal(features[0], features[i]) for i in range(1, 5))
        return (5, 5) if repeated else (1, 1)
    raise DataError(
        f"open_scan: expected 5 captions or 1 for each of the {rows} rows of {path}, got {count}; "
        "the two files belong to different splits or one is truncated"
    )


def _scan_ids(path: Path, count: int) -> tuple[str, ...]:
    if not path.is_file():
        return tuple(map(str, range(count)))
    ids = [_id(line) for line in read_lines("open_scan", path, SCAN_SOURCE)]
    if len(ids) == 5 * count:
        ids = ids[::5]
    if len(ids) != count or len(set(ids)) != count:
        raise DataError(
            f"open_scan: expected {count} different ids in {path}, got {len(ids)} with {len(set(ids))} different; "
            "remove the file to number the images by position"
        )
    return tuple(ids)


def _id(text: str) -> str:
    number = coco_id(text)
    return text if number is None else str(number)


# SCAN's names of the splits by ours; "testall" is the 5K test split of COCO.
SPLITS = {"train": "train", "val": "dev", "test": "test", "testall": "testall"}


def read_scan_captions(root: Path | None, split: str, *, name: str) -> Dataset:
    """Read the captions of `f30k_precomp` or `coco_precomp`.

    The id of an image is that of `{split}_ids.txt`, or its position without that file, as in the feature store that
    `foveate import scan DIR/f30k_precomp DIR/f30k_precomp/train.h5 --split train` writes.

    Args:
        root: directory that contains the directory `name`, or that directory itself.
        split: "train", "val", "test" or "testall".
        name: "f30k_precomp" or "coco_precomp".
    """
    if split not in SPLITS:
        raise UnknownName(f"split of {name}", split, SPLITS)
    root = need_directory("read_scan_captions", root, SCAN_SOURCE)
    directory = root / name if (root / name).is_dir() else root
    data = open_scan(directory, SPLITS[split])
    images = tuple(ImageRecord(image, directory / image) for image in data.ids)
    captions = tuple(
        Caption(f"{image}#{number}", image, text, tokenize(text))
        for image, own in zip(data.ids, data.captions, strict=True)
        for number, text in enumerate(own)
    )
    return Dataset(name.replace("_", "-"), split, images, captions=captions)
