"""Fill an index: pictures or texts that it does not have yet are embedded and added, a few hundred at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.data.files import PICTURE_SUFFIXES, need_folder
from foveate.data.pictures import read_picture
from foveate.errors import DataError
from foveate.models import Fragments
from foveate.search.index import MANIFEST, Index, IndexDescription

SAVED = 256

Made: TypeAlias = Tensor | Fragments


class Embedder(Protocol):
    """A run with a joint space, for instance of m-DAN."""

    def embed_image(self, images: Sequence[Any]) -> Made:
        """Vectors (B, D) of pictures, paths or arrays (H, W, 3) of uint8, or one fragment of each."""
        ...

    def embed_text(self, texts: Sequence[str]) -> Made:
        """Vectors (B, D) of texts, or one fragment of each."""
        ...


@dataclass(frozen=True)
class Built:
    """An index after it was filled, how many were added, and the reasons for what could not be read, by name."""

    index: Index
    added: int
    skipped: Mapping[str, str]


def build_index(
    folder: Path | str,
    embedder: Embedder,
    items: Sequence[str],
    *,
    kind: Literal["images", "texts"] = "images",
    run: str = "",
    weights: str = "",
    dtype: Literal["float16", "float32"] | None = None,
    batch_size: int = 32,
    progress: bool = False,
) -> Built:
    """Make an index, or extend the one that is there: what it has already is passed over.

    Args:
        folder: of the index.
        embedder: makes the vectors.
        items: paths of pictures, or texts; what comes twice is taken once.
        kind, run, weights: what the vectors are, see `IndexDescription`; an index of another kind or of other weights
            is not extended but refused with DataError.
        dtype: how vectors are kept; the index's own when absent, float16 for a new one.
        batch_size: items embedded at a time. At most 256 of them are lost by a kill.
        progress: draw a bar.

    Pictures that cannot be read, texts without a word and names that are no text are left out and told in
    `Built.skipped`; if nothing is left and there is no index yet, DataError.
    """
    check_number("build_index", "batch_size", batch_size, least=1, advice="32 is a good start")
    index = Index(folder) if (Path(folder) / MANIFEST).is_file() else None
    if index is not None:
        _check_same(index, kind, weights, dtype or index.description.dtype)
    missing = [item for item in dict.fromkeys(items) if index is None or item not in index]
    skipped: dict[str, str] = {}
    added = 0
    for names, vectors in _embedded(embedder, missing, kind, batch_size, skipped, progress):
        if index is None:
            index = Index.create(folder, IndexDescription(vectors.shape[1], kind, run, weights, dtype or "float16"))
        index.add(names, vectors)
        added += len(names)
    if index is None:
        reason = next(iter(skipped.values()), "nothing to read")
        raise DataError(f"index: expected {kind} to put into {folder}, got none that can be read; {reason}")
    return Built(index, added, skipped)


def as_vectors(embedded: Made) -> Tensor:
    """What was embedded as vectors (B, D), float32 on the CPU; DataError where a thing is several vectors.

    >>> as_vectors(Fragments(torch.ones(2, 1, 4))).shape
    torch.Size([2, 4])
    """
    values = embedded.values if isinstance(embedded, Fragments) else embedded[:, None]
    if values.ndim != 3 or values.shape[1] != 1:
        raise DataError(
            f"search: expected a run that makes one vector of a picture or a text, got {tuple(values.shape[1:])}; "
            "embed with m-DAN and use SCAN or BFAN to rank again"
        )
    return values[:, 0].detach().float().cpu()


def pictures_in(folder: Path) -> list[str]:
    """The paths of the pictures of a folder and of the folders in it, in order; DataError without any."""
    folder = need_folder("index", folder, "give the folder that holds the pictures").resolve()
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix.lower() in PICTURE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    ]
    if not found:
        kinds = ", ".join(sorted(PICTURE_SUFFIXES))
        raise DataError(f"index: expected pictures ({kinds}) in {folder}, got none; check the folder")
    return [str(path) for path in found]


def texts_in(path: Path) -> list[str]:
    """The lines of a UTF-8 file that are not empty; DataError without any."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"index: expected a text file in UTF-8, got {path} ({error}); check the file") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise DataError(f"index: expected one text a line in {path}, got none; check the file")
    return found


def _embedded(
    embedder: Embedder, items: Sequence[str], kind: str, batch_size: int, skipped: dict[str, str], progress: bool
) -> Iterator[tuple[list[str], Tensor]]:
    """Names and vectors, enough at a time to be worth writing."""
    from tqdm import tqdm

    names: list[str] = []
    vectors: list[Tensor] = []
    embed = embedder.embed_image if kind == "images" else embedder.embed_text
    with tqdm(total=len(items), unit=kind.removesuffix("s"), desc="index", disable=None if progress else True) as bar:
        for batch in _batches(items, batch_size):
            for readable, made in _embed(embed, *_read(batch, kind, skipped), skipped):
                vectors.append(as_vectors(made))
                names += readable
            bar.update(len(batch))
            if len(names) >= SAVED:
                yield names, torch.cat(vectors)
                names, vectors = [], []
    if names:
        yield names, torch.cat(vectors)


def _embed(
    embed: Callable[[list[Any]], Made], names: list[str], read: list[Any], skipped: dict[str, str]
) -> Iterator[tuple[list[str], Made]]:
    """A batch embedded; where that is refused each by itself, and what is refused alone is left out and told."""
    if not names:
        return
    try:
        made = embed(read)
    except DataError as error:
        if len(names) == 1:
            skipped[names[0]] = str(error)
            return
        for name, one in zip(names, read, strict=True):
            yield from _embed(embed, [name], [one], skipped)
    else:
        yield names, made


def _read(batch: Sequence[str], kind: str, skipped: dict[str, str]) -> tuple[list[str], list[Any]]:
    """What of a batch can be read, and what it is; texts are themselves."""
    batch = [name for name in batch if _is_text(name, skipped)]
    if kind == "texts":
        return batch, list(batch)
    pictures = {name: _picture(name) for name in batch}
    skipped.update({name: str(one) for name, one in pictures.items() if isinstance(one, DataError)})
    readable = [name for name in batch if name not in skipped]
    return readable, [pictures[name] for name in readable]


def _is_text(name: str, skipped: dict[str, str]) -> bool:
    """True for a name that can be written down; old file systems have others."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="backslashreplace").decode()
        skipped[shown] = f"index: expected a name in UTF-8, got {shown}; rename it"
        return False
    return True


def _picture(path: str) -> np.ndarray | DataError:
    """The picture, or why it cannot be read."""
    try:
        return read_picture(path)
    except DataError as error:
        return error


def _batches(items: Sequence[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _check_same(index: Index, kind: str, weights: str, dtype: str) -> None:
    wanted = {"kind": kind, "weights": weights, "dtype": dtype}
    for name, value in wanted.items():
        there = getattr(index.description, name)
        if there != value:
            raise DataError(
                f"index: expected {name} = {there!r} as in {index.folder}, got {value!r}; "
                f"use the run {index.description.run!r} with the same options, or choose another folder"
            )
