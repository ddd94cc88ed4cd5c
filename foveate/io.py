"""Atomic writes, exclusive locks, JSON, progress, and directories of data with how far they are trusted.

The only place that renames files into place or locks a directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError

from foveate.errors import DataError

CHECKSUM = "checksum"


@dataclass(frozen=True)
class DataDirectory:
    """A directory of data and how far its files are trusted; a plain path stands for one with the defaults.

    These choices belong to one reading of the data, not to a run: they are never saved with its settings.

    Attributes:
        path: the directory; None for embedded data.
        verify: compare feature stores with their checksums.
        allow_outside: read images that lie outside the directory, where its files name any path.

    >>> DataDirectory.of(Path("photos")).verify
    True
    """

    path: Path | None = None
    verify: bool = True
    allow_outside: bool = False

    @classmethod
    def of(cls, root: DataRoot) -> DataDirectory:
        """The directory itself, or a path with the defaults."""
        return root if isinstance(root, DataDirectory) else cls(None if root is None else Path(root))


DataRoot: TypeAlias = Path | DataDirectory | None


@contextmanager
def atomic_write(path: Path, *, scratch: Path | None = None, shared: bool = False) -> Iterator[Path]:
    """Yield a temporary file to write to; it replaces `path`, synced to disk, if the body succeeds.

    A process killed at any moment leaves either the old `path` or the new one. A temporary file that a killed process
    leaves behind is overwritten by the next write, so each path needs a single writer (see `exclusive_lock`) unless
    `shared` is set.

    Args:
        path: the file to write.
        scratch: directory of the temporary file, on the same file system; the directory of `path` by default.
        shared: several processes may write `path` at once, each to a temporary file with a unique name.

    Raises DataError if the file system refuses the write.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     with atomic_write(Path(directory, "a.txt")) as temporary:
    ...         _ = temporary.write_text("complete")
    ...     Path(directory, "a.txt").read_text(), temporary.exists()
    ('complete', False)
    """
    unique = f"{uuid.uuid4().hex}." if shared else ""
    temporary = (scratch or path.parent) / f".{path.name}.{unique}tmp"
    try:
        yield temporary
        temporary.chmod(0o644)
        # The content must be on disk before the rename, and the rename before anyone relies on it.
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except (OSError, SafetensorError) as error:
        raise DataError(
            f"atomic_write: expected to write {path}, got {error}; the previous file, if any, is unchanged: free some "
            "space or choose another directory, then run again (training continues with --resume)"
        ) from error
    finally:
        with suppress(OSError):  # must not hide the first error
            temporary.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Block until a file, or the entries of a directory, are on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def exclusive_lock(where: str, directory: Path, holder: str, advice: str) -> Iterator[None]:
    """Create the directory if needed and lock it against other writers; the lock of a killed process is released.

    Args:
        where: the caller, for error messages.
        directory: to lock.
        holder: who may hold the lock already, for the error message.
        advice: what to do in that case.

    Raises DataError if the directory cannot be written to or is locked.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        file = (directory / ".lock").open("w")
    except OSError as error:
        raise DataError(f"{where}: expected to write to {directory}, got {error}; choose another directory") from None
    with file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # Windows has no flock
        except OSError:
            raise DataError(
                f"{where}: expected exclusive access to {directory}, got a lock held by {holder}; {advice}"
            ) from None
        yield


def read_json(
    where: str, path: Path, source: str, *, object_hook: Callable[[dict[str, Any]], Any] | None = None
) -> Any:
    """Return the content of a JSON file; raises DataError that names the position where it stops being JSON.

    Args:
        where: the caller, for the message.
        path: of the file.
        source: where the file usually comes from, for the message.
        object_hook: called on every object as soon as it is parsed; returns what to keep, so that unused parts of a
            large file are never held in memory.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected JSON in UTF-8 in {path}, got {error}; {source}") from None
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise DataError(f"{where}: expected the file {path}, got {reason}; {source}") from None
    try:
        return json.loads(text, object_hook=object_hook)
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{where}: expected JSON in {path}, got {error} (the file has {len(text)} characters); "
            f"it may be truncated, fetch it again: {source}"
        ) from None


def is_encodable(text: str) -> bool:
    """Return False for text with half a surrogate pair, which JSON can express but UTF-8 cannot.

    >>> is_encodable("ü"), is_encodable("\\ud800")
    (True, False)
    """
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically."""
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(data, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def with_checksum(document: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum over its other entries.

    >>> with_checksum({"a": 1})
    {'a': 1, 'checksum': 'fba18e97'}
    """
    plain = {key: value for key, value in document.items() if key != CHECKSUM}
    text = json.dumps(plain, ensure_ascii=False, sort_keys=True)
    return plain | {CHECKSUM: f"{zlib.crc32(text.encode()):08x}"}


def read_checked_json(where: str, path: Path, source: str) -> dict[str, Any]:
    """Return a JSON object without its checksum; raises DataError if it has one that does not match.

    Args:
        where, path, source: as in `read_json`.
    """
    found = read_json(where, path, source)
    if not isinstance(found, dict):
        raise DataError(f"{where}: expected a JSON object in {path}, got {found!r:.60}; {source}")
    expected = with_checksum(found)
    if CHECKSUM in found and found[CHECKSUM] != expected[CHECKSUM]:
        raise DataError(
            f"{where}: expected the checksum {found[CHECKSUM]!r:.20} of {path}, got another; the file is damaged: "
            f"restore it, {source}"
        )
    return {key: value for key, value in found.items() if key != CHECKSUM}


class ProgressBar:
    """A progress bar on a terminal; elsewhere, a line now and then.

    Args:
        what: what is being done.
        total: how much there is to do.
        initial: how much of it was done before.
        unit: what is counted, in the singular.
        show: print nothing if False.
        every: seconds between lines.
    """

    def __init__(
        self, what: str, total: int, *, initial: int = 0, unit: str = "item", show: bool = True, every: float = 30.0
    ) -> None:
        from tqdm import tqdm

        self.what, self.total, self.unit, self.every = what, total, unit, every
        self.done, self.before, self.start = initial, initial, time.monotonic()
        self.lines = show and not sys.stderr.isatty()
        self._printed = self.start
        self._bar = tqdm(total=total, initial=initial, unit=unit, desc=what, disable=not show or self.lines)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def update(self, count: int) -> None:
        """Count what has been done since the last call."""
        self._bar.update(count)
        self.done += count
        now = time.monotonic()
        if self.lines and (now - self._printed >= self.every or self.done == self.total):
            self._printed, speed = now, (self.done - self.before) / max(now - self.start, 1e-9)
            left = f", about {(self.total - self.done) / speed:.0f} s left" if self.done < self.total else ""
            print(f"{self.what}: {self.done} of {self.total} {self.unit}s{left}", file=sys.stderr, flush=True)
