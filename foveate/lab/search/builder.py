"""Build an index: images or texts that it does not contain yet are embedded and added, a few hundred at a time.

Large directories are embedded by the workers of a Ray cluster.
"""

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
from foveate.errors import DataError
from foveate.io import ProgressBar, decode_image
from foveate.lab.data.files import IMAGE_SUFFIXES, need_directory
from foveate.lab.encoders.ray_extraction import Row, run_blocks
from foveate.lab.search.exact_index import MANIFEST, Index, IndexDescription
from foveate.lab.search.find import Embedder, Embeddings, VectorIndex, as_vectors, image_of, is_lance, open_index

SAVE_EVERY = 256  # embeddings per addition
LANCE_SAVE_EVERY = 2048  # of a table of LanceDB, where each addition is a version of the table with files of its own
Sizes = list[tuple[int, int]] | None


@dataclass(frozen=True)
class BuildResult:
    """The outcome of `build_index`.

    Attributes:
        index: the index.
        added: number of vectors added to it.
        skipped: the reason for each item that could not be read, by name.
    """

    index: VectorIndex
    added: int
    skipped: Mapping[str, str]


def build_index(
    location: Path | str,
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
    finish: bool = True,
) -> BuildResult:
    """Create an index, or extend an existing one by the items that it does not contain yet.

    Args:
        location: directory of an exact index; or of a table of LanceDB, which ends in `.lance` and may be an address in
            an object store. Several processes may fill the same table, each with its own items.
        embedder: computes the vectors.
        items: paths of images, or texts; duplicates are added once.
        kind, run, weights: what the vectors are, see `IndexDescription`. Raises DataError if the existing index has
            another kind or other weights.
        dtype: in which vectors are stored; that of the existing index if absent. New ones have float16, and float32 in
            LanceDB, which trains an approximate index of float16 many times slower.
        batch_size: items embedded at a time. A kill loses at most 256 embeddings, 2 048 of a table of LanceDB.
        progress: show a progress bar.
        verify: compare an existing index with its checksums, see `Index`.
        finish: build what makes searching fast, see `LanceIndex.finish`; one of several processes does it at the end.

    Images that cannot be read, texts without a word and names that are not valid UTF-8 are skipped and reported in
    `BuildResult.skipped`; raises DataError if nothing is left for a new index.
    """
    check_number("build_index", "batch_size", batch_size, least=1, advice="32 is a good start")
    index = open_index(location, verify=verify) if index_exists(location) else None
    if index is not None:
        check_same(index, kind, weights, dtype or index.description.dtype)
    missing = list(dict.fromkeys(items)) if index is None else index.missing(list(dict.fromkeys(items)))
    skipped: dict[str, str] = {}
    added = 0
    for names, vectors, sizes in _embed_all(
        embedder, missing, kind, batch_size, skipped, progress, _save_every(location)
    ):
        if index is None:
            stored = dtype or ("float32" if is_lance(location) else "float16")
            index = create_index(location, IndexDescription(vectors.shape[1], kind, run, weights, stored))
        added += index.add(names, vectors, sizes)
    if index is None:
        reason = next(iter(skipped.values()), "the list is empty")
        raise DataError(f"index: expected {kind} to put into {location}, got none that can be read; {reason}")
    if finish:
        index.finish()
    return BuildResult(index, added, skipped)


def index_exists(location: Path | str) -> bool:
    """True if there is an index at a location."""
    if is_lance(location):
        from foveate.lab.search.lance_index import LanceIndex

        return LanceIndex.exists(location)
    return (Path(location) / MANIFEST).is_file()


def create_index(location: Path | str, description: IndexDescription) -> VectorIndex:
    """A new, empty index; of LanceDB if the location ends in `.lance`."""
    if is_lance(location):
        from foveate.lab.search.lance_index import LanceIndex

        return LanceIndex.create(location, description)
    return Index.create(location, description)


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


