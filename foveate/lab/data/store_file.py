"""The file of a feature store, opened so that neither a damaged nor a hostile file can do harm.

The file is HDF5, for other programs to read. It begins with a user block, which HDF5 leaves to the application, with
all that foveate needs: a JSON header with the attributes and with type, shape and offset of every dataset, the size of
the file, and checksums (CRC-32) of the block and of all bytes but the features and boxes. The dataset `checksums` has
one per image for these. Reading thus needs no HDF5 library, which may crash on a damaged file: every dataset is an
array at a known place, and all places and sizes are compared with the size of the file before anything is allocated.
"""

from __future__ import annotations

import json
import math
import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foveate.errors import DataError, WrongValue

FORMAT, VERSION = "foveate-features", 2
ATTRIBUTES = ("encoder", "weights", "preprocess", "source", "fingerprint")
# Type ("S": strings of some fixed length) and shape (None: any length) of every dataset.
ROWS: Mapping[str, tuple[str, tuple[int | None, ...]]] = {
    "features": ("<f2", (None, None)),
    "boxes": ("<f4", (None, 4)),
}
INDEX: Mapping[str, tuple[str, tuple[int | None, ...]]] = {
    "offsets": ("<i8", (None,)),
    "grids": ("<i4", (None, 2)),
    "sizes": ("<i4", (None, 2)),
    "ids": ("S", (None,)),
    "skipped": ("S", (None, 2)),
    "checksums": ("<u4", (None,)),
}
_ALL = {**ROWS, **INDEX}
OPTIONAL = {"boxes"}
# format, version, size of the block, size of the JSON header, size of the file, checksum of the index
_START = struct.Struct("<16s3IQI")
_MAX_BLOCK = 1 << 20
_PIECE = 1 << 20


class Placed(NamedTuple):
    """An array in the file: type, shape and offset in bytes."""

    type: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.type).itemsize


@dataclass(frozen=True)
class StoreHeader:
    """The description that a store keeps of itself.

    Attributes:
        attributes: the texts named in `ATTRIBUTES`.
        tables: the datasets, all inside the file.
        file_size: in bytes.
    """

    attributes: Mapping[str, str]
    tables: Mapping[str, Placed]
    file_size: int


class _Block(NamedTuple):
    """The user block at the start of a file."""

    version: int
    size: int
    file_size: int
    index_checksum: int
    header: bytes
    is_intact: bool


def unreadable(path: Path, reason: str) -> DataError:
    """Return the error for a file that is not a complete store."""
    return DataError(
        f"FeatureStore: expected a complete feature store, got {path}, which cannot be read ({reason}); "
        "copy it again or write it again with `foveate extract`"
    )


def checksum(values: np.ndarray, boxes: np.ndarray | None) -> int:
    """Return the CRC-32 of the features and boxes of one image, both contiguous and of the types in the file."""
    crc = zlib.crc32(values.data)
    return crc if boxes is None else zlib.crc32(boxes.data, crc)


def read_header(path: Path, *, verify: bool) -> StoreHeader:
    """Read and check the header of a store; raises DataError for anything but a valid one.

    Args:
        path: of the file.
        verify: compare all bytes but the features and boxes with their checksums.
    """
    if not path.is_file():
        raise DataError(
            f"FeatureStore: expected a feature store at {path}, got no file; write it with `foveate extract`"
        )
    try:
        block = _read_block(path)
        size = path.stat().st_size
        header = _checked(json.loads(block.header), block.version, size)
        if verify:
            _verify(path, block, header)
        return header
    except Exception as error:  # JSON and the checks raise many kinds on a damaged file
        raise unreadable(path, str(error) or type(error).__name__) from None


def block_size(attributes: Mapping[str, str]) -> int:
    """Return the size of the user block of a store with these attributes: a power of two, as HDF5 wants it."""
    tables = {
        name: _as_json(Placed("S" + "9" * 9, (10**15,) * len(shape), 10**15)) for name, (_, shape) in _ALL.items()
    }
    need = _START.size + len(_dumps(attributes, tables)) + 4
    return max(512, 1 << (need - 1).bit_length())


