"""Reading publishers' files: errors name the file, the record, and where the file usually comes from."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from foveate.errors import DataError
from foveate.io import is_encodable
from foveate.lab.data.samples import Id
from foveate.ops.boxes import Box

# Eighteen digits, so that a long number does not take long to convert.
_COCO_NAME = re.compile(r"(?:COCO_[a-z]+\d{4}_)?(\d{1,18})(?:\.(?:jpg|jpeg|png))?", re.ASCII)
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff"})
MAX_SIDE = 1_000_000  # pixels; more is a mistake, and numbers without bound overflow

Value = TypeVar("Value")


def need_directory(where: str, path: Path | None, source: str) -> Path:
    """Return the directory; raises DataError if it is not one. `source`: where its files come from."""
    if path is None:
        raise DataError(f"{where}: expected a directory, got none; pass --data DIR: {source}")
    path = Path(path).expanduser()
    if not path.is_dir():
        got = "a file" if path.exists() else "nothing there"
        raise DataError(f"{where}: expected the directory {path}, got {got}; {source}")
    return path


def find_file(where: str, directories: Iterable[Path], names: Iterable[str], source: str) -> Path:
    """Return the first file called one of `names`, in order of preference, in one of `directories`."""
    directories, names = list(directories), list(names)
    for name in names:
        for directory in directories:
            if (directory / name).is_file():
                return directory / name
    searched = ", ".join(str(directory) for directory in directories if directory.is_dir()) or str(directories[0])
    raise DataError(f"{where}: expected {' or '.join(names)} in {searched}, got no such file; {source}")


def read_lines(where: str, path: Path, source: str) -> list[str]:
    """Return the lines of a text file in UTF-8; raises DataError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").rstrip("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected text in UTF-8 in {path}, got {error}; {source}") from None
    except OSError as error:
        reason = "none" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{where}: expected the file {path}, got {reason}; {source}") from None


@contextmanager
def complete_file(where: str, what: str, path: Path, source: str) -> Iterator[None]:
    """Raises DataError if the file, which should hold `what`, cannot be read; errors of ours pass."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # a truncated archive fails in many ways
        raise DataError(
            f"{where}: expected a complete {what} in {path}, got a file that cannot be read "
            f"({type(error).__name__}); {source}"
        ) from None


def records(where: str, path: Path, data: Any, key: str) -> list[dict[str, Any]]:
    """Return the list of objects under `key`; raises DataError if the file has another structure."""
    found = data.get(key) if isinstance(data, dict) else None
    if not isinstance(found, list):
        got = f"the keys {', '.join(map(repr, data))}" if isinstance(data, dict) else type(data).__name__
        raise DataError(
            f"{where}: expected a list called {key!r} in {path}, got {got:.200}; check that it is the right file"
        )
    for position, record in enumerate(found):
        if not isinstance(record, dict):
            raise DataError(
                f"{where}: expected an object as record {position} of {key!r} in {path}, got {record!r:.60}; "
                "check that it is the right file"
            )
    return found


def field_value(where: str, path: Path | str, record: Any, key: str, kind: type[Value]) -> Value:
    """Return the value of a field; raises DataError that shows the record if it is missing or of another type."""
    found = record.get(key) if isinstance(record, Mapping) else None
    if isinstance(found, kind) and not isinstance(found, bool) and (not isinstance(found, str) or is_encodable(found)):
        return found
    raise _wrong_field(where, path, record, key, kind.__name__)


def field_id(where: str, path: Path | str, record: Any, key: str) -> Id:
    """Return the value of a field that is an integer or a string."""
    found = record.get(key) if isinstance(record, Mapping) else None
    if (
        isinstance(found, int | str)
        and not isinstance(found, bool)
        and (not isinstance(found, str) or is_encodable(found))
    ):
        return found
    raise _wrong_field(where, path, record, key, "int or str")


def field_strings(where: str, path: Path | str, record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a field that is a list of strings, empty if it is absent."""
    found = record.get(key, [])
    if isinstance(found, list) and all(isinstance(item, str) and is_encodable(item) for item in found):
        return tuple(found)
    raise DataError(
        f"{where}: expected {key!r} as a list of strings in {path}, got {found!r:.60} in {_brief(record)}; "
        "correct the record"
    )


def field_text(where: str, path: Path | str, record: Mapping[str, Any], key: str) -> str | None:
    """Return a field that is a string, None if it is absent or null."""
    return None if record.get(key) is None else field_value(where, path, record, key, str)


def field_side(where: str, path: Path, record: Any, key: str) -> int:
    """Return a field that is a width or a height in pixels."""
    found = field_value(where, path, record, key, int)
    if not 0 < found <= MAX_SIDE:
        raise DataError(
            f"{where}: expected {key!r} from 1 to {MAX_SIDE} in every record of {path}, got {found!r:.20} in "
            f"{_brief(record)}; correct the record"
        )
    return found


