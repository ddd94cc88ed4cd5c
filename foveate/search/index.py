"""The index: a folder of embeddings that grows, and that a kill, a cut or a stranger's file cannot make lie.

    index.json                    format, version, what the vectors are, and the parts in order
    vectors-000007.safetensors    a part: vectors (n, D), and what each stands for, as UTF-8 with its ends

A part is written aside, forced to the disk and renamed, and belongs to the index once `index.json`, replaced the same
way, names it: a kill leaves the old index or the new one. New vectors take in the parts before them that are not
larger, up to `FULL` vectors, so that an index made of many small additions has few parts and a vector is copied a few
times only. Nothing is executed, and nothing allocated on a file's word: safetensors compares its header with the size
of the file, and each part must have the rows, the D and the type that `index.json` says. Parts are memory-mapped.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from foveate.checks import check_floating, check_shape
from foveate.data.files import read_json
from foveate.data.writing import alone, write_json
from foveate.errors import DataError
from foveate.registry import lookup
from foveate.search.nearest import CHUNK, Hits, nearest
from foveate.search.parts import OpenPart, Part, damaged, write_part

FORMAT, VERSION, MANIFEST = "foveate-index", 1, "index.json"
FULL = 65536
SOURCE = "foveate index writes it"
DTYPES = {"float16": torch.float16, "float32": torch.float32}
KINDS = ("images", "texts")
_PART_NAME = re.compile(r"vectors-(\d{6,12})\.safetensors")


@dataclass(frozen=True)
class IndexDescription:
    """What the vectors of an index are.

    Attributes:
        dim: how many numbers a vector has, D.
        kind: what they stand for, "images" or "texts".
        run: folder or name of the run that made them, "" when unknown.
        weights: digest of the run's weights, "" when unknown.
        dtype: how they are kept, "float16" or "float32".
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
    """Embeddings in a folder, each with the name of what it stands for: a picture's path, or a text.

    Any number of processes may read an index; one at a time may `add` to it, and those that opened it before go on
    with what they saw.

    Args:
        folder: that `Index.create` made.

    A missing, damaged, foreign or newer index raises DataError.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     index = Index.create(Path(folder, "index"), IndexDescription(dim=2))
    ...     index.add(["a.jpg", "b.jpg"], torch.eye(2))
    ...     found = Index(Path(folder, "index")).search(torch.tensor([[0.0, 1.0]]), top=1)
    ...     index.name(int(found.positions[0, 0]))
    'b.jpg'
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise DataError(f"index: expected the folder of an index, got {self.folder} without {MANIFEST}; {SOURCE}")
        self.description, parts = _read_manifest(self.folder / MANIFEST)
        self._parts = [self._open(part) for part in parts]

    @classmethod
    def create(cls, folder: Path | str, description: IndexDescription) -> Index:
        """A new, empty index; DataError when the folder holds something else."""
        folder = Path(folder)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataError(f"index: expected a new or empty folder, got {folder}; choose another name")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"index: expected to make the folder {folder}, got {error}; choose another") from None
        _write_manifest(folder / MANIFEST, description, [])
        return cls(folder)

    def __reduce__(self) -> tuple[type[Index], tuple[Path]]:
        return Index, (self.folder,)

    def __len__(self) -> int:
        return self._starts[-1]

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return self.description.dim

    def name(self, position: int) -> str:
        """What the vector at a position stands for."""
        part, row = self._place(position)
        return part.name(row)

    def vector(self, position: int) -> Tensor:
        """The vector (D,) at a position, as float32."""
        part, row = self._place(position)
        return part.vectors[row].float()

    def blocks(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        """The vectors in order, at most `rows` at a time, each block with the position of its first."""
        for start, part in zip(self._starts, self._parts, strict=False):
            for row in range(0, len(part), rows):
                yield start + row, part.vectors[row : row + rows]

    def search(self, queries: Tensor, top: int = 10, *, chunk: int = CHUNK) -> Hits:
        """The vectors with the largest inner products with the queries (Q, D), exactly; see `nearest`."""
        return nearest(self, queries, top, chunk=chunk)

    def verify(self) -> None:
        """Read everything and compare it with the checksums; damage raises DataError."""
        for part in self._parts:
            part.verify()

    def add(self, names: Sequence[str], vectors: Tensor) -> None:
        """Append vectors; on the disk all of them or none.

        Args:
            names: what they stand for, n different texts that the index does not have yet.
            vectors: (n, D); one that is not finite in the type of the index raises DataError.

        An index that another program has changed since it was opened raises DataError.
        """
        values = self._check_new(names, vectors)
        if not names:
            return
        with _writing(self.folder):
            old = [part.part for part in self._parts]
            if _read_manifest(self.folder / MANIFEST) != (self.description, old):
                raise DataError(
                    f"index: expected {self.folder} as it was opened, got one that has changed since; "
                    "another program adds to it: start again when it is done"
                )
            taken = _taken_in([part.rows for part in old], len(names))
            kept, absorbed = old[: len(old) - taken], self._parts[len(old) - taken :]
            for part in absorbed:
                part.verify()
            path = self.folder / f"vectors-{_next_number(old):06}.safetensors"
            before = [name for part in absorbed for name in part.all_names()]
            new = write_part(path, torch.cat([*(p.vectors for p in absorbed), values]), [*before, *names])
            _write_manifest(self.folder / MANIFEST, self.description, [*kept, new])
            self._parts = [*self._parts[: len(kept)], self._open(new)]
            self.__dict__.pop("_starts", None)
            self._known.update(names)
            _remove_others(self.folder, {part.file for part in [*kept, new]})

    @cached_property
    def _starts(self) -> list[int]:
        """The position of each part's first vector, and the number of all."""
        return [0, *accumulate(len(part) for part in self._parts)]

    @cached_property
    def _known(self) -> set[str]:
        return {name for part in self._parts for name in part.all_names()}

    def _open(self, part: Part) -> OpenPart:
        return OpenPart(self.folder, part, self.dim, DTYPES[self.description.dtype])

    def _place(self, position: int) -> tuple[OpenPart, int]:
        if not 0 <= position < len(self):
            raise IndexError(f"Index: expected a position from 0 to {len(self) - 1}, got {position}; see len(index)")
        number = bisect_right(self._starts, position) - 1
        return self._parts[number], position - self._starts[number]

    def _check_new(self, names: Sequence[str], vectors: Tensor) -> Tensor:
        """The vectors in the type of the index, or an error."""
        check_floating("Index.add", "vectors", vectors)
        check_shape("Index.add", "vectors", vectors, (len(names), self.dim), "(n, D)")
        seen: set[str] = set()
        for name in names:
            if name in self._known or name in seen:
                raise DataError(f"Index.add: expected new names, got {name!r} again; leave out what is there already")
            seen.add(name)
        values = vectors.detach().cpu().to(DTYPES[self.description.dtype])
        finite = values.isfinite().all(-1)
        if not bool(finite.all()):
            bad = names[int((~finite).nonzero()[0])]
            raise DataError(
                f"Index.add: expected vectors that are finite as {self.description.dtype}, got another for {bad!r}; "
                "look at the run, or keep its vectors as float32"
            )
        return values


