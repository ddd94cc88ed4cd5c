"""Files: atomic writes, exclusive locks, JSON, images that are checked before they are decoded; progress on long work.

The only place that renames files into place or locks a directory.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from foveate.errors import DataError, WrongValue

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

CHECKSUM = "checksum"
MAX_PIXELS = 50_000_000  # an image with more raises DataError before it is decoded
ImageFile: TypeAlias = str | Path | bytes
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM")
Result = TypeVar("Result")


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
    except OSError as error:
        raise DataError(
            f"atomic_write: expected to write {path}, got {error}; the previous file, if any, is unchanged: free some "
            "space or choose another directory, then run again (training continues with --resume)"
        ) from error
    finally:
        with suppress(OSError):  # must not hide the first error
            temporary.unlink(missing_ok=True)


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors to a safetensors file; a full disk raises OSError, as for any other file."""
    from safetensors import SafetensorError, torch

    try:
        torch.save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(str(error)) from error


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


def open_image(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Open an image as RGB, upright.

    The EXIF orientation is applied; transparency is composited on white; grey of 16 or 32 bits is scaled to 8 bits (see
    `_to_8_bits`); of several frames (GIF, TIFF) the first is used.

    Args:
        source: a path, or the bytes of the file.
        max_pixels: an image with more raises DataError before any pixel is decoded.

    Raises DataError with the name of the file if it is missing, truncated, too large or of another format than
    `FORMATS`; no others are tried, since some decoders of Pillow start other programs.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("LA", (3, 2), (10, 0)).save(file, "PNG")
    >>> open_image(file.getvalue()).getpixel((0, 0))
    (255, 255, 255)
    """
    return _with_image("open_image", source, max_pixels, _upright_rgb)


def decode_image(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode an image to (H, W, 3) uint8; see `open_image`."""
    return np.array(open_image(source, max_pixels=max_pixels))


def decode_grey(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode the brightness of an image to (H, W) uint8; see `open_image`."""
    return np.array(open_image(source, max_pixels=max_pixels).convert("L"))


def image_size(source: ImageFile, *, max_pixels: int = MAX_PIXELS) -> tuple[int, int]:
    """Return the width and height that `open_image` would return, from the header alone.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("RGB", (3, 2)).save(file, "PNG")
    >>> image_size(file.getvalue())
    (3, 2)
    """
    return _with_image("image_size", source, max_pixels, _upright_size)


def _with_image(where: str, source: ImageFile, max_pixels: int, work: Callable[[Image.Image], Result]) -> Result:
    from PIL import Image, UnidentifiedImageError

    name = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise Image.DecompressionBombError(f"{image.width} x {image.height}")
            return work(image)
    except FileNotFoundError:
        raise DataError(f"{where}: expected an image at {name}, got no file; check the directory") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(
            f"{where}: expected at most {max_pixels} pixels, got {error} in {name}; resize the image"
        ) from None
    except Exception as error:  # the decoders of Pillow raise almost anything on broken files
        unknown = isinstance(error, UnidentifiedImageError)
        reason = "no known format" if unknown else f"{type(error).__name__}: {error}"
        raise DataError(
            f"{where}: expected a complete image ({', '.join(FORMATS)}), got {name}, which cannot be decoded "
            f"({reason}); replace the file"
        ) from None


def _upright_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image, ImageOps

    image.load()
    format = image.format  # lost when the image is turned
    image = ImageOps.exif_transpose(image)
    if image.mode[0] in "IF":
        # Pillow reads 16 bits of a PNG or PPM as one of several modes, always scaled to 65535.
        sixteen = image.mode.startswith("I;16") or format in ("PNG", "PPM")
        image = Image.fromarray(_to_8_bits(np.asarray(image), 65535 if sixteen else None))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


def _to_8_bits(values: np.ndarray, white: float | None) -> np.ndarray:
    """Scale grey values of more than 8 bits to uint8, so that black and white stay what they are.

    Args:
        values: (H, W) numbers.
        white: the value of white. None for 32 bits, where no format says it: the smallest of 1 (numbers with a
            fraction), 255, 65535 and 2³² − 1 that no value exceeds, or the largest value. Black is 0, or the smallest
            value if that is negative.
    """
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise WrongValue("pixels that are not finite")
    low, high = min(0.0, values.min()), values.max()
    if white is None:
        scales = (255.0, 65535.0, 4294967295.0) if (values == values.round()).all() else (1.0, 255.0, 65535.0)
        white = next((scale for scale in scales if high <= scale), high)
    return np.asarray(((values - low) * (255 / (white - low))).round(), np.uint8)


def _upright_size(image: Image.Image) -> tuple[int, int]:
    orientation = 0x0112
    turned = image.getexif().get(orientation, 1) in (5, 6, 7, 8)
    return (image.height, image.width) if turned else (image.width, image.height)


class ProgressBar:
    """A progress bar on a terminal; elsewhere a line at the first step, then now and then, and at the end.

    Args:
        what: what is being done.
        total: how much there is to do.
        initial: how much of it was done before.
        unit: what is counted, in the singular.
        show: print nothing if False, or if the variable `TQDM_DISABLE` is set.
        every: seconds between lines.
        leave: keep the bar on the terminal when the work is done.
    """

    def __init__(
        self,
        what: str,
        total: int,
        *,
        initial: int = 0,
        unit: str = "item",
        show: bool = True,
        every: float = 20.0,
        leave: bool = True,
    ) -> None:
        self.what, self.total, self.unit, self.every = what, total, unit, every
        self.done, self.before, self.start = initial, initial, time.monotonic()
        bar = find_spec("tqdm") is not None and sys.stderr.isatty()
        self.lines = show and not bar and not os.environ.get("TQDM_DISABLE")
        self._printed: float | None = None
        self._bar: Any = None
        if show and bar:
            from tqdm import tqdm

            self._bar = tqdm(total=total, initial=initial, unit=unit, desc=what, leave=leave, dynamic_ncols=True)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def update(self, count: int = 1, note: str = "") -> None:
        """Count what has been done since the last call; a note, such as the loss, is shown beside it.

        A count of 0 only changes the note on a terminal.
        """
        self.done += count
        if self._bar is not None:
            self._bar.set_postfix_str(note, refresh=count == 0)
            self._bar.update(count)
        now = time.monotonic()
        if (
            self.lines
            and count
            and (self._printed is None or now - self._printed >= self.every or self.done == self.total)
        ):
            self._printed, seconds = now, max(now - self.start, 1e-9)
            rate = max(self.done - self.before, 1e-9) / seconds
            parts = [f"{self.what}: {self.done} of {self.total} {self.unit}s", *filter(None, [note])]
            if self.done < self.total:
                parts += [f"{rate:.3g} per second", f"about {_duration((self.total - self.done) / rate)} left"]
            print(", ".join(parts), file=sys.stderr, flush=True)

    def write(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    """A duration in words.

    >>> _duration(41.3), _duration(600), _duration(90_000)
    ('41 s', '10 min', '25 h')
    """
    for most, size, unit in ((180, 1, "s"), (10_800, 60, "min")):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.0f} h"
