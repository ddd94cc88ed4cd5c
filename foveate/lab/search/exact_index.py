"""The index: a directory of embeddings that can grow, and that stays consistent through kills and damaged files.

    index.json                    format, version, description, the parts in order, and a checksum of all that
    vectors-000007.safetensors    a part: vectors (n, D), and the name of each as UTF-8 with its end

An addition is one part. It is written atomically and belongs to the index once `index.json`, replaced in the same way,
names it: a kill leaves the old index or the new one. `finish`, which ends every build, joins the last small parts.
Nothing is executed, and no memory is allocated because a file says so: safetensors compares its header with the size
of the file, and each part must have the rows, the D and the type that `index.json` says. Parts are memory-mapped, and
each is compared with its checksum before anything of it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foveate.checks import check_floating, check_shape
from foveate.errors import DataError, WrongType
from foveate.io import exclusive_lock, read_json, write_json
from foveate.lab.search.nearest import CHUNK, Hits, nearest
from foveate.lab.search.parts import OpenPart, Part, damaged, write_part
from foveate.registry import lookup

FORMAT, VERSION, MANIFEST = "foveate-index", 2, "index.json"
SMALL = 65536  # vectors of a part below which it is joined with others
SOURCE = "foveate index writes it"
DTYPES = {"float16": torch.float16, "float32": torch.float32}
KINDS = ("images", "texts")
_PART_NAME = re.compile(r"vectors-([0-9]{6,20})\.safetensors")


@dataclass(frozen=True)
class IndexDescription:
    """The kind and origin of the vectors of an index.

    Attributes:
        dim: size of a vector, D.
        kind: what they stand for, "images" or "texts".
        run: directory or name of the run that embedded them, "" if unknown.
        weights: digest of the weights of that run, "" if unknown.
        dtype: in which they are stored, "float16" or "float32".
    """

    dim: int
    kind: Literal["images", "texts"] = "images"
    run: str = ""
    weights: str = ""
    dtype: Literal["float16", "float32"] = "float16"

    def __post_init__(self) -> None:
        lookup("index kind", self.kind, dict.fromkeys(KINDS))
        lookup("index dtype", self.dtype, DTYPES)
        if self.dim < 1:
            raise DataError(f"index: expected vectors of at least one number, got dim={self.dim}; check the run")


class Index:
    """Embeddings in a directory, each with the name of what it stands for: the path of an image, or a text.

    Any number of processes may read an index, one at a time may `add` to it; readers keep what they opened.

    Args:
        directory: of an index made by `Index.create`.
        verify: compare each part with its checksum when it is first read. It costs about 0.1 s per gigabyte, once per
            opened index; without it, damaged bytes can change results unnoticed.

    Raises DataError if the index is missing, damaged, of another kind, or written by a newer version.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     index = Index.create(Path(directory, "index"), IndexDescription(dim=2))
    ...     added = index.add(["a.jpg", "b.jpg"], torch.eye(2))
    ...     found = Index(Path(directory, "index")).search(torch.tensor([[0.0, 1.0]]), top=1)
    ...     index.name(int(found.positions[0, 0]))
    'b.jpg'
    """

    def __init__(self, directory: Path | str, *, verify: bool = True) -> None:
        self.directory, self._verifies = Path(directory), verify
        if not (self.directory / MANIFEST).is_file():
            raise DataError(
                f"index: expected the directory of an index, got {self.directory} without {MANIFEST}; {SOURCE}"
            )
        self.description, parts = _read_manifest(self.directory / MANIFEST, verify=verify)
        self._parts = [self._open(part) for part in parts]

    @classmethod
    def create(cls, directory: Path | str, description: IndexDescription) -> Index:
        """A new, empty index; raises DataError if the directory contains anything."""
        directory = Path(directory)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise DataError(f"index: expected a new or empty directory, got {directory}; choose another name")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"index: expected to create the directory {directory}, got {error}; choose another name"
            ) from None
        _write_manifest(directory / MANIFEST, description, [])
        return cls(directory)

    def __reduce__(self) -> tuple[partial[Index], tuple[Path]]:
        return partial(Index, verify=self._verifies), (self.directory,)

    def __len__(self) -> int:
        return self._starts[-1]

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def dim(self) -> int:
        """Size of a vector, D."""
        return self.description.dim

    @property
    def location(self) -> str:
        """The directory, as text."""
        return str(self.directory)

    def name(self, position: int) -> str:
        """What the vector at a position stands for."""
        part, row = self._locate(position)
        return part.name(row)

    def names(self, positions: Sequence[int]) -> list[str]:
        """What the vectors at some positions stand for."""
        return [self.name(position) for position in positions]

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are not in the index."""
        return [name for name in names if name not in self._known]

    def vector(self, position: int) -> Tensor:
        """The vector (D,) at a position, as float32."""
        part, row = self._locate(position)
        return part.vectors[row].to(torch.float32)

    def blocks(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """The vectors in order, at most `rows` at a time, each block with the position of its first vector."""
        for start, part in zip(self._starts, self._parts, strict=False):
            for row in range(0, len(part), rows):
                yield start + row, part.vectors[row : row + rows]

    def search(self, queries: Tensor, top: int = 10, *, chunk: int = CHUNK) -> Hits:
        """The vectors with the largest inner products with the queries (Q, D), exactly; see `nearest`."""
        return nearest(self, queries, top, chunk=chunk)

    def verify(self) -> None:
        """Read everything and compare it with the checksums; raises DataError if anything is damaged."""
        for part in self._parts:
            part.verify()

    def add(self, names: Sequence[str], vectors: Tensor, sizes: Sequence[tuple[int, int]] | None = None) -> int:
        """Append vectors; on the disk all of them or none. Returns their number.

        Args:
            names: what they stand for, n different texts that are not in the index yet.
            vectors: (n, D); raises DataError if one is not finite in the type of the index.
            sizes: of images, which only `LanceIndex` stores.

        Raises DataError if another program has changed the index since it was opened.
        """
        values = check_new(self.description, names, vectors)
        again = next((name for name in names if name in self), None)
        if again is not None:
            raise DataError(f"Index.add: expected new names, got {again!r} again; skip what the index has already")
        if not names:
            return 0
        with _writing(self.directory):
            self._check_unchanged()
            self._replace_parts(self._parts, values, names)
            self._known.update(names)
        return len(names)

    def finish(self) -> None:
        """Join the parts at the end that have fewer than `SMALL` vectors into one, in the same order."""
        kept = len(self._parts)
        while kept and len(self._parts[kept - 1]) < SMALL:
            kept -= 1
        small = self._parts[kept:]
        if len(small) < 2:
            return
        with _writing(self.directory):
            self._check_unchanged()
            for part in small:
                part.verify()  # also with verify=False: damage must not get a new, valid checksum
            names = [name for part in small for name in part.all_names()]
            self._replace_parts(self._parts[:kept], torch.cat([part.vectors for part in small]), names)

    def _check_unchanged(self) -> None:
        if _read_manifest(self.directory / MANIFEST) != (self.description, [part.part for part in self._parts]):
            raise DataError(
                f"index: expected {self.directory} as it was opened, got one that has changed since; "
                "another program adds to it: run again when it is done"
            )

    def _replace_parts(self, kept: Sequence[OpenPart], vectors: Tensor, names: Sequence[str]) -> None:
        """The index of some parts and a new one after them, on the disk and then in this object."""
        path = self.directory / f"vectors-{_next_number([part.part for part in self._parts]):06}.safetensors"
        listed = [*(part.part for part in kept), write_part(path, vectors, names)]
        _write_manifest(self.directory / MANIFEST, self.description, listed)
        # From here on the change is durable; what follows only brings this object and the directory up to date.
        self._parts = [*kept, self._open(listed[-1])]
        self.__dict__.pop("_starts", None)
        _remove_unlisted(self.directory, {part.file for part in listed})

    @cached_property
    def _starts(self) -> list[int]:
        """The position of the first vector of each part, and the total number of vectors."""
        return [0, *accumulate(len(part) for part in self._parts)]

    @cached_property
    def _known(self) -> set[str]:
        return {name for part in self._parts for name in part.all_names()}

    def _open(self, part: Part) -> OpenPart:
        return OpenPart(self.directory, part, self.dim, DTYPES[self.description.dtype], verify=self._verifies)

    def _locate(self, position: int) -> tuple[OpenPart, int]:
        """The part that holds a position, and the row in it."""
        if not 0 <= position < len(self):
            raise IndexError(f"Index: expected a position from 0 to {len(self) - 1}, got {position}; see len(index)")
        number = bisect_right(self._starts, position) - 1
        return self._parts[number], position - self._starts[number]


def check_new(description: IndexDescription, names: Sequence[str], vectors: Tensor) -> Tensor:
    """New vectors in the type of an index; raises an error if they cannot be added."""
    check_floating("Index.add", "vectors", vectors)
    check_shape("Index.add", "vectors", vectors, (len(names), description.dim), "(n, D)")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"Index.add: expected new names, got {name!r} again; skip what the index has already")
        seen.add(name)
    values = vectors.detach().cpu().to(DTYPES[description.dtype])
    finite = values.isfinite().all(-1)
    if not bool(finite.all()):
        bad = names[int((~finite).nonzero()[0])]
        raise DataError(
            f"Index.add: expected vectors that are finite in {description.dtype}, got others for {bad!r}; "
            "check the run, or store its vectors as float32"
        )
    return values