def write_block(path: Path) -> None:
    """Fill in the user block of a store that was just written."""
    size = path.stat().st_size
    header = _checked(_read_layout(path), VERSION, size)
    room = block_size(header.attributes)
    text = _dumps(header.attributes, {name: _as_json(place) for name, place in header.tables.items()})
    index = _index_checksum(path, room, header)
    block = _START.pack(FORMAT.encode(), VERSION, room, len(text), size, index) + text
    block = block.ljust(room - 4, b"\0")
    with path.open("r+b") as file:
        file.write(block + zlib.crc32(block).to_bytes(4, "little"))


def _read_layout(path: Path) -> dict[str, Any]:
    """Return the attributes of a store that was just written, and type, shape and offset of its datasets."""
    import h5py

    with h5py.File(path, "r", locking=False) as file:
        tables = {
            name: {
                "type": table.dtype.str.lstrip("|"),
                "shape": list(table.shape),
                "offset": table.id.get_offset() if table.size else 0,
            }
            for name, table in file.items()
        }
        attributes = {name: getattr(value, "item", lambda value=value: value)() for name, value in file.attrs.items()}
    return {"attributes": attributes, "tables": tables}


class ArrayReader:
    """Reads arrays of a store at random, from any process.

    Reads are positioned, so that forked processes may share the descriptor.

    Args:
        path, header: of the store.
    """

    def __init__(self, path: Path, header: StoreHeader) -> None:
        self.path, self.header = path, header
        self._descriptor: int | None = None
        self._close: Any = None

    def table(self, name: str) -> np.ndarray:
        """Return a whole dataset."""
        place = self.header.tables[name]
        return self._read(place.type, place.shape, place.offset)

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return rows of a dataset with two axes."""
        place = self.header.tables[name]
        row = place.shape[1] * np.dtype(place.type).itemsize
        return self._read(place.type, (stop - start, place.shape[1]), place.offset + start * row)

    def close(self) -> None:
        """Close the file; the next read opens it again."""
        if self._close is not None:
            self._close()
        self._descriptor, self._close = None, None

    def _read(self, type: str, shape: tuple[int, ...], position: int) -> np.ndarray:
        array = np.empty(shape, type)
        left = array.view(np.uint8).reshape(-1).data if array.size else memoryview(b"")
        while left:
            count = _read_at(self._open(), left, position)
            if not count:
                raise unreadable(self.path, "truncated")
            left, position = left[count:], position + count
        return array

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
            except OSError as error:
                raise unreadable(self.path, str(error)) from None
            self._close = weakref.finalize(self, os.close, self._descriptor)
            if os.fstat(self._descriptor).st_size != self.header.file_size:
                self.close()
                raise unreadable(self.path, "it was replaced after it had been opened")
        return self._descriptor


def _read_at(descriptor: int, buffer: memoryview, position: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [buffer], position)
    os.lseek(descriptor, position, os.SEEK_SET)  # Windows: not for several threads at once
    piece = os.read(descriptor, len(buffer))
    buffer[: len(piece)] = piece
    return len(piece)


def _checked(content: Any, version: int, size: int) -> StoreHeader:
    """Turn JSON into a header; raises ValueError unless it has exactly the tables of a store, inside the file."""
    if not isinstance(content, dict) or not isinstance(content.get("attributes"), dict):
        raise WrongValue("it is no feature store")
    attributes, tables = content["attributes"], content.get("tables")
    if attributes.get("format") != FORMAT or not isinstance(tables, dict):
        raise WrongValue("it is no feature store")
    if attributes.get("version") != version or version != VERSION:
        raise WrongValue(f"format version {attributes.get('version')}, this code reads {VERSION}")
    missing = _ALL.keys() - OPTIONAL - tables.keys()
    strangers = tables.keys() - _ALL.keys()
    if missing or strangers:
        raise WrongValue(
            f"{sorted(missing)[0]!r} is missing" if missing else f"unknown dataset {sorted(strangers)[0]!r}"
        )
    if not all(isinstance(attributes.get(name), str) for name in ATTRIBUTES):
        raise WrongValue(f"the attributes {', '.join(ATTRIBUTES)} are not all there as text")
    placed = {name: _placed(name, table, size) for name, table in tables.items()}
    # Datasets that share their bytes would hold more than the file does.
    if sum(place.nbytes for place in placed.values()) > size:
        raise WrongValue(f"datasets larger than the file of {size} bytes")
    return StoreHeader({name: attributes[name] for name in ATTRIBUTES}, placed, size)


def _placed(name: str, table: Any, size: int) -> Placed:
    kind, shape, offset = (table.get(key) for key in ("type", "shape", "offset"))
    numbers = [offset, *shape] if isinstance(shape, list) else [None]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise WrongValue(f"{name!r} has no place in the file: {table!r:.80}")
    wanted, lengths = _ALL[name]
    if not (_is_text(kind, size) if wanted == "S" else kind == wanted):
        raise WrongValue(f"{name!r} has the type {kind!r:.20} instead of {wanted}")
    if len(shape) != len(lengths) or any(e not in (None, s) for e, s in zip(lengths, shape, strict=True)):
        raise WrongValue(f"{name!r} has the shape {shape!r:.80}")
    place = Placed(kind, tuple(shape), offset)
    if place.offset + place.nbytes > size:
        raise WrongValue(f"{name!r} has {place.nbytes} bytes at {offset}, outside the file of {size} bytes")
    return place


def _is_text(kind: Any, size: int) -> bool:
    """Return True for the type of strings of a fixed length, at most the size of the file."""
    return isinstance(kind, str) and kind[:1] == "S" and kind[1:].isdecimal() and 0 < int(kind[1:]) <= size


def _read_block(path: Path) -> _Block:
    """Return the user block; raises ValueError for a file without one."""
    with path.open("rb") as file:
        head = file.read(_START.size)
        if len(head) < _START.size or not head.startswith(FORMAT.encode()):
            raise WrongValue("it is no feature store, or truncated")
        _, version, size, length, file_size, index = _START.unpack(head)
        if not _START.size + length + 4 <= size <= _MAX_BLOCK:
            raise WrongValue("its first block is damaged")
        block = head + file.read(size - len(head))
    is_intact = len(block) == size and zlib.crc32(block[:-4]).to_bytes(4, "little") == block[-4:]
    return _Block(version, size, file_size, index, block[_START.size : _START.size + length], is_intact)


def _verify(path: Path, block: _Block, header: StoreHeader) -> None:
    if not block.is_intact:
        raise WrongValue("its first block is damaged")
    if block.file_size != header.file_size:
        raise WrongValue(f"{header.file_size} bytes instead of {block.file_size}, truncated or extended")
    if _index_checksum(path, block.size, header) != block.index_checksum:
        raise WrongValue("its index is damaged: another checksum than it was written with")


def _index_checksum(path: Path, start: int, header: StoreHeader) -> int:
    """Return the CRC-32 of all bytes from `start` that belong neither to the features nor to the boxes."""
    crc = 0
    with path.open("rb") as file:
        for begin, end in _gaps(start, header):
            file.seek(begin)
            while begin < end and (piece := file.read(min(_PIECE, end - begin))):
                crc, begin = zlib.crc32(piece, crc), begin + len(piece)
    return crc


def _gaps(start: int, header: StoreHeader) -> Iterator[tuple[int, int]]:
    places = [header.tables[name] for name in ROWS if name in header.tables]
    for place in sorted(places, key=lambda place: place.offset):
        if place.nbytes:
            yield start, place.offset
            start = max(start, place.offset + place.nbytes)
    yield start, header.file_size


def _as_json(place: Placed) -> dict[str, Any]:
    return {"type": place.type, "shape": list(place.shape), "offset": place.offset}


def _dumps(attributes: Mapping[str, str], tables: Mapping[str, Any]) -> bytes:
    known = {"format": FORMAT, "version": VERSION, **attributes}
    return json.dumps({"attributes": known, "tables": tables}, sort_keys=True).encode()