def list_sources(location: str) -> list[str]:
    """The names of the images in a directory, in archives or in an object store; `find.image_of` opens them."""
    from foveate.lab.data.image_sources import is_stored, stored_images

    if not is_stored(location):
        return list_images(Path(location))
    root = location if "://" in location else str(Path(location).resolve())
    base = root.rpartition("/")[0] if root.endswith(".tar") else root.rstrip("/")
    return [f"{base}/{record.id}" for record in stored_images(location)]


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


@dataclass(frozen=True)
class Items:
    """The readable items of a batch: their names, their content (that of a text is the text) and sizes of images."""

    names: list[str]
    content: list[Any]
    sizes: Sizes


def _embed_all(
    embedder: Embedder,
    items: Sequence[str],
    kind: str,
    batch_size: int,
    skipped: dict[str, str],
    progress: bool,
    save_every: int,
) -> Iterator[tuple[list[str], Tensor, Sizes]]:
    """Names, vectors and sizes, in portions large enough to be worth a write."""
    portion: list[tuple[Items, Tensor]] = []
    embed = embedder.encode_image if kind == "images" else embedder.encode_text
    with ProgressBar("index", len(items), unit=kind.removesuffix("s"), show=progress) as bar:
        for batch in split_items(items, batch_size):
            portion += embed_items(embed, read_items(batch, kind, skipped), skipped)
            bar.update(len(batch))
            if sum(len(items.names) for items, _ in portion) >= save_every:
                yield join_items(portion)
                portion = []
    if portion:
        yield join_items(portion)


def join_items(portion: Sequence[tuple[Items, Tensor]]) -> tuple[list[str], Tensor, Sizes]:
    """Names, vectors and sizes of several batches together."""
    names = [name for items, _ in portion for name in items.names]
    sizes = [size for items, _ in portion for size in items.sizes or ()]
    return names, torch.cat([vectors for _, vectors in portion]), sizes or None


def embed_items(
    embed: Callable[[list[Any]], Embeddings], items: Items, skipped: dict[str, str]
) -> list[tuple[Items, Tensor]]:
    """Embed a batch; if that raises DataError, embed its items one by one and skip those that raise it again."""
    if not items.names:
        return []
    try:
        return [(items, as_vectors(embed(items.content)))]
    except DataError as error:
        if len(items.names) == 1:
            skipped[items.names[0]] = str(error)
            return []
    single = [
        Items([name], [one], items.sizes and items.sizes[n : n + 1])
        for n, (name, one) in enumerate(zip(items.names, items.content, strict=True))
    ]
    return [found for one in single for found in embed_items(embed, one, skipped)]


def read_items(batch: Sequence[str], kind: str, skipped: dict[str, str]) -> Items:
    """The readable items of a batch."""
    batch = [name for name in batch if _is_utf8(name, skipped)]
    if kind == "texts":
        return Items(batch, list(batch), None)
    images = {name: _image(name) for name in batch}
    skipped.update({name: str(one) for name, one in images.items() if isinstance(one, DataError)})
    readable = {name: one for name, one in images.items() if isinstance(one, np.ndarray)}
    sizes = [(pixels.shape[1], pixels.shape[0]) for pixels in readable.values()]
    return Items(list(readable), list(readable.values()), sizes)


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
        found = image_of(path)
        return decode_image(found) if isinstance(found, str) else found
    except DataError as error:
        return error


