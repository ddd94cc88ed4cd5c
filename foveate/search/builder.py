"""Build an index: images or texts that it does not contain yet are embedded and added, a few hundred at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.data.files import IMAGE_SUFFIXES, need_directory
from foveate.data.image_files import decode_image
from foveate.errors import DataError
from foveate.search.exact_index import MANIFEST, Index, IndexDescription
from foveate.search.find import Embedder, Embeddings, as_vectors

SAVE_EVERY = 256  # embeddings


@dataclass(frozen=True)
class BuildResult:
    """What `build_index` has done.

    Attributes:
        index: the index.
        added: number of vectors added to it.
        skipped: the reason for each item that could not be read, by name.
    """

    index: Index
    added: int
    skipped: Mapping[str, str]


def build_index(
    directory: Path | str,
    embedder: Embedder,
    items: Sequence[str],
    *,
    kind: Literal["images", "texts"] = "images",
    run: str = "",
    weights: str = "",
    dtype: Literal["float16", "float32"] | None = None,
    batch_size: int = 32,
    progress: bool = False,
    verify: bool = True,
) -> BuildResult:
    """Create an index, or extend an existing one by the items that it does not contain yet.

    Args:
        directory: of the index.
        embedder: computes the vectors.
        items: paths of images, or texts; duplicates are added once.
        kind, run, weights: what the vectors are, see `IndexDescription`. Raises DataError if the existing index has
            another kind or other weights.
        dtype: in which vectors are stored; that of the existing index if absent, float16 for a new one.
        batch_size: items embedded at a time. A kill loses at most 256 embeddings.
        progress: show a progress bar.
        verify: compare an existing index with its checksums, see `Index`.

    Images that cannot be read, texts without a word and names that are not valid UTF-8 are skipped and reported in
    `BuildResult.skipped`; raises DataError if nothing is left for a new index.
    """
    check_number("build_index", "batch_size", batch_size, least=1, advice="32 is a good start")
    index = Index(directory, verify=verify) if (Path(directory) / MANIFEST).is_file() else None
    if index is not None:
        _check_same(index, kind, weights, dtype or index.description.dtype)
    missing = [item for item in dict.fromkeys(items) if index is None or item not in index]
    skipped: dict[str, str] = {}
    added = 0
    for names, vectors in _embed_all(embedder, missing, kind, batch_size, skipped, progress):
        if index is None:
            index = Index.create(directory, IndexDescription(vectors.shape[1], kind, run, weights, dtype or "float16"))
        index.add(names, vectors)
        added += len(names)
    if index is None:
        reason = next(iter(skipped.values()), "the list is empty")
        raise DataError(f"index: expected {kind} to put into {directory}, got none that can be read; {reason}")
    return BuildResult(index, added, skipped)


def list_images(directory: Path) -> list[str]:
    """The sorted paths of the images in a directory and its subdirectories; raises DataError if there are none."""
    directory = need_directory("index", directory, "pass the directory that contains the images").resolve()
    found = [
        path
        for path in sorted(directory.rglob("*"))
        if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()
    ]
    if not found:
        kinds = ", ".join(sorted(IMAGE_SUFFIXES))
        raise DataError(f"index: expected images ({kinds}) in {directory}, got none; check the directory")
    return [str(path) for path in found]


def read_texts(path: Path) -> list[str]:
    """The non-empty lines of a UTF-8 file; raises DataError if there are none."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"index: expected a text file in UTF-8, got {path} ({error}); check the file") from None
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise DataError(f"index: expected one text per line in {path}, got none; check the file")
    return found


def _embed_all(
    embedder: Embedder, items: Sequence[str], kind: str, batch_size: int, skipped: dict[str, str], progress: bool
) -> Iterator[tuple[list[str], Tensor]]:
    """Names and vectors, in portions large enough to be worth a write."""
    from tqdm import tqdm

    names: list[str] = []
    vectors: list[Tensor] = []
    embed = embedder.embed_image if kind == "images" else embedder.embed_text
    with tqdm(total=len(items), unit=kind.removesuffix("s"), desc="index", disable=None if progress else True) as bar:
        for batch in _batches(items, batch_size):
            for readable, embedded in _embed(embed, *_read(batch, kind, skipped), skipped):
                vectors.append(as_vectors(embedded))
                names += readable
            bar.update(len(batch))
            if len(names) >= SAVE_EVERY:
                yield names, torch.cat(vectors)
                names, vectors = [], []
    if names:
        yield names, torch.cat(vectors)


def _embed(
    embed: Callable[[list[Any]], Embeddings], names: list[str], content: list[Any], skipped: dict[str, str]
) -> Iterator[tuple[list[str], Embeddings]]:
    """Embed a batch; if that raises DataError, embed its items one by one and skip those that raise it again."""
    if not names:
        return
    try:
        embedded = embed(content)
    except DataError as error:
        if len(names) == 1:
            skipped[names[0]] = str(error)
            return
        for name, one in zip(names, content, strict=True):
            yield from _embed(embed, [name], [one], skipped)
    else:
        yield names, embedded


def _read(batch: Sequence[str], kind: str, skipped: dict[str, str]) -> tuple[list[str], list[Any]]:
    """The readable items of a batch and their content; the content of a text is the text."""
    batch = [name for name in batch if _is_utf8(name, skipped)]
    if kind == "texts":
        return batch, list(batch)
    images = {name: _image(name) for name in batch}
    skipped.update({name: str(one) for name, one in images.items() if isinstance(one, DataError)})
    readable = [name for name in batch if name not in skipped]
    return readable, [images[name] for name in readable]


def _is_utf8(name: str, skipped: dict[str, str]) -> bool:
    """True if a name can be encoded; old file systems contain names that cannot."""
    try:
        name.encode()
    except UnicodeEncodeError:
        shown = name.encode(errors="backslashreplace").decode()
        skipped[shown] = f"index: expected a name in UTF-8, got {shown}; rename the file"
        return False
    return True


def _image(path: str) -> np.ndarray | DataError:
    """The image, or the reason why it cannot be read."""
    try:
        return decode_image(path)
    except DataError as error:
        return error


def _batches(items: Sequence[str], size: int) -> Iterator[list[str]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _check_same(index: Index, kind: str, weights: str, dtype: str) -> None:
    """Raises DataError if the index was built with other options."""
    for name, value in {"kind": kind, "weights": weights, "dtype": dtype}.items():
        own = getattr(index.description, name)
        if own != value:
            raise DataError(
                f"index: expected {name} = {own!r} as in {index.directory}, got {value!r}; "
                f"use the run {index.description.run!r} with the same options, or choose another directory"
            )
