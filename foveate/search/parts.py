"""The files of an index: vectors and the names of what they stand for, whole or not there, and memory-mapped."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from foveate.data.writing import appearing
from foveate.errors import DataError

SAFE_TYPES = {torch.float16: "F16", torch.float32: "F32"}


@dataclass(frozen=True)
class Part:
    """What an index says of one of its files.

    Attributes:
        file: its name.
        rows: how many vectors it holds.
        checksum: over vectors and names.
    """

    file: str
    rows: int
    checksum: str


class OpenPart:
    """A file of vectors, memory-mapped: header, shapes, types and names are checked, the vectors are not read.

    Args:
        folder: of the index.
        part: what the index says of the file.
        dim, dtype: of its vectors.

    A file that is missing, cut, foreign or other than said raises DataError.
    """

    def __init__(self, folder: Path, part: Part, dim: int, dtype: torch.dtype) -> None:
        self.path, self.part = folder / part.file, part
        try:
            with safe_open(self.path, framework="pt") as file:
                self._check_header(file, dim, dtype)
                self.vectors, self.ends, self.names = (file.get_tensor(name) for name in ("vectors", "ends", "names"))
        except (SafetensorError, OSError) as error:
            raise damaged(self.path, str(error)) from None
        steps = torch.diff(self.ends, prepend=self.ends.new_zeros(1))
        if bool((steps < 0).any()) or int(steps.sum()) != len(self.names):
            raise damaged(self.path, "names that do not fit its vectors")

    def __len__(self) -> int:
        return self.part.rows

    def name(self, row: int) -> str:
        """What a vector stands for."""
        start = int(self.ends[row - 1]) if row else 0
        return self._decode(self._bytes[start : int(self.ends[row])])

    def all_names(self) -> list[str]:
        """What the vectors stand for, in order."""
        ends = [0, *self.ends.tolist()]
        return [self._decode(self._bytes[start:end]) for start, end in pairwise(ends)]

    def verify(self) -> None:
        """Read everything and compare it with the checksum."""
        if checksum(self.vectors, self.ends, self.names) != self.part.checksum:
            raise damaged(self.path, "another checksum than it was written with")

    @cached_property
    def _bytes(self) -> bytes:
        return self.names.numpy().tobytes()

    def _decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, str(error)) from None

    def _check_header(self, file: Any, dim: int, dtype: torch.dtype) -> None:
        wanted = {"vectors": ([self.part.rows, dim], SAFE_TYPES[dtype]), "ends": ([self.part.rows], "I64")}
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        found = {name: (list(one.get_shape()), one.get_dtype()) for name, one in slices.items()}
        shape, kind = found.pop("names", ([], ""))
        if found != wanted or len(shape) != 1 or kind != "U8":
            raise damaged(self.path, f"tensors {found} where {wanted} and names belong")


def write_part(path: Path, vectors: Tensor, names: Sequence[str]) -> Part:
    """Write a file of vectors (n, D), whole or not at all."""
    texts = [name.encode() for name in names]
    ends = torch.tensor([len(text) for text in texts], dtype=torch.long).cumsum(0)
    joined = torch.frombuffer(bytearray(b"".join(texts)) or bytearray(1), dtype=torch.uint8)[: int(ends[-1:].sum())]
    tensors = {"vectors": vectors.contiguous(), "ends": ends, "names": joined}
    with appearing(path) as aside:
        save_file(tensors, aside)
    return Part(path.name, len(vectors), checksum(*tensors.values()))


def checksum(*tensors: Tensor) -> str:
    """Eight hexadecimal digits over the values of tensors, a few megabytes at a time.

    >>> checksum(torch.zeros(2)) == checksum(torch.ones(2))
    False
    """
    value = 0
    for tensor in tensors:
        for piece in tensor.reshape(-1).split(1 << 22):
            value = zlib.crc32(piece.view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def damaged(path: Path, reason: str) -> DataError:
    """The error of a file that cannot be trusted."""
    return DataError(
        f"index: expected a whole index, got {path}, which cannot be read ({reason}); "
        "copy it again or write it again with `foveate index`"
    )
