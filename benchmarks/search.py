"""Searching 10^4 to 2·10^6 vectors of 512 numbers: the exact index, LanceDB and faiss in one run.

    OMP_NUM_THREADS=2 python benchmarks/search.py [--sizes 10000 100000 1000000 2000000] [--directory DIR] [--save]
    ... --queries 1000000          # the seed of the queries with which the defaults of LanceIndex were chosen

Vectors imitate joint embeddings: a thousand clusters of unequal sizes in a space of 64 dimensions, embedded in 512 with
a little noise in all of them, of length one. Queries are drawn in the same way and are no vectors of the index; they
have another seed than those with which the defaults were chosen. Every row is measured in a process of its own, so that
peaks of memory do not mix:

- exact: `Index` (float16, memory-mapped); its results are the truth for all others
- lance: `LanceIndex` at its defaults (float32; every vector, HNSW or IVF-PQ by size)
- faiss: IVF-PQ with as many partitions, sub-vectors and probed partitions as LanceIndex has, re-ranked by the vectors
  themselves in float16 (`IndexRefine`), all in memory

Seconds are wall time and processor time, of both threads, of adding all vectors and of indexing them, without making
the vectors. Query times are the median over 20 single queries after 100 together, top ten. Recall@10 is the fraction
of the true ten that was found. Memory is the peak of the process beyond its start, including the pages of mapped files,
which the operating system can reclaim.
Disk is what the directory holds afterwards, and "live" what is left of it without older versions of the table. Others
is the number of cores that other programs used meanwhile, on average: wall times count where it is near zero.

With --save, rows of other sizes that were saved before are kept. The directory needs about 12 GB for two million
vectors; it is emptied after each row.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter, process_time
from typing import Any

import psutil
import torch
from measure import RESULTS, machine, save, show

from foveate.lab.search import Index, IndexDescription, LanceIndex
from foveate.lab.search import lance_index as lance

DIM, LATENT, CLUSTERS, NOISE = 512, 64, 1000, 0.25
BLOCK, TOP, QUERIES, SINGLE = 65536, 10, 100, 20
SEED = 2_000_000  # of the queries
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


def asked(seed: int) -> torch.Tensor:
    return vectors(QUERIES, seed)


class Clock:
    """Wall time and processor time of what runs inside `with clock:`, summed up."""

    def __init__(self) -> None:
        self.seconds = self.processor = 0.0

    def __enter__(self) -> None:
        self._start = perf_counter(), process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._start[0]
        self.processor += process_time() - self._start[1]


def times(adding: Clock, indexing: Clock) -> dict[str, Any]:
    return {
        "added s": adding.seconds,
        "added, processor s": adding.processor,
        "indexed s": indexing.seconds,
        "indexed, processor s": indexing.processor,
    }


def timed(search: Callable[[torch.Tensor], list[list[str]]], seed: int) -> dict[str, Any]:
    """The names that all queries find together, and the median time of a single one."""
    queries = asked(seed)
    found, clocks = search(queries), []
    for query in queries[:SINGLE]:
        clocks.append(Clock())
        with clocks[-1]:
            search(query[None])
    return {
        "query ms": 1e3 * statistics.median(clock.seconds for clock in clocks),
        "query, processor ms": 1e3 * statistics.median(clock.processor for clock in clocks),
        "found": found,
    }


def names_of(index: Index | LanceIndex, queries: torch.Tensor) -> list[list[str]]:
    return [index.names(row) for row in index.search(queries, TOP).positions.tolist()]


def exact(directory: Path, count: int, seed: int) -> dict[str, Any]:
    adding, indexing = Clock(), Clock()
    index = Index.create(directory / "exact", IndexDescription(DIM))
    for names, values in blocks(count):
        with adding:
            index.add(names, values)
    with indexing:
        index.finish()
    row = {"index": "exact", **times(adding, indexing)}
    return row | timed(lambda queries: names_of(index, queries), seed) | disk(directory)


def lance_default(directory: Path, count: int, seed: int) -> dict[str, Any]:
    adding, indexing = Clock(), Clock()
    index = LanceIndex.create(directory / "a.lance", IndexDescription(DIM, dtype="float32"))
    for names, values in blocks(count):
        with adding:
            index.add(names, values)
    with indexing:
        index.finish()
    kind = next((one.name for one in index._table.list_indices() if one.columns == ["vector"]), "every vector")
    row = {"index": f"LanceDB, {kind}", **times(adding, indexing)}
    row |= timed(lambda queries: names_of(index, queries), seed) | disk(directory)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it warns that nobody may read the table meanwhile
        index._table.optimize(cleanup_older_than=timedelta(0))
    return row | {"live MB": disk(directory)["live MB"]}


def faiss_lists(directory: Path, count: int, seed: int) -> dict[str, Any]:
    import faiss

    adding, training = Clock(), Clock()
    partitions = max(1, count // lance.PARTITION)
    metric = faiss.METRIC_INNER_PRODUCT
    coarse = faiss.IndexIVFPQ(faiss.IndexFlatIP(DIM), DIM, partitions, DIM // 4, 8, metric)
    coarse.nprobe = min(lance.PROBES, partitions)
    coarse.cp.niter, coarse.cp.max_points_per_centroid = 20, 64
    rows = faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_fp16, metric)
    index = faiss.IndexRefine(coarse, rows)
    index.k_factor = lance.REFINE
    first = next(blocks(count))[1]
    with training:
        index.train(first.numpy())
    for _, values in blocks(count):
        with adding:
            index.add(values.numpy())
    with adding:
        faiss.write_index(index, str(directory / "faiss.index"))

    def search(queries: torch.Tensor) -> list[list[str]]:
        return [[f"{n:012}.jpg" for n in row] for row in index.search(queries.numpy(), TOP)[1].tolist()]

    row = {"index": f"faiss, ivf-pq-{partitions}", **times(adding, training)}
    return row | timed(search, seed) | disk(directory)


def disk(directory: Path) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return {"disk MB": size / 1e6, "live MB": size / 1e6}


def busy() -> float:
    """Seconds that all cores have worked since the machine was started."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


