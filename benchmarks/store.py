"""Random reads of the feature store: speed, comparison of layouts, and memory over an epoch.

    OMP_NUM_THREADS=1 python benchmarks/store.py [--items 100000] [--directory DIR] [--save JSON]

Writes two synthetic stores of 49 x 1280 float16, one of 4 000 images for the layouts and one of `--items` for the
epoch (125 kB per image: 12.5 GB for 100 000; pass a directory with that much space). Reads are warm, on one core.

- layouts: the same features in one HDF5 dataset, contiguous or in chunks of several sizes, and as a plain memory map
- store: `FeatureStore[position]` in random order with and without verifying checksums, and batches of 64 through
  `stack_features`
- epoch: resident memory of the process after 10 %, 50 % and 100 % of one epoch in random order
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import h5py
import numpy as np
import psutil

from foveate.lab.data.feature_store import FeatureRecord, FeatureStore, StoreDescription, stack_features
from foveate.lab.data.store_writer import write_store

LOCATIONS, DIM, SAMPLE = 49, 1280, 4000
CHUNKS = {"contiguous": None, "49 rows": 49, "64 rows": 64, "16 rows": 16, "256 rows": 256, "400 rows (1 MB)": 400}


def synthetic(path: Path, items: int) -> FeatureStore:
    values = np.random.default_rng(0).standard_normal((LOCATIONS, DIM)).astype(np.float16)
    images = (FeatureRecord(f"{n:012}", values, grid=(7, 7), size=(640, 480)) for n in range(items))
    write_store(path, images, StoreDescription("synthetic"), dim=DIM)
    return FeatureStore(path)


def rate(read: Callable[[int], object], count: int) -> float:
    """Items per second in random order, the better of two rounds after a warm-up."""
    order = np.random.default_rng(1).permutation(count).tolist()
    best = float("inf")
    for _ in range(3):
        start = perf_counter()
        for position in order:
            read(position)
        best = min(best, perf_counter() - start)
    return count / best


def layouts(directory: Path) -> dict[str, float]:
    rates, block = {}, np.random.default_rng(0).standard_normal((LOCATIONS * 100, DIM)).astype(np.float16)
    for name, rows in CHUNKS.items():
        path = directory / "layout.h5"
        with h5py.File(path, "w") as file:
            chunks = None if rows is None else (rows, DIM)
            data = file.create_dataset("x", (SAMPLE * LOCATIONS, DIM), np.float16, chunks=chunks)
            for start in range(0, len(data), len(block)):
                data[start : start + len(block)] = block
        with h5py.File(path) as file:
            data, offset = file["x"], file["x"].id.get_offset()
            rates[f"h5py {name}"] = rate(lambda n, d=data: d[n * LOCATIONS : (n + 1) * LOCATIONS], SAMPLE)
        if rows is None:
            mapped = np.memmap(path, np.float16, "r", offset, (SAMPLE * LOCATIONS, DIM))
            rates["memory map"] = rate(lambda n, m=mapped: np.array(m[n * LOCATIONS : (n + 1) * LOCATIONS]), SAMPLE)
        path.unlink()
    return rates


def batches(store: FeatureStore, size: int = 64) -> float:
    order = np.random.default_rng(2).permutation(len(store))[: len(store) // size * size].reshape(-1, size).tolist()
    start = perf_counter()
    for batch in order:
        stack_features(store[position] for position in batch)
    return len(order) * size / (perf_counter() - start)


def epoch(store: FeatureStore) -> tuple[dict[str, float], float]:
    """Resident megabytes during one epoch, and its items per second."""
    marks, process, memory = {len(store) * share // 100: share for share in (10, 50, 100)}, psutil.Process(), {}
    start = perf_counter()
    for count, position in enumerate(np.random.default_rng(3).permutation(len(store)).tolist(), 1):
        _ = store[position]
        if count in marks:
            memory[f"{marks[count]} %"] = process.memory_info().rss / 1e6
    return memory, len(store) / (perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.directory) as name:
        rows = layouts(Path(name))
        small = synthetic(Path(name, "small.h5"), SAMPLE)
        rows["store"] = rate(small.__getitem__, SAMPLE)
        rows["store, batches of 64"] = batches(small)
        unverified = FeatureStore(small.path, verify=False)
        rows["store, verify=False"] = rate(unverified.__getitem__, SAMPLE)
        rows["store, verify=False, batches of 64"] = batches(unverified)
        start = perf_counter()
        large = synthetic(Path(name, "large.h5"), options.items)
        written = perf_counter() - start
        memory, rows[f"store, epoch over {options.items}"] = epoch(large)
    for label, value in rows.items():
        print(f"{label:36} {value:10.0f} items/s")
    print(f"writing {options.items} items took {written:.0f} s")
    print("resident memory:", ", ".join(f"{value:.1f} MB after {share}" for share, value in memory.items()))
    if options.save:
        machine = {"h5py": h5py.__version__, "hdf5": h5py.version.hdf5_version, "machine": platform.machine()}
        rates = {label: round(value) for label, value in rows.items()}
        results = {"items_per_second": rates, "resident_mb": memory, "items": options.items, **machine}
        options.save.parent.mkdir(parents=True, exist_ok=True)
        options.save.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