def _taken_in(rows: Sequence[int], new: int) -> int:
    """How many of the last parts the next one takes in."""
    taken = 0
    for count in reversed(rows):
        if count > new or count + new > FULL:
            break
        new, taken = new + count, taken + 1
    return taken


def _next_number(parts: Sequence[Part]) -> int:
    found = [_PART_NAME.fullmatch(part.file) for part in parts]
    return 1 + max((int(match[1]) for match in found if match), default=0)


def _remove_others(folder: Path, named: set[str]) -> None:
    """Remove the parts that have been taken in, and what a kill left."""
    for path in folder.iterdir():
        if _PART_NAME.fullmatch(path.name) and path.name not in named:
            path.unlink(missing_ok=True)


def _write_manifest(path: Path, description: IndexDescription, parts: Sequence[Part]) -> None:
    content = {"format": FORMAT, "version": VERSION, **asdict(description), "parts": [asdict(part) for part in parts]}
    write_json(path, content)


def _read_manifest(path: Path) -> tuple[IndexDescription, list[Part]]:
    content = read_json("index", path, SOURCE)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise damaged(path, f"no {FORMAT} mark")
    if not isinstance(content.get("version"), int) or content["version"] > VERSION:
        raise DataError(
            f"index: expected version {VERSION} or older in {path}, got {content.get('version')}; a newer foveate "
            "wrote it: run pip install -U foveate"
        )
    try:
        description = IndexDescription(**_typed(IndexDescription, content))
        parts = [Part(**_typed(Part, part)) for part in content["parts"]]
    except (KeyError, TypeError, LookupError) as error:
        raise damaged(path, str(error)) from None
    for part in parts:
        if not _PART_NAME.fullmatch(part.file) or part.rows < 1:
            raise damaged(path, f"a part called {part.file!r} with {part.rows} vectors")
    if len({part.file for part in parts}) < len(parts):
        raise damaged(path, "a part that is named twice")
    return description, parts


def _typed(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass of texts and integers, or TypeError."""
    found = {field.name: content[field.name] for field in fields(kind)}
    for field in fields(kind):
        wanted = int if field.type == "int" else str
        if type(found[field.name]) is not wanted:
            raise TypeError(f"{field.name} = {found[field.name]!r:.60}, which is no {wanted.__name__}")
    return found


def _writing(folder: Path) -> AbstractContextManager[None]:
    """Keep other writers out of an index."""
    return alone("index", folder, "another program that adds to it", "wait for it")
