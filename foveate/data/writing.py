"""Files that appear whole or not at all: written aside, forced to the disk, then renamed; and folders for oneself."""

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
    by the next writing; a folder has one writer (see `alone`). What the disk refuses raises DataError.

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
            "make room or choose another folder, then go on (a training with --resume)"
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


@contextmanager
def alone(where: str, folder: Path, others: str, advice: str) -> Iterator[None]:
    """Make the folder if need be and keep other writers out of it; a kill gives it free.

    Args:
        where: who wants it, for the messages.
        folder: to write into.
        others: who may be in it already.
        advice: what to do then.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise DataError(f"{where}: expected to write into {folder}, got {error}; choose another folder") from None
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on Windows
        except OSError:
            raise DataError(f"{where}: expected {folder} for itself, got {others} in it; {advice}") from None
        yield
