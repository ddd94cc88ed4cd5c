"""The part files of an index: vectors and the names of what they stand for, memory-mapped and verified when read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.errors import DataError
from foveate.io import atomic_write, write_tensors

SAFE_TYPES = {torch.float16: "F16", torch.float32: "F32"}
PAGE = 4096  # bytes that are summed up together in a checksum


@dataclass(frozen=True)
class Part:
    """The entry of a part file in `index.json`.

    Attributes:
        file: its name.
        rows: number of vectors in it.
        checksum: of all its bytes, see `part_checksum`.
    """

    file: str
    rows: int
    checksum: str


class OpenPart:
    """A part file, memory-mapped. Opening checks header, shapes and types; the first access to content verifies it.

    Args:
        directory: of the index.
        part: its entry in `index.json`.
        dim, dtype: of its vectors.
        verify: compare the file with its checksum before anything of it is used.

    Raises DataError if the file is missing, truncated, of another kind or different from its entry, on opening or on
    first access.
    """

    def __init__(self, directory: Path, part: Part, dim: int, dtype: torch.dtype, *, verify: bool = True) -> None:
        self.path, self.part = directory / part.file, part
        self._trusted = not verify
        self._names: bytes | None = None
        if not self.path.is_file():  # opening a named pipe would block
            raise damaged(self.path, "no such file")
        try:
            with safe_open(self.path, framework="pt") as file:
                self._check_header(file, dim, dtype)
                tensors: list[Tensor] = [file.get_tensor(name) for name in ("vectors", "ends", "names")]
            self._header = _read_header(self.path)
        except (SafetensorError, OSError) as error:
            raise damaged(self.path, str(error)) from None
        self._vectors, self._ends, self._text = tensors
        ordered = bool((self._ends.diff() >= 0).all()) and int(self._ends[0]) >= 0
        if not ordered or int(self._ends[-1]) != len(self._text):
            raise damaged(self.path, "names that do not fit its vectors")

    def __len__(self) -> int:
        return self.part.rows

    @property
    def vectors(self) -> Tensor:
        """The vectors (n, D) in the type of the index."""
        self._trust()
        return self._vectors

    def name(self, row: int) -> str:
        """What a vector stands for."""
        start = int(self._ends[row - 1]) if row else 0
        return self._decode(self._name_bytes()[start : int(self._ends[row])])

    def all_names(self) -> list[str]:
        """What the vectors stand for, in order."""
        text = self._name_bytes()
        return [self._decode(text[start:end]) for start, end in pairwise([0, *self._ends.tolist()])]

    def verify(self) -> None:
        """Read the whole file and compare it with its checksum; raises DataError if they differ."""
        if part_checksum(self._header, self._vectors, self._ends, self._text) != self.part.checksum:
            raise damaged(self.path, "another checksum than it was written with")
        self._trusted = True

    def _trust(self) -> None:
        """Verify the file once, before anything of it is used."""
        if not self._trusted:
            self.verify()

    def _name_bytes(self) -> bytes:
        self._trust()
        if self._names is None:
            self._names = bytes(self._text.numpy())
        return self._names

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, str(error)) from None

    def _check_header(self, file: Any, dim: int, dtype: torch.dtype) -> None:
        """Raises DataError unless the file holds the tensors of its entry and nothing else."""
        expected = {"vectors": ([self.part.rows, dim], SAFE_TYPES[dtype]), "ends": ([self.part.rows], "I64")}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        found = {name: (list(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
        shape, kind = found.pop("names", ([], ""))
        if found != expected or len(shape) != 1 or kind != "U8":
            raise damaged(self.path, f"tensors {found} instead of {expected} and names")


def write_part(path: Path, vectors: Tensor, names: Sequence[str]) -> Part:
    """Write vectors (n, D) and their names to a part file, atomically."""
    texts = [name.encode() for name in names]
    ends = torch.tensor([len(text) for text in texts], dtype=torch.long).cumsum(0)
    # frombuffer needs at least one byte, also where all names are empty
    joined = torch.frombuffer(bytearray(b"".join(texts)) or bytearray(1), dtype=torch.uint8)[: int(ends[-1:].sum())]
    tensors = {"vectors": vectors.contiguous(), "ends": ends, "names": joined}
    with atomic_write(path) as temporary:
        write_tensors(tensors, temporary)
        header = _read_header(temporary)
    # Over the tensors in memory, not over the file, so that damage on the way to the disk is noticed as well.
    return Part(path.name, len(vectors), part_checksum(header, *tensors.values()))


def _read_header(path: Path) -> bytes:
    """The header of a safetensors file: eight bytes that hold its length, and JSON."""
    with path.open("rb") as file:
        size = file.read(8)
        return size + file.read(int.from_bytes(size, "little"))


def part_checksum(header: bytes, *tensors: Tensor) -> str:
    """Sixteen hexadecimal digits over all bytes of a part file: its header and its tensors.

    The 64-bit words of each 4 KiB page of a tensor are summed modulo 2^64, and header, sums and the bytes after the
    last page are hashed. Sums run at the speed of memory, five times faster than CRC-32. A change inside one word
    always changes the sum of its page, larger damage goes unnoticed with probability 2^-64, and pages that change
    places are noticed as well.

    >>> part_checksum(b"", torch.zeros(5000)) == part_checksum(b"", torch.ones(5000))
    False
    """
    digest = hashlib.blake2b(header, digest_size=8)
    for tensor in tensors:
        data = tensor.reshape(-1).view(torch.uint8)
        whole = len(data) // PAGE * PAGE
        pages = data[:whole].view(torch.int64).reshape(whole // PAGE, PAGE // 8)
        digest.update(pages.sum(1).numpy().tobytes())
        digest.update(data[whole:].numpy().tobytes())
    return digest.hexdigest()


def damaged(path: Path, reason: str) -> DataError:
    """The error for a file that cannot be trusted."""
    return DataError(
        f"index: expected an intact index, got {path}, which cannot be read ({reason}); "
        "copy it again or write it again with `foveate index`"
    )