def four_numbers(value: Any) -> tuple[float, float, float, float] | None:
    """Return a list of four numbers of ordinary size as a tuple, None for anything else.

    >>> four_numbers([0, 1.5, 2, 3]), four_numbers([0, 1, 2]), four_numbers([0, 1, 2, float("nan")])
    ((0, 1.5, 2, 3), None, None)
    """
    if not isinstance(value, list) or len(value) != 4:
        return None
    for number in value:
        # Comparing an integer of any size with a float is exact; NaN compares false.
        if not isinstance(number, int | float) or isinstance(number, bool) or not -1e9 <= number <= 1e9:
            return None
    return value[0], value[1], value[2], value[3]


def unique(where: str, path: Path, items: Iterable[Mapping[str, Any]], key: str) -> dict[Id, Mapping[str, Any]]:
    """Return the records by their id; raises DataError if an id is missing or occurs twice."""
    found: dict[Id, Mapping[str, Any]] = {}
    for item in items:
        name = field_id(where, path, item, key)
        if name in found:
            raise DataError(
                f"{where}: expected different {key} in {path}, got {name!r} twice; remove the second record"
            )
        found[name] = item
    return found


def pixel_box(
    where: str, path: Path | None, record: str, corners: tuple[float, float, float, float], size: tuple[int, int]
) -> Box:
    """Return the box in fractions of the image, from left, top, right, bottom in pixels and the image's size.

    `path` may be None if `record` names the file.

    Publishers round: what exceeds the image by a pixel or less is clipped. Raises DataError with the file and the
    record if the box is empty or further outside.
    """
    (x0, y0, x1, y1), (width, height) = corners, size
    if min(x0, y0) >= -1 and x1 <= width + 1 and y1 <= height + 1:
        x0, y0, x1, y1 = max(x0, 0), max(y0, 0), min(x1, width), min(y1, height)
    try:
        return Box.from_pixels(x0, y0, x1, y1, width=width, height=height)
    except DataError:
        place = "" if path is None else f" in {path}"
        raise DataError(
            f"{where}: expected a box inside the {width} x {height} image, got {corners} for {record}{place}; "
            "correct or remove it"
        ) from None


def file_name(where: str, path: Path, name: str) -> str:
    """Return a name from a file if it is the name of a file, without any directory; raises DataError otherwise.

    >>> file_name("example", Path("a.json"), "cat.jpg")
    'cat.jpg'
    """
    if name in ("", ".", "..") or any(letter in name for letter in "/\\\0") or len(name.encode()) > 250:
        raise DataError(
            f"{where}: expected a file name without a directory in {path}, got {name!r:.60}; correct the record"
        )
    return name


def coco_id(name: str) -> int | None:
    """Return the number in a name of COCO's form, None for another name.

    >>> coco_id("COCO_val2014_000000000042.jpg"), coco_id("000000000042.jpg"), coco_id("42"), coco_id("cat.jpg")
    (42, 42, 42, None)
    """
    found = _COCO_NAME.fullmatch(name)
    return int(found[1]) if found else None


def coco_directories(root: Path, subset: str) -> list[Path]:
    """Return the directories of `root` where COCO's images of a subset ("train2014") usually are, if they exist."""
    homes = (root, root / "images", root / "Images", root / "Images" / "mscoco", root / "coco-images")
    places = [home / subset for home in homes] + [root / "images", root / "Images", root]
    return [place for place in places if place.is_dir()]


def index_images(directories: Iterable[Path], name_of: Callable[[str], Id | None]) -> dict[Id, Path]:
    """Return image files by id; `name_of` maps a file name to its id, None to skip it. The first directory wins."""
    found: dict[Id, Path] = {}
    for directory in directories:
        if not directory.is_dir():
            continue
        with os.scandir(directory) as entries:
            for entry in entries:
                name = name_of(entry.name)
                if name is not None:
                    found.setdefault(name, directory / entry.name)
    return found


def _wrong_field(where: str, path: Path | str, record: Any, key: str, kind: str) -> DataError:
    found = record.get(key) if isinstance(record, Mapping) else None
    got = "none" if found is None else f"{found!r:.60}"
    place = f"every record of {path}" if isinstance(path, Path) else path
    return DataError(
        f"{where}: expected {key!r} ({kind}) in {place}, got {got} in {_brief(record)}; correct the record"
    )


def _brief(record: Any) -> str:
    text = json.dumps(record, ensure_ascii=True, default=str)
    return text if len(text) <= 100 else text[:100] + "..."
