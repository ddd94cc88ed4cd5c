"""The formats of published features by name; `foveate import` and the tables of the papers read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.data import feature_folders, precomp
from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.karpathy import SOURCE
from foveate.registry import lookup

Reader = Callable[[Path, str], Iterator[FeatureRecord]]
FORMATS: Mapping[str, Reader] = {
    "scan": precomp.read_scan,
    "bottom-up": lambda path, split: precomp.read_bottom_up(path),
    "grid-feats": lambda path, split: precomp.read_grid_feats(path),
    "openvqa": lambda path, split: feature_folders.read_npz(path),
    "npy": lambda path, split: feature_folders.read_npy(path),
    "lmdb": lambda path, split: feature_folders.read_lmdb(path),
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