def split_items(items: Sequence[str], size: int) -> Iterator[list[str]]:
    """The items in lists of at most `size`."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def _save_every(location: Path | str) -> int:
    return LANCE_SAVE_EVERY if is_lance(location) else SAVE_EVERY


def check_same(index: VectorIndex, kind: str, weights: str, dtype: str) -> None:
    """Raises DataError if the index was built with other options."""
    for name, value in {"kind": kind, "weights": weights, "dtype": dtype}.items():
        own = getattr(index.description, name)
        if own != value:
            raise DataError(
                f"index: expected {name} = {own!r} as in {index.location}, got {value!r}; "
                f"use the run {index.description.run!r} with the same options, or choose another directory"
            )


Kind = Literal["images", "texts"]
PORTIONS = 64  # at least, so that a lost node costs little
LoadEmbedder = Callable[[], tuple[Embedder, str, str]]


def build_with_ray(
    location: Path | str,
    load: LoadEmbedder,
    items: Sequence[str],
    *,
    kind: Kind = "images",
    dtype: Literal["float16", "float32"] | None = None,
    batch_size: int = 32,
    actors: int | None = None,
    progress: bool = True,
) -> BuildResult:
    """Create or extend a table of LanceDB on the cluster of Ray; see `build_index`.

    Args:
        location: of the table, where all nodes can write: an object store or a shared directory.
        load: returns the embedder, the name of its run and the digest of its weights, once per actor.
        items: paths or addresses of images that all nodes can read, or texts.
        kind, dtype, batch_size: as in `build_index`.
        actors: that embed; by default one per GPU, or per two CPUs of a cluster without GPUs.
        progress: show a progress bar.
    """
    if not is_lance(location):
        raise DataError(f"index: expected a table that actors can fill, got {location}; use a name that ends in .lance")
    where = str(location) if "://" in str(location) else str(Path(location).resolve())
    index = open_index(where) if index_exists(where) else None
    _, _, weights = load()
    if index is not None:
        check_same(index, kind, weights, dtype or index.description.dtype)
    names = list(dict.fromkeys(items))
    missing = names if index is None else index.missing(names)
    portion = max(batch_size, min(LANCE_SAVE_EVERY, len(missing) // PORTIONS))
    rows: list[Row] = [{"names": names} for names in split_items(missing, portion)]
    arguments = {
        "load": load,
        "location": where,
        "kind": kind,
        "dtype": dtype or ("float32" if index is None else index.description.dtype),
        "batch_size": batch_size,
    }
    skipped: dict[str, str] = {}
    before = 0 if index is None else len(index)
    with ProgressBar("index", len(missing), unit=kind.removesuffix("s"), show=progress) as bar:
        for row in run_blocks(rows, _pass_on, IndexWriter, arguments, actors) if rows else ():
            skipped.update(zip(map(str, row["skipped"]), map(str, row["reasons"]), strict=True))
            bar.update(int(row["count"]))
    if index is None and not index_exists(where):
        reason = next(iter(skipped.values()), "the list is empty")
        raise DataError(f"index: expected {kind} to put into {location}, got none that can be read; {reason}")
    index = open_index(where)
    index.finish()
    return BuildResult(index, len(index) - before, skipped)


def _pass_on(row: Row) -> Row:
    return row


class IndexWriter:
    """An actor: reads and embeds the items of a portion, in batches, and adds them to the table at once."""

    def __init__(
        self, load: LoadEmbedder, location: str, kind: Kind, dtype: Literal["float16", "float32"], batch_size: int
    ) -> None:
        embedder, self.run, self.weights = load()
        self.embed: Callable[[list[Any]], Any] = embedder.encode_image if kind == "images" else embedder.encode_text
        self.location, self.kind, self.dtype, self.batch_size = location, kind, dtype, batch_size
        self.index: VectorIndex | None = None

    def __call__(self, row: Row) -> Row:
        """Add one portion; report how many items it had and which were skipped."""
        names, skipped = [str(name) for name in row["names"]], dict[str, str]()
        found = [
            part
            for batch in split_items(names, self.batch_size)
            for part in embed_items(self.embed, read_items(batch, self.kind, skipped), skipped)
        ]
        if found:
            added, vectors, sizes = join_items(found)
            self._open(vectors.shape[1]).add(added, vectors, sizes)
        return {"count": len(names), "skipped": list(skipped), "reasons": list(skipped.values())}

    def _open(self, dim: int) -> VectorIndex:
        if self.index is None:
            description = IndexDescription(dim, self.kind, self.run, self.weights, self.dtype)
            self.index = open_index(self.location) if index_exists(self.location) else None
            self.index = self.index or create_index(self.location, description)
        return self.index
