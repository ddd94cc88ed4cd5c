"""A table of captioned images that need not fit into memory: names, places and captions in one memory-mapped file.

    names, name_ends       the name of each image as UTF-8, one after the other, and where each ends
    texts, text_ends       the captions in the same form
    caption_ends           (N,) how many captions there are up to and including each image
    file, offset, length   (N,) where the image is: which file, and its bytes there, or its row in a table of Lance
    hashes, order          of the names, sorted, to find an image by its name

A hundred thousand images with a caption of 70 letters each take 16 MB.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from foveate.errors import DataError
from foveate.io import atomic_write, write_tensors

FORMAT = "foveate-captions-1"
Array = np.ndarray[Any, Any]


class Place(NamedTuple):
    """The place of an image: the number of its file, and its bytes there, or its row in a table of Lance."""

    file: int
    offset: int
    length: int


class TableBuilder:
    """Collects captioned images in compact form."""

    def __init__(self) -> None:
        self.names, self.texts = bytearray(), bytearray()
        self.name_ends, self.text_ends, self.caption_ends = array("q"), array("q"), array("q")
        self.places, self.hashes = array("q"), array("Q")

    def __len__(self) -> int:
        return len(self.name_ends)

    def add(self, name: str, captions: Iterable[str], place: Place) -> None:
        """Add an image."""
        self.names += name.encode()
        self.name_ends.append(len(self.names))
        for caption in captions:
            self.texts += caption.encode()
            self.text_ends.append(len(self.texts))
        self.caption_ends.append(len(self.text_ends))
        self.places.extend(place)
        self.hashes.append(_hash(name))

    def write(self, path: Path, notes: Mapping[str, Any]) -> None:
        """Write the table atomically; raises DataError if two images have the same name.

        Args:
            path: of the file.
            notes: JSON that `CaptionTable.notes` returns.
        """
        places = np.array(self.places, np.int64).reshape(-1, 3)
        hashes = np.array(self.hashes, np.uint64)
        order = hashes.argsort(kind="stable")
        arrays: dict[str, Array] = {
            "names": np.frombuffer(self.names, np.uint8),
            "name_ends": np.array(self.name_ends, np.int64),
            "texts": np.frombuffer(self.texts, np.uint8),
            "text_ends": np.array(self.text_ends, np.int64),
            "caption_ends": np.array(self.caption_ends, np.int64),
            "file": places[:, 0].copy(),
            "offset": places[:, 1].copy(),
            "length": places[:, 2].copy(),
            "hashes": hashes[order].view(np.int64),
            "order": order.astype(np.int64),
        }
        self._check_unique(arrays)
        metadata = {"format": FORMAT, "notes": json.dumps(notes), "digest": _digest(arrays)}
        with atomic_write(path) as temporary:
            write_tensors({name: torch.from_numpy(value) for name, value in arrays.items()}, temporary, metadata)

    def _check_unique(self, arrays: Mapping[str, Array]) -> None:
        hashes, order = arrays["hashes"], arrays["order"]
        for place in np.flatnonzero(hashes[1:] == hashes[:-1]):
            first, second = (_text(arrays["names"], arrays["name_ends"], int(order[place + n])) for n in (0, 1))
            if first == second:
                raise DataError(f"shards: expected images with different names, got {first!r} twice; rename one")


class CaptionTable:
    """Captioned images by position or name; see the module.

    Args:
        path: of a file that `TableBuilder` wrote.

    Raises DataError if it is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                self._arrays: dict[str, Array] = {n: file.get_tensor(n).numpy() for n in file.keys()}  # noqa: SIM118
            self.notes: dict[str, Any] = json.loads(metadata["notes"])
            self.fingerprint = metadata["digest"]
            intact = metadata["format"] == FORMAT and _digest(self._arrays) == self.fingerprint
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise DataError(f"shards: expected a table of captions in {path}, got {error}; remove the file") from None
        if not intact:
            raise DataError(f"shards: expected an intact table of captions, got {path}; remove the file")

    def __reduce__(self) -> tuple[type[CaptionTable], tuple[Path]]:
        return CaptionTable, (self.path,)

    def __len__(self) -> int:
        return len(self._arrays["name_ends"])

    @property
    def captions(self) -> int:
        """Number of captions."""
        return len(self._arrays["text_ends"])

    def name(self, image: int) -> str:
        """The name of an image."""
        return _text(self._arrays["names"], self._arrays["name_ends"], image)

    def place(self, image: int) -> Place:
        """Where an image is."""
        return Place(*(int(self._arrays[name][image]) for name in Place._fields))

    def caption(self, number: int) -> str:
        """A caption by its number among all captions."""
        return _text(self._arrays["texts"], self._arrays["text_ends"], number)

    def captions_of(self, image: int) -> range:
        """The numbers of an image's captions."""
        ends = self._arrays["caption_ends"]
        return range(int(ends[image - 1]) if image else 0, int(ends[image]))

    def image_of(self, caption: int) -> int:
        """The image of a caption."""
        return int(np.searchsorted(self._arrays["caption_ends"], caption, side="right"))

    def counts(self) -> Array:
        """(N,) number of captions per image."""
        return np.diff(self._arrays["caption_ends"], prepend=0)

    def find(self, name: str) -> int | None:
        """The position of an image, None if there is none of that name."""
        hashes, wanted = self._arrays["hashes"].view(np.uint64), np.uint64(_hash(name))
        for place in range(int(np.searchsorted(hashes, wanted)), len(hashes)):
            if hashes[place] != wanted:
                return None
            image = int(self._arrays["order"][place])
            if self.name(image) == name:
                return image
        return None


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def _digest(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _text(blob: Array, ends: Sequence[int] | Array, number: int) -> str:
    start = int(ends[number - 1]) if number else 0
    return blob[start : int(ends[number])].tobytes().decode()
