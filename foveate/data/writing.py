"""Files that appear whole or not at all: written aside, forced to the disk, then renamed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from foveate.errors import DataError


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write into; it becomes `path`, forced to the disk, if the body succeeds.

    A kill at any moment leaves the old `path` or the new one. What a kill leaves of the file beside it is overwritten
    by the next writing; a run has one writer (see `folder.lock`). What the disk refuses raises DataError.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with appearing(Path(folder, "a.txt")) as aside:
    ...         _ = aside.write_text("whole")
    ...     Path(folder, "a.txt").read_text(), aside.exists()
    ('whole', False)
    """
    aside = path.with_name(f".{path.name}.aside")
    try:
        yield aside
        aside.chmod(0o644)
        sync(aside)
        os.replace(aside, path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"write: expected room and rights to write {path}, got {error}; what was there before is kept, "
            "make room or choose another folder and go on with --resume"
        ) from error
    finally:
        with suppress(OSError):  # the error that matters is already on its way
            aside.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write JSON, whole or not at all."""
    with appearing(path) as aside:
        aside.write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def sync(path: Path) -> None:
    """Wait until the disk has a file or the entries of a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
