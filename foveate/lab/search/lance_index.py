"""An index in LanceDB: for millions of vectors, on a disk or in an object store, written by many processes at once.

`photos.lance`, `s3://bucket/photos.lance` and the like name a table of LanceDB with one row per vector:

    name     text, the key: a name is in the table once, whoever adds it
    vector   D numbers, float16 or float32
    width    of an image in pixels, or null
    height

What the vectors are (`IndexDescription`) is in the metadata of its schema. Every addition is one transaction of Lance:
a kill leaves the table as it was before or after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.lab.search.exact_index import IndexDescription, check_new
from foveate.lab.search.find import LANCE
from foveate.lab.search.nearest import Hits, check_queries
from foveate.registry import optional

FORMAT, VERSION = b"foveate-index", 1
NAMES = 1024  # looked up in one query
UNIT = "ivf-pq-l2-"  # how an index of vectors of length one is called
EXACT = 20_000  # rows up to which every vector is compared
GRAPH = 200_000  # rows up to which the graph of HNSW is built; larger tables get partitions (IVF)
PARTITION = 4096  # rows of a partition
GROWTH = 4  # times the rows of the last training, from which the partitions are trained again
PROBES, REFINE = 64, 20  # partitions that are searched, and candidates per result that are compared exactly


class LanceIndex:
    """Embeddings in a table of LanceDB; the same calls as those of `Index`.

    Any number of processes, also on several machines, may read and `add` at the same time. Nothing compares the bytes
    of the table with a checksum, which object stores and file systems such as ZFS do themselves.

    Args:
        location: path or address that ends in `.lance`. Credentials of object stores are read from the environment
            (`AWS_ACCESS_KEY_ID`, ...).
        exact: compare every vector, also if the table has an approximate index.

    Raises DataError if there is no such table or foveate did not write it, and MissingExtra without LanceDB.
    """

    def __init__(self, location: Path | str, *, exact: bool = False) -> None:
        self.location, self._exact = str(location), exact
        database, name = _split(self.location)
        with _lance_errors(self.location):
            self._table = _connect(database).open_table(name)
            self._metric = self._read_metric()
        self.description = _read_description(self.location, self._table.schema)

    @classmethod
    def create(cls, location: Path | str, description: IndexDescription) -> LanceIndex:
        """A new, empty index, or the one that another process has just created with the same description."""
        database, name = _split(str(location))
        if not cls.exists(location):
            with _lance_errors(str(location)):
                _connect(database).create_table(name, schema=_schema(description), exist_ok=True)
        index = cls(location)
        if index.description != description:
            raise DataError(
                f"index: expected no table at {location}, got one of {index.description}; choose another name"
            )
        return index

    @staticmethod
    def exists(location: Path | str) -> bool:
        """True if there is a table at a location."""
        database, name = _split(str(location))
        with _lance_errors(str(location)):
            connection = _connect(database)
            try:
                connection.open_table(name)
            except ValueError as error:
                if "not found" in str(error):
                    return False
                raise
        return True

    def __reduce__(self) -> tuple[type[LanceIndex], tuple[str]]:
        return LanceIndex, (self.location,)

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def __contains__(self, name: str) -> bool:
        return not self.missing([name])

    @property
    def dim(self) -> int:
        """Size of a vector, D."""
        return self.description.dim

    def refresh(self) -> None:
        """See what other processes have added since the index was opened."""
        self._table.checkout_latest()
        self._metric = self._read_metric()

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of the names that are not in the index."""
        found: set[str] = set()
        for start in range(0, len(names), NAMES):
            listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names[start : start + NAMES])
            rows = self._table.search().where(f"name in ({listed})").select(["name"]).limit(NAMES).to_arrow()
            found.update(rows["name"].to_pylist())
        return [name for name in names if name not in found]

    def names(self, positions: Sequence[int]) -> list[str]:
        """What the vectors at some positions stand for; positions hold until the table changes."""
        if not positions:
            return []
        rows = self._table.take_row_ids(list(positions)).select(["name"]).with_row_id().to_arrow()
        found = dict(zip(rows["_rowid"].to_pylist(), rows["name"].to_pylist(), strict=True))
        return [found[position] for position in positions]

    def sizes(self, names: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Width and height of images by name; those without a size, and texts, are left out."""
        found: dict[str, tuple[int, int]] = {}
        for start in range(0, len(names), NAMES):
            listed = ", ".join("'" + name.replace("'", "''") + "'" for name in names[start : start + NAMES])
            query = self._table.search().where(f"width is not null and name in ({listed})").limit(NAMES)
            for row in query.select(["name", "width", "height"]).to_arrow().to_pylist():
                found[row["name"]] = (row["width"], row["height"])
        return found

    def add(self, names: Sequence[str], vectors: Tensor, sizes: Sequence[tuple[int, int]] | None = None) -> int:
        """Add the vectors whose names are not in the index yet, all of them or none; return their number.

        Args:
            names: what they stand for, n different texts; those that the index has are skipped.
            vectors: (n, D); raises DataError if one is not finite in the type of the index.
            sizes: (width, height) of images.
        """
        values = check_new(self.description, names, vectors)
        if not names:
            return 0
        rows = _rows(self.description, names, values.numpy(), sizes)
        with _lance_errors(self.location):
            merged = self._table.merge_insert("name").when_not_matched_insert_all().execute(rows)
        return int(merged.num_inserted_rows)

    def finish(self) -> None:
        """Merge small files, and build or extend the index of names and, by the number of rows, that of vectors.

        Up to `EXACT` rows every vector is compared, up to `GRAPH` rows there is a graph (HNSW over 8-bit numbers), and
        larger tables have partitions, trained again when the table has grown `GROWTH`-fold. Vectors of length one are
        stored there with product quantisation (IVF-PQ), by distance, which orders them as inner products do; other
        vectors in 8-bit numbers (IVF-SQ), by inner product.
        """
        from lancedb.index import BTree

        self.refresh()
        rows = len(self)
        wanted, config = _choose(rows, self.dim, unit=self._has_unit_vectors())
        with _lance_errors(self.location):
            present = {index.name: index.columns[0] for index in self._table.list_indices()}
            if rows and "names" not in present:
                self._table.create_index("name", config=BTree(), name="names")
            old = [name for name, column in present.items() if column == "vector"]
            if wanted is not None and not any(_serves(name, wanted) for name in old):
                self._table.create_index("vector", config=config, name=wanted)
                for name in old:
                    self._table.drop_index(name)
            self._table.optimize()
            self._metric = self._read_metric()

    def search(self, queries: Tensor, top: int = 10) -> Hits:
        """The vectors with large inner products with the queries (Q, D), best first.

        `REFINE · top` candidates of an approximate index are compared with the query as stored, and scores are exact
        inner products in float32, so that what can be missed are results, not their order. Fewer than `top` results
        are returned only by a smaller index.
        """
        queries = check_queries("search", self, queries, top)
        top = min(top, len(self))
        positions = torch.zeros(len(queries), top, dtype=torch.long)
        scores = torch.zeros(len(queries), top)
        for number in range(len(queries) if top else 0):
            found = self._candidates(queries[number], top)
            values = torch.from_numpy(_vectors(found, self.dim)).float() @ queries[number]
            order = values.argsort(descending=True, stable=True)
            scores[number] = values[order]
            positions[number] = torch.from_numpy(found["_rowid"].to_numpy().astype(np.int64))[order]
        return Hits(positions, scores)

    def _candidates(self, query: Tensor, top: int) -> Any:
        """The rows that LanceDB finds for a query, with their vectors."""
        asked = self._table.search(query.numpy(), vector_column_name="vector").limit(top)
        asked = asked.select(["vector", "_rowid", "_distance"]).with_row_id(True)
        if not self._exact:
            near = asked.distance_type(self._metric).nprobes(PROBES).refine_factor(REFINE).ef(REFINE * top)
            found = near.to_arrow()
            if len(found) == top:
                return found
        return asked.distance_type("dot").bypass_vector_index().to_arrow()

    def _read_metric(self) -> str:
        """The distance that the index of vectors was made with."""
        return "l2" if any(one.name.startswith(UNIT) for one in self._table.list_indices()) else "dot"

    def _has_unit_vectors(self) -> bool:
        """True if the first vectors have length one."""
        first = _vectors(self._table.search().select(["vector"]).limit(NAMES).to_arrow(), self.dim)
        return bool((abs((first**2).sum(1) ** 0.5 - 1) < 1e-3).all())


def _choose(rows: int, dim: int, *, unit: bool) -> tuple[str | None, Any]:
    """The name and the settings of the index of vectors for a number of rows; the name tells what it was made for."""
    from lancedb.index import HnswSq, IvfPq, IvfSq

    if rows <= EXACT:
        return None, None
    if rows <= GRAPH:
        return "hnsw", HnswSq(distance_type="dot", num_partitions=1, m=16, ef_construction=128)
    shared: dict[str, Any] = {"num_partitions": rows // PARTITION, "max_iterations": 20, "sample_rate": 64}
    if not unit:
        return f"ivf-sq-dot-{rows // PARTITION}", IvfSq(distance_type="dot", **shared)
    # Four numbers per byte. LanceDB's product quantisation by inner product finds 60 % of what that by distance finds.
    pieces = max(divisor for divisor in range(1, max(1, dim // 4) + 1) if dim % divisor == 0)
    return f"{UNIT}{rows // PARTITION}", IvfPq(distance_type="l2", num_sub_vectors=pieces, **shared)


def _serves(present: str, wanted: str) -> bool:
    """True if an index of vectors is of the wanted kind and not trained on much fewer rows."""
    (kind, _, size), (other, _, rows) = present.rpartition("-"), wanted.rpartition("-")
    return present == wanted or (kind == other != "" and int(rows) < GROWTH * int(size))


def _split(location: str) -> tuple[str, str]:
    """The database and the name of the table.

    >>> _split("s3://bucket/photos.lance")
    ('s3://bucket', 'photos')
    """
    parent, _, last = location.rstrip("/").rpartition("/")
    name = last.removesuffix(LANCE)
    if not last.endswith(LANCE) or not name:
        raise DataError(f"index: expected a table such as photos{LANCE}, got {location}; add the ending")
    return parent or ("/" if location.startswith("/") else "."), name


def _connect(database: str) -> Any:
    return optional("index", "lancedb", extra="scale").connect(database)


@contextmanager
def _lance_errors(location: str) -> Iterator[None]:
    """Errors of LanceDB, which has its own classes and messages, as DataError."""
    try:
        yield
    except (ValueError, RuntimeError, OSError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"index: expected a table of LanceDB at {location}, got {error}; `foveate index` writes it"
        ) from error


def _schema(description: IndexDescription) -> Any:
    import pyarrow as pa

    kinds = {"float16": pa.float16(), "float32": pa.float32()}
    columns = [
        # As a primary key, of which Lance compares what was added meanwhile: two writers never add a name twice.
        pa.field("name", pa.string(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}),
        pa.field("vector", pa.list_(kinds[description.dtype], description.dim), nullable=False),
        pa.field("width", pa.int32()),
        pa.field("height", pa.int32()),
    ]
    return pa.schema(columns, metadata={FORMAT: json.dumps({"version": VERSION, **asdict(description)})})


def _read_description(location: str, schema: Any) -> IndexDescription:
    try:
        content = json.loads(schema.metadata[FORMAT])
        if content["version"] > VERSION:
            raise DataError(
                f"index: expected version {VERSION} or older in {location}, got {content['version']}; a newer foveate "
                "wrote it: run pip install -U foveate"
            )
        return IndexDescription(**{field.name: content[field.name] for field in fields(IndexDescription)})
    except (TypeError, ValueError, LookupError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"index: expected a table written by foveate index, got {location} without its description; "
            "choose another name"
        ) from None


def _rows(
    description: IndexDescription, names: Sequence[str], values: np.ndarray, sizes: Sequence[tuple[int, int]] | None
) -> Any:
    import pyarrow as pa

    schema = _schema(description)
    widths, heights = zip(*sizes, strict=True) if sizes else ([None] * len(names), [None] * len(names))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), description.dim)
    columns = [pa.array(names, pa.string()), vectors, pa.array(widths, pa.int32()), pa.array(heights, pa.int32())]
    return pa.table(columns, schema=schema)


def _vectors(rows: Any, dim: int) -> np.ndarray:
    flat = rows["vector"].combine_chunks().flatten()
    array: np.ndarray = flat.to_numpy(zero_copy_only=False).reshape(-1, dim)
    return array.astype(np.float32)
