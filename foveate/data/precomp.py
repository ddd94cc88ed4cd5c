"""Features that others computed and published: SCAN's arrays, bottom-up's tables, grid-feats' tensors.

Each reader goes through its files one picture at a time, so that the feature store can take them over
(`store_writer.import_features`) without holding them all. Ids are text, COCO's without their leading zeros.
"""

from __future__ import annotations

import base64
import binascii
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from foveate.data.features import PictureFeatures
from foveate.data.files import coco_id, find_file, need_folder
from foveate.errors import DataError

SCAN_SOURCE = "SCAN's precomputed features come as {split}_ims.npy and {split}_caps.txt (f30k_precomp, coco_precomp)"
BOTTOM_UP_SOURCE = "bottom-up attention publishes trainval_36.zip and test2015_36.zip, each with one .tsv inside"
GRID_SOURCE = "grid-feats publishes train2014, val2014 and test2015 archives of <image_id>.pth"

BOTTOM_UP_COLUMNS = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")
# the same features as LXMERT distributes them
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
        ids: of its pictures.
        features: (pictures, N, D), mapped from the file, not read.
        captions: one tuple a picture.
    """

    ids: tuple[str, ...]
    features: np.ndarray
    captions: tuple[tuple[str, ...], ...]


def open_scan(folder: Path, split: str) -> ScanSplit:
    """SCAN's `{split}_ims.npy`, `{split}_caps.txt` and, where present, `{split}_ids.txt`.

    A picture has 5 captions, or 1; the array has one row a picture, or repeats it for every caption: both are read to
    one row a picture. Without an ids file, a picture's id is its position.

    Args:
        folder: for instance `f30k_precomp`.
        split: "train", "dev", "test" or "testall".
    """
    folder = need_folder("open_scan", folder, SCAN_SOURCE)
    path = find_file("open_scan", [folder], [f"{split}_ims.npy"], SCAN_SOURCE)
    try:
        features = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise DataError(
            f"open_scan: expected a whole array in {path}, got a file that cannot be read ({error}); {SCAN_SOURCE}"
        ) from None
    if features.ndim != 3 or not len(features):
        raise DataError(
            f"open_scan: expected (pictures, regions, features) in {path}, got shape {features.shape}; {SCAN_SOURCE}"
        )
    captions = _lines(find_file("open_scan", [folder], [f"{split}_caps.txt"], SCAN_SOURCE))
    each, repeats = _scan_layout(path, len(features), len(captions))
    features = features[::repeats]
    grouped = tuple(tuple(captions[i : i + each]) for i in range(0, len(captions), each))
    return ScanSplit(_scan_ids(folder / f"{split}_ids.txt", len(features)), features, grouped)


def read_scan(folder: Path, split: str) -> Iterator[PictureFeatures]:
    """The regions of SCAN's precomputed data, picture by picture; see `open_scan`. They come without boxes."""
    data = open_scan(folder, split)
    for name, features in zip(data.ids, data.features, strict=True):
        yield PictureFeatures(name, np.array(features))


def read_bottom_up(path: Path) -> Iterator[PictureFeatures]:
    """The regions in a bottom-up attention table, line by line.

    A line has `BOTTOM_UP_COLUMNS` (or `LXMERT_COLUMNS`) separated by tabs, boxes and features as base64 of float32.
    A line that is cut short, has an id for the second time or a box outside its picture raises DataError with its
    number.
    """
    path = find_file("read_bottom_up", [Path(path).parent], [Path(path).name], BOTTOM_UP_SOURCE)
    seen: set[str] = set()
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            item = _bottom_up_row(f"line {number} of {path}", line)
            if item.id in seen:
                raise DataError(
                    f"read_bottom_up: expected different ids, got {item.id!r} again in line {number} of {path}; "
                    "remove the line"
                )
            seen.add(item.id)
            yield item
    if not number:
        raise DataError(f"read_bottom_up: expected lines in {path}, got an empty file; {BOTTOM_UP_SOURCE}")


def read_grid_feats(folder: Path) -> Iterator[PictureFeatures]:
    """The grids of a folder of `<image_id>.pth`, in the order of their ids.

    Each file holds one tensor (1, D, H, W) or (D, H, W). Files are opened with `weights_only=True`: one that carries
    code is refused, never run.
    """
    folder = need_folder("read_grid_feats", folder, GRID_SOURCE)
    paths = [path for path in folder.iterdir() if path.suffix == ".pth"]
    if not paths:
        raise DataError(f"read_grid_feats: expected <image_id>.pth in {folder}, got none; {GRID_SOURCE}")
    for path in sorted(paths, key=lambda p: (not p.stem.isdigit(), int(p.stem) if p.stem.isdigit() else 0, p.stem)):
        yield _grid(path)


