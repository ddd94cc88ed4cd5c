"""Build an index on a cluster: Ray Data streams names to actors that read, embed and add to a table of LanceDB.

An addition skips names that the table has, so that a batch that Ray repeats after a node was lost adds nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from foveate.errors import DataError
from foveate.io import ProgressBar
from foveate.lab.encoders.ray_extraction import Row, run_blocks
from foveate.lab.search.builder import (
    LANCE_SAVE_EVERY,
    BuildResult,
    check_same,
    create_index,
    embed_items,
    index_exists,
    join_items,
    read_items,
    split_items,
)
from foveate.lab.search.exact_index import IndexDescription
from foveate.lab.search.find import Embedder, VectorIndex, is_lance, open_index

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