def _run(way: Callable[..., dict[str, Any]], directory: Path, count: int, seed: int, pipe: Any) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    asked(seed)
    before, start, own, all_cores = psutil.Process().memory_info().rss, perf_counter(), process_time(), busy()
    row = way(directory, count, seed)
    seconds, own, all_cores = perf_counter() - start, process_time() - own, busy() - all_cores
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    others = max(0.0, all_cores - own) / seconds
    pipe.send(row | {"peak MB": (peak - before) / 1e6, "others": others})


def apart(way: Callable[..., dict[str, Any]], directory: Path, count: int, seed: int) -> dict[str, Any]:
    """The row of one index, measured in a process of its own."""
    directory.mkdir()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of faiss that wait would take time from others
    process = context.Process(target=_run, args=(way, directory, count, seed, there))
    process.start()
    there.close()
    row: dict[str, Any] = here.recv()
    process.join()
    shutil.rmtree(directory)
    return {"vectors": count, **row}


def recall(found: list[list[str]], truth: list[list[str]]) -> float:
    return sum(len(set(one) & set(right)) for one, right in zip(found, truth, strict=True)) / (TOP * len(truth))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--queries", type=int, default=SEED, metavar="SEED")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    ways = [exact] + [lance_default] * bool(find_spec("lancedb")) + [faiss_lists] * bool(find_spec("faiss"))
    rows: list[dict[str, Any]] = []
    scratch = Path(mkdtemp(dir=options.directory))
    try:
        for count in options.sizes:
            truth: list[list[str]] = []
            for way in ways:
                row = apart(way, scratch / "index", count, options.queries)
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
        where = machine(["torch", "safetensors"]) | peers | {"queries": str(options.queries)}
        kept = [row for row in saved_rows() if row["vectors"] not in options.sizes]
        save("search", where, {"growth": sorted([*kept, *rows], key=lambda row: row["vectors"])})


def saved_rows() -> list[dict[str, Any]]:
    path = RESULTS / "search.json"
    return json.loads(path.read_text()).get("growth", []) if path.exists() else []


if __name__ == "__main__":
    main()