def _grid(path: Path) -> PictureFeatures:
    tensor = _load_tensor(path)
    if tensor.ndim == 4 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.ndim != 3 or not tensor.is_floating_point():
        raise DataError(
            f"read_grid_feats: expected floating-point (1, D, H, W) in {path}, "
            f"got {tensor.dtype} {tuple(tensor.shape)}; {GRID_SOURCE}"
        )
    D, H, W = tensor.shape
    return PictureFeatures(_id(path.stem), tensor.permute(1, 2, 0).reshape(H * W, D).float().numpy(), grid=(H, W))


def _load_tensor(path: Path) -> Tensor:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise DataError(
            f"read_grid_feats: expected only a tensor in {path}, got a file with other Python objects or code in it, "
            "which is not opened; fetch the file from its publisher or save it again as a tensor"
        ) from None
    except Exception as error:  # a cut archive fails in many ways
        raise DataError(
            f"read_grid_feats: expected a whole tensor in {path}, got a file that cannot be read "
            f"({type(error).__name__}); {GRID_SOURCE}"
        ) from None
    if not isinstance(found, Tensor):
        raise DataError(
            f"read_grid_feats: expected a tensor in {path}, got {type(found).__name__}; save the tensor alone"
        )
    return found.detach()


def _bottom_up_row(where: str, line: bytes) -> PictureFeatures:
    cells = line.rstrip(b"\r\n").split(b"\t")
    columns = LXMERT_COLUMNS if len(cells) == len(LXMERT_COLUMNS) else BOTTOM_UP_COLUMNS
    if len(cells) != len(columns):
        raise DataError(
            f"read_bottom_up: expected {len(BOTTOM_UP_COLUMNS)} columns separated by tabs, got {len(cells)} in "
            f"{where}; {BOTTOM_UP_SOURCE}"
        )
    row = {column.replace("img_", "image_"): cell for column, cell in zip(columns, cells, strict=True)}
    try:
        width, height, count = int(row["image_w"]), int(row["image_h"]), int(row["num_boxes"])
        boxes = np.frombuffer(base64.b64decode(row["boxes"], validate=True), np.float32).reshape(count, 4)
        features = np.frombuffer(base64.b64decode(row["features"], validate=True), np.float32).reshape(count, -1)
        if width < 1 or height < 1 or count < 1:
            raise ValueError(f"a picture of {width} x {height} with {count} boxes")
    except (ValueError, binascii.Error) as error:
        raise DataError(
            f"read_bottom_up: expected numbers and base64 of whole float32 rows, got {error} in {where}; "
            "the file may be cut short, fetch it again"
        ) from None
    fractions = boxes / np.array([width, height] * 2, np.float32)
    slack = np.array([1 / width, 1 / height] * 2, np.float32)
    if not ((fractions >= -slack) & (fractions <= 1 + slack)).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise DataError(
            f"read_bottom_up: expected boxes inside the {width} x {height} picture, got one outside in {where}; "
            "correct the line"
        )
    return PictureFeatures(
        _id(row["image_id"].decode()), features.copy(), boxes=fractions.clip(0, 1), size=(width, height)
    )


def _scan_layout(path: Path, rows: int, count: int) -> tuple[int, int]:
    if count == 5 * rows:
        return 5, 1
    if count == rows:
        return (5, 5) if rows % 5 == 0 and _repeated(path) else (1, 1)
    raise DataError(
        f"open_scan: expected 5 captions or 1 for each of the {rows} rows of {path}, got {count}; "
        "the two files belong to different splits or one is cut short"
    )


def _repeated(path: Path) -> bool:
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    return all(np.array_equal(rows[0], rows[i]) for i in range(1, 5))


def _scan_ids(path: Path, count: int) -> tuple[str, ...]:
    if not path.is_file():
        return tuple(map(str, range(count)))
    ids = [_id(line) for line in _lines(path)]
    if len(ids) == 5 * count:
        ids = ids[::5]
    if len(ids) != count or len(set(ids)) != count:
        raise DataError(
            f"open_scan: expected {count} different ids in {path}, got {len(ids)} with {len(set(ids))} different; "
            "remove the file to number the pictures by position"
        )
    return tuple(ids)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").rstrip("\n").split("\n")


def _id(text: str) -> str:
    number = coco_id(text)
    return text if number is None else str(number)
