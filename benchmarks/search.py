"""Searching 10^4 to 2·10^6 vectors of 512 numbers: the exact index, LanceDB and faiss in one run.

    OMP_NUM_THREADS=2 python benchmarks/search.py [--sizes 10000 100000 1000000 2000000] [--directory DIR] [--save]

Vectors imitate joint embeddings: a thousand clusters of unequal sizes in a space of 64 dimensions, embedded in 512 with
a little noise in all of them, of length one. Queries are drawn in the same way and are no vectors of the index. Every
row is measured in a process of its own, so that peaks of memory do not mix:

- exact: `Index` (float16, memory-mapped); its results are the truth for all others
- lance: `LanceIndex` at its defaults (float32; every vector, HNSW or IVF-PQ by size)
- faiss: IVF-PQ with as many partitions, sub-vectors and probed partitions as LanceIndex has, re-ranked by the vectors
  themselves in float16 (`IndexRefine`), all in memory

Build seconds are wall time of adding all vectors and of indexing them. Query times are the median over 20 single
queries after 100 together, top ten. Recall@10 is the fraction of the true ten that was found. Memory is the peak of the
process beyond its start, including the pages of mapped files, which the operating system can reclaim.

The directory needs about 12 GB for two million vectors; it is emptied after each size.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import shutil
import statistics
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import psutil
import torch
from measure import machine, save, show

from foveate.search import Index, IndexDescription, LanceIndex
from foveate.search import lance_index as lance

DIM, LATENT, CLUSTERS, NOISE = 512, 64, 1000, 0.25
BLOCK, TOP, QUERIES, SINGLE = 65536, 10, 100, 20
SIZES = (10_000, 100_000, 1_000_000, 2_000_000)


def vectors(rows: int, seed: int) -> torch.Tensor:
    """Vectors (rows, DIM) of length one, deterministic in the seed."""
    world = torch.Generator().manual_seed(0)
    centres = torch.randn(CLUSTERS, LATENT, generator=world)
    directions = torch.randn(LATENT, DIM, generator=world) / LATENT**0.5
    weights = 1.0 / torch.arange(1, CLUSTERS + 1)
    g = torch.Generator().manual_seed(seed)
    chosen = torch.multinomial(weights, rows, replacement=True, generator=g)
    latent = centres[chosen] + 0.7 * torch.randn(rows, LATENT, generator=g)
    return torch.nn.functional.normalize(latent @ directions + NOISE * torch.randn(rows, DIM, generator=g), dim=1)


def blocks(count: int) -> Iterator[tuple[list[str], torch.Tensor]]:
    for number, start in enumerate(range(0, count, BLOCK)):
        rows = min(BLOCK, count - start)
        yield [f"{n:012}.jpg" for n in range(start, start + rows)], vectors(rows, 1 + number)


def asked() -> torch.Tensor:
    return vectors(QUERIES, 10**6)


def timed(search: Callable[[torch.Tensor], list[list[str]]]) -> tuple[list[list[str]], float]:
    """The names that all queries find together, and the median time of a single one."""
    queries = asked()
    found, times = search(queries), []
    for query in queries[:SINGLE]:
        start = perf_counter()
        search(query[None])
        times.append(perf_counter() - start)
    return found, statistics.median(times)


def names_of(index: Index | LanceIndex, queries: torch.Tensor) -> list[list[str]]:
    return [index.names(row) for row in index.search(queries, TOP).positions.tolist()]


def exact(directory: Path, count: int) -> dict[str, Any]:
    start = perf_counter()
    index = Index.create(directory / "exact", IndexDescription(DIM))
    for names, values in blocks(count):
        index.add(names, values)
    built = perf_counter() - start
    found, query = timed(lambda queries: names_of(index, queries))
    return {"what": "exact", "added s": built, "indexed s": 0.0, "query ms": 1e3 * query, "found": found}


def lance_default(directory: Path, count: int) -> dict[str, Any]:
    start = perf_counter()
    index = LanceIndex.create(directory / "a.lance", IndexDescription(DIM, dtype="float32"))
    for names, values in blocks(count):
        index.add(names, values)
    built = perf_counter() - start
    index.finish()
    indexed = perf_counter() - start - built
    found, query = timed(lambda queries: names_of(index, queries))
    kind = next((one.name for one in index._table.list_indices() if one.columns == ["vector"]), "every vector")
    return {
        "what": f"lance, {kind}",
        "added s": built,
        "indexed s": indexed,
        "query ms": 1e3 * query,
        "found": found,
    }


def faiss_lists(directory: Path, count: int) -> dict[str, Any]:
    import faiss

    partitions = max(1, count // lance.PARTITION)
    start = perf_counter()
    metric = faiss.METRIC_INNER_PRODUCT
    coarse = faiss.IndexIVFPQ(faiss.IndexFlatIP(DIM), DIM, partitions, DIM // 4, 8, metric)
    coarse.nprobe = min(lance.PROBES, partitions)
    coarse.cp.niter, coarse.cp.max_points_per_centroid = 20, 64
    rows = faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_fp16, metric)
    index = faiss.IndexRefine(coarse, rows)
    index.k_factor = lance.REFINE
    first = next(blocks(count))[1]
    index.train(first.numpy())
    trained = perf_counter() - start
    for _, values in blocks(count):
        index.add(values.numpy())
    built = perf_counter() - start - trained
    faiss.write_index(index, str(directory / "faiss.index"))
    found, query = timed(
        lambda queries: [[f"{n:012}.jpg" for n in row] for row in index.search(queries.numpy(), TOP)[1].tolist()]
    )
    return {
        "what": f"faiss, IVF-PQ {partitions}",
        "added s": built,
        "indexed s": trained,
        "query ms": 1e3 * query,
        "found": found,
    }


def _run(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], pipe: Any) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    asked()
    before = psutil.Process().memory_info().rss
    row = function(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipe.send(row | {"peak MB": (peak - before) / 1e6})


def apart(function: Callable[..., dict[str, Any]], directory: Path, count: int) -> dict[str, Any]:
    """Run a function in a separate process, and add its memory and what it left on the disk to the row."""
    directory.mkdir()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(function, (directory, count), there))
    process.start()
    there.close()
    row: dict[str, Any] = here.recv()
    process.join()
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    shutil.rmtree(directory)
    return {"vectors": count, **row, "disk MB": size / 1e6}


def recall(found: list[list[str]], truth: list[list[str]]) -> float:
    return sum(len(set(one) & set(right)) for one, right in zip(found, truth, strict=True)) / (TOP * len(truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    ways = [exact] + [lance_default] * bool(find_spec("lancedb")) + [faiss_lists] * bool(find_spec("faiss"))
    rows: list[dict[str, Any]] = []
    scratch = Path(mkdtemp(dir=options.directory))
    try:
        for count in options.sizes:
            truth: list[list[str]] = []
            for way in ways:
                row = apart(way, scratch / "index", count)
                found = row.pop("found")
                truth = truth or found
                row["recall@10"] = recall(found, truth)
                print(row, flush=True)
                rows.append(row)
    finally:
        shutil.rmtree(scratch)
    show(f"vectors of {DIM}, {options.sizes}", rows)
    if options.save:
        peers = {name: version(name) for name in ("lancedb", "faiss-cpu") if find_spec(name.removesuffix("-cpu"))}
        save("search", machine(["torch", "safetensors"]) | peers, {"growth": rows})


if __name__ == "__main__":
    main()