def _next_number(parts: Sequence[Part]) -> int:
    found = [_PART_NAME.fullmatch(part.file) for part in parts]
    return 1 + max((int(match[1]) for match in found if match), default=0)


def _remove_unlisted(directory: Path, listed: set[str]) -> None:
    """Remove the parts that have been joined into another, and those that a killed process has left behind."""
    for path in directory.iterdir():
        if _PART_NAME.fullmatch(path.name) and path.name not in listed:
            path.unlink(missing_ok=True)


def _write_manifest(path: Path, description: IndexDescription, parts: Sequence[Part]) -> None:
    content = {"format": FORMAT, "version": VERSION, **asdict(description), "parts": [asdict(part) for part in parts]}
    write_json(path, content | {"checksum": manifest_checksum(content)})


def manifest_checksum(content: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over what `index.json` says, except for its checksum.

    >>> manifest_checksum({"dim": 2}) == manifest_checksum({"dim": 2, "checksum": "0"}) != manifest_checksum({"dim": 3})
    True
    """
    said = {name: value for name, value in content.items() if name != "checksum"}
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=8).hexdigest()


def _read_manifest(path: Path, *, verify: bool = True) -> tuple[IndexDescription, list[Part]]:
    content = read_json("index", path, SOURCE)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise damaged(path, f"it is not marked as {FORMAT}")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise damaged(path, "no version")
    if version != VERSION:
        raise DataError(
            f"index: expected version {VERSION} in {path}, got {str(version)[:20]}; another version of foveate wrote "
            "it: run pip install -U foveate"
        )
    if verify and content.get("checksum") != manifest_checksum(content):
        raise damaged(path, "another checksum than it was written with")
    return _parse_manifest(path, content)


def _parse_manifest(path: Path, content: Mapping[str, Any]) -> tuple[IndexDescription, list[Part]]:
    try:
        description = IndexDescription(**_typed(IndexDescription, content))
        if not isinstance(content["parts"], list):
            raise WrongType("parts that are not a list")
        parts = [Part(**_typed(Part, part)) for part in content["parts"]]
    except (TypeError, ValueError, LookupError) as error:
        raise damaged(path, str(error)) from None
    for part in parts:
        if not _PART_NAME.fullmatch(part.file) or part.rows < 1:
            raise damaged(path, f"a part called {part.file!r:.60} with {str(part.rows)[:20]} vectors")
    if len({part.file for part in parts}) < len(parts):
        raise damaged(path, "a part that is listed twice")
    return description, parts


def _typed(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass of strings and integers; raises TypeError or ValueError if one is something else."""
    found = {field.name: content[field.name] for field in fields(kind)}
    for field in fields(kind):
        expected = int if field.type == "int" else str
        value = found[field.name]
        if type(value) is not expected:
            raise WrongType(f"{field.name} = {value!r:.60}, which is not of type {expected.__name__}")
        if isinstance(value, str):
            value.encode()  # JSON can spell a lone surrogate, which could never be printed
    return found


def _writing(directory: Path) -> AbstractContextManager[None]:
    """A lock that keeps other writers out of an index."""
    return exclusive_lock("index", directory, "another program that adds to it", "wait for it")
