"""Reading the files of publishers: each refusal names the file, the record, and where the file usually comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from foveate.data.samples import Box, Id
from foveate.errors import DataError

_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d+)(?:\.(?:jpg|jpeg|png))?", re.ASCII)
PICTURE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"})


def need_folder(where: str, path: Path | None, source: str) -> Path:
    """The folder, or DataError when it is absent or not a folder; `source` says where its files come from."""
    if path is None:
        raise DataError(f"{where}: expected a folder, got none; {source}")
    path = Path(path).expanduser()
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing there"
        raise DataError(f"{where}: expected the folder {path}, got {got}; {source}")
    return path


def find_file(where: str, folders: Iterable[Path], names: Iterable[str], source: str) -> Path:
    """The first file called one of `names` (the names in order of preference) in one of `folders`."""
    folders, names = list(folders), list(names)
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
    looked = ", ".join(str(folder) for folder in folders if folder.is_dir()) or str(folders[0])
    raise DataError(f"{where}: expected {' or '.join(names)} in {looked}, got no such file; {source}")


def read_json(where: str, path: Path, source: str, *, shorten: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """What a JSON file holds, or DataError with the place where it stops being JSON.

    Args:
        where: the caller, for the message.
        path: of the file.
        source: where the file usually comes from, for the message.
        shorten: called with every object as soon as it is read, gives what to keep of it, so that what nobody needs of
            a large file is never held.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected JSON in UTF-8 in {path}, got {error}; {source}") from None
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{where}: expected the file {path}, got {reason}; {source}") from None
    try:
        return json.loads(text, object_hook=shorten)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: expected JSON in {path}, got {error} (the file has {len(text)} characters); "
            f"it may be cut short, fetch it again: {source}"
        ) from None


def records(where: str, path: Path, data: Any, key: str) -> list[dict[str, Any]]:
    """The list of objects under `key`, or DataError when the file is laid out differently."""
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list):
        got = f"the keys {', '.join(map(repr, data))}" if isinstance(data, dict) else type(data).__name__
        raise DataError(
            f"{where}: expected a list called {key!r} in {path}, got {got}; check that it is the right file"
        )
    for position, record in enumerate(found):
        if not isinstance(record, dict):
            raise DataError(
                f"{where}: expected an object as record {position} of {key!r} in {path}, got {record!r:.60}; "
                "check that it is the right file"
            )
    return found


def value(where: str, path: Path, record: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """The value of a record's field, or DataError that shows the record when it is missing or of another type."""
    found = record.get(key)
    if isinstance(found, kind) and not isinstance(found, bool):
        return found
    names = " or ".join(k.__name__ for k in (kind if isinstance(kind, tuple) else (kind,)))
    got = "none" if found is None else f"{found!r:.60}"
    raise DataError(
        f"{where}: expected {key!r} ({names}) in every record of {path}, got {got} in {_brief(record)}; "
        "correct the record"
    )


def unique(where: str, path: Path, items: Iterable[Mapping[str, Any]], key: str) -> dict[Id, Mapping[str, Any]]:
    """The records by their id, or DataError when an id is missing or comes twice."""
    found: dict[Id, Mapping[str, Any]] = {}
    for item in items:
        name = value(where, path, item, key, (int, str))
        if name in found:
            raise DataError(
                f"{where}: expected different {key} in {path}, got {name!r} twice; remove the second record"
            )
        found[name] = item
    return found


def pixel_box(
    where: str, path: Path, record: str, corners: tuple[float, float, float, float], size: tuple[int, int]
) -> Box:
    """The box in fractions of the picture, from left, top, right, bottom in pixels and the picture's width and height.

    Publishers round: what sticks out by a pixel or less is cut off. A box that is empty or further outside raises
    DataError with the file and the record.
    """
    (x0, y0, x1, y1), (width, height) = corners, size
    if min(x0, y0) >= -1 and x1 <= width + 1 and y1 <= height + 1:
        x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
    try:
        return Box.from_pixels(x0, y0, x1, y1, width=width, height=height)
    except DataError:
        raise DataError(
            f"{where}: expected a box inside the {width} x {height} picture, got {corners} for {record} in {path}; "
            "correct or remove it"
        ) from None


def coco_id(name: str) -> int | None:
    """The number in a name as COCO gives them, None for another name.

    >>> coco_id("COCO_val2014_000000000042.jpg"), coco_id("000000000042.jpg"), coco_id("42"), coco_id("cat.jpg")
    (42, 42, 42, None)
    """
    found = _COCO_NAME.fullmatch(name)
    return int(found[1]) if found else None


def coco_folders(root: Path, subset: str) -> list[Path]:
    """The folders of `root` where COCO's pictures of a subset ("train2014") usually lie, of those that exist."""
    homes = (root, root / "images", root / "Images", root / "Images" / "mscoco")
    places = [home / subset for home in homes] + [root / "images", root / "Images", root]
    return [place for place in places if place.is_dir()]


def index_pictures(folders: Iterable[Path], name_of: Callable[[str], Id | None]) -> dict[Id, Path]:
    """Picture files by id; `name_of` gives the id of a file name, None for files to pass over. First folder wins."""
    found: dict[Id, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                name = name_of(entry.name)
                if name is not None:
                    found.setdefault(name, folder / entry.name)
    return found


def _brief(record: Mapping[str, Any]) -> str:
    text = json.dumps(record, ensure_ascii=False, default=str)
    return text if len(text) <= 100 else text[:100] + "..."
