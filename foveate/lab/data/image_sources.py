"""Images wherever they are: in directories, tar archives (WebDataset), object stores and installed packages."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab.data.files import IMAGE_SUFFIXES
from foveate.lab.data.samples import ImageRecord
from foveate.registry import optional

TAR = ".tar"
SCHEME = "://"


@dataclass(frozen=True)
class StoredImage:
    """Loader of an image in an archive or in an object store.

    Attributes:
        location: path or address of the file that contains it.
        offset, length: its bytes in the file; the whole file without them.
    """

    location: str
    offset: int = 0
    length: int | None = None

    def read(self) -> bytes:
        """The bytes of the image file; raises DataError if they cannot be read."""
        try:
            with _open(self.location) as file:
                file.seek(self.offset)
                content: bytes = file.read() if self.length is None else file.read(self.length)
                return content
        except OSError as error:
            raise DataError(f"images: expected to read {self.location}, got {error}; check the address") from None

    def __call__(self) -> np.ndarray:
        """The pixels (H, W, 3) uint8; raises DataError if they cannot be read."""
        return decode_image(self.read())


def is_stored(location: Path | str) -> bool:
    """True for what is no plain directory or file: an archive, a directory of archives, or an object store.

    >>> is_stored("s3://bucket/photos"), is_stored("shards/photos-000.tar"), is_stored("photos")
    (True, True, False)
    """
    path = Path(location)
    return SCHEME in str(location) or path.suffix == TAR or (path.is_dir() and any(path.glob(f"*{TAR}")))


def stored_images(location: Path | str) -> list[ImageRecord]:
    """The images below a location, sorted by id.

    The id of a file is its path below the location, that of a member of an archive the name of the archive, a slash and
    the name of the member; suffixes are part of it.

    Args:
        location: a directory, an archive, or the address of either in an object store (`s3://bucket/photos`,
            `gs://...`); archives in a directory are read as well.

    Raises DataError if there are no images.
    """
    found: dict[str, ImageRecord] = {}
    for name, file in _files(str(location)):
        if file.endswith(TAR):
            found.update(_records(name, file))
        elif PurePosixPath(file).suffix.lower() in IMAGE_SUFFIXES:
            found[name] = ImageRecord(name, StoredImage(file))
    if not found:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(f"images: expected images ({kinds}) or archives ({TAR}) in {location}, got none; check it")
    return [found[name] for name in sorted(found)]


def named_image(name: str) -> np.ndarray | str:
    """The image of a path, an address, or an archive and its member (`photos-000.tar/cat.jpg`); a path stays one."""
    archive, tar, member = name.partition(f"{TAR}/")
    if not tar:
        return StoredImage(name)() if SCHEME in name else name
    found = _listing(archive + TAR).get(member)
    if found is None:
        raise DataError(f"images: expected {member!r} in {archive}{TAR}, got no such member; check the name")
    return found()


@lru_cache(maxsize=16)
def _listing(archive: str) -> dict[str, StoredImage]:
    """The images of an archive by member; the headers are read once for all of them."""
    return dict(_members(archive))


def _files(location: str) -> Iterator[tuple[str, str]]:
    """Names below the location and paths or addresses of its files, without hidden ones."""
    if SCHEME not in location:
        root = Path(location)
        if not root.exists():
            raise DataError(
                f"images: expected {location}, got nothing there; pass a directory, a tar file or an address"
            )
        paths = sorted(root.rglob("*")) if root.is_dir() else [root]
        shown = [(path.relative_to(root).as_posix() if root.is_dir() else path.name, path) for path in paths]
        yield from ((name, str(path)) for name, path in shown if path.is_file() and not path.name.startswith("."))
        return
    scheme, _, path = location.rstrip("/").partition(SCHEME)
    if path.endswith(TAR):
        yield PurePosixPath(path).name, location
        return
    fs = optional("images", "pyarrow.fs", extra="scale")
    filesystem, base = _filesystem(location.rstrip("/"))
    for info in filesystem.get_file_info(fs.FileSelector(base, recursive=True)):
        if info.is_file and not info.base_name.startswith("."):
            yield info.path[len(base) + 1 :], f"{scheme}{SCHEME}{info.path}"


def _records(name: str, archive: str) -> dict[str, ImageRecord]:
    """The images of an archive by id."""
    return {f"{name}/{one}": ImageRecord(f"{name}/{one}", source) for one, source in _members(archive)}


def _members(archive: str) -> Iterator[tuple[str, StoredImage]]:
    """The images of an archive that is not compressed, each with the place of its bytes; the headers alone are read."""
    try:
        with _open(archive) as file, tarfile.open(fileobj=file, mode="r:") as opened:
            for member in opened:
                if member.isfile() and PurePosixPath(member.name).suffix.lower() in IMAGE_SUFFIXES:
                    yield member.name, StoredImage(archive, member.offset_data, member.size)
    except (tarfile.TarError, OSError) as error:
        raise DataError(
            f"images: expected a tar archive without compression, got {archive} ({error}); write it again"
        ) from None


def _open(location: str) -> Any:
    """The bytes of a file at a path or an address, to be read and sought."""
    if SCHEME not in location:
        return open(location, "rb")
    filesystem, path = _filesystem(location)
    return filesystem.open_input_file(path)


def _filesystem(location: str) -> tuple[Any, str]:
    """The file system of an address, and the path in it."""
    scheme, _, path = location.partition(SCHEME)
    bucket, _, rest = path.partition("/")
    filesystem, base = _connect(f"{scheme}{SCHEME}{bucket}", os.getpid())
    return filesystem, f"{base}/{rest}" if bucket else f"/{rest}"


@lru_cache(maxsize=16)
def _connect(root: str, process: int) -> tuple[Any, str]:
    """Connected once per bucket and process: it takes a second, and a connection does not survive a fork."""
    fs = optional("images", "pyarrow.fs", extra="scale")
    filesystem, base = fs.FileSystem.from_uri(root if not root.endswith(SCHEME) else f"{root}/")
    return filesystem, base.rstrip("/")


# Package, directory in it, and the photographs there that show everyday things in colour.
PLACES = (
    ("skimage", "data", ("chelsea.png", "coffee.png", "astronaut.png", "rocket.jpg", "motorcycle_left.png")),
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("matplotlib", "mpl-data/sample_data", ("grace_hopper.jpg",)),
)


def example_photos() -> dict[str, Path]:
    """The photographs by name, without their suffix; at least one, since matplotlib is always installed.

    `pip install scikit-image` adds a cat ("chelsea"), a cup of coffee, an astronaut, a rocket and a motorcycle;
    `pip install scikit-learn` a temple ("china") and a flower. Their licences are in a README beside each.

    >>> "grace_hopper" in example_photos()
    True
    """
    found = {}
    for package, directory, names in PLACES:
        spec = find_spec(package)
        for home in (spec.submodule_search_locations or ()) if spec is not None else ():
            paths = [Path(home, directory, name) for name in names]
            found.update({path.stem: path for path in paths if path.is_file()})
    return found
