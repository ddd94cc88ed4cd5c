"""The values of single examples of an evaluation, kept so that runs can be compared example by example.

A compressed `.npz` file with the arrays `names` (M,), `ids` (n,), `clusters` (n,) and `values` (n, M) in float32, NaN
where a metric does not apply to an example; it holds no Python objects.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from foveate.errors import DataError
from foveate.io import atomic_write
from foveate.metrics.means import ExampleKey, ExampleValues

EXAMPLES = "examples.npz"


def write_examples(path: Path, values: ExampleValues) -> None:
    """Write the values of single examples atomically; nothing if there are none."""
    if not values:
        return
    keys: dict[ExampleKey, int] = {}
    for own in values.values():
        for key in own:
            keys.setdefault(key, len(keys))
    table = np.full((len(keys), len(values)), np.nan, np.float32)
    for column, own in enumerate(values.values()):
        table[[keys[key] for key in own], column] = list(own.values())
    ids, clusters = (np.array([key[side] for key in keys], dtype=np.str_) for side in (0, 1))
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, names=np.array(list(values), dtype=np.str_), ids=ids, clusters=clusters, values=table)


def read_examples(path: Path) -> ExampleValues:
    """The values that `write_examples` wrote; raises DataError for a file that is missing or damaged."""
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            names, ids, clusters, table = (file[name] for name in ("names", "ids", "clusters", "values"))
        if table.shape != (len(ids), len(names)) or len(clusters) != len(ids):
            raise ValueError(f"a table {table.shape} of {len(ids)} examples and {len(names)} metrics")
    except (OSError, EOFError, ValueError, LookupError, TypeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"examples: expected the values of single examples in {path}, got {error}; evaluate again"
        ) from None
    keys = [(str(one), str(cluster)) for one, cluster in zip(ids, clusters, strict=True)]
    return {
        str(name): {key: float(value) for key, value in zip(keys, table[:, column], strict=True) if value == value}
        for column, name in enumerate(names)
    }
