"""Time and memory of searching an index: 1 000 000 vectors of 1 024 numbers, float16, memory-mapped.

    OMP_NUM_THREADS=1 python benchmarks/search.py [--vectors 1000000] [--directory DIR] [--save]

Writes an index of clustered vectors (2.1 GB for a million; pass a directory with that much space; it is removed at the
end) and measures, each in a separate process so that peaks do not mix:

- write: adding the vectors, 65 536 at a time
- first search: opening the index and one query, with and without comparing its parts with their checksums
- exact: `Index.search` with 1, 16 and 64 queries at a time, top ten, after the parts have been verified
- naive: all vectors as one float32 matrix, one product, one topk, on `SUBSET` vectors only; and foveate on the same
  vectors, which must find the same positions
- faiss: its exact and its approximate search over the same float16 vectors in memory, on `SUBSET`

Seconds are processor time on one thread. Peak memory is that of the whole process, including torch ("start MB", before
anything is done) and the pages of the file, which the operating system can reclaim.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import process_time
from typing import Any

import psutil
import torch
from measure import machine, save, show

from foveate.search import Hits, Index, IndexDescription, nearest

DIM, BLOCK, CENTRES, TOP, SUBSET = 1024, 65536, 1000, 10, 100_000
LISTS, PROBES = 256, 8  # of the approximate search of faiss


def block(number: int, rows: int) -> torch.Tensor:
    """Vectors of length about one around a thousand centres, deterministic in the number of the block."""
    centres = torch.randn(CENTRES, DIM, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(1 + number)
    chosen = torch.randint(CENTRES, (rows,), generator=g)
    return (centres[chosen] + 0.7 * torch.randn(rows, DIM, generator=g)) / 32


def questions(kept: torch.Tensor) -> torch.Tensor:
    """Queries near some of the vectors."""
    return kept.float() + 0.3 * torch.randn(kept.shape, generator=torch.Generator().manual_seed(5)) / 32


def write(directory: Path, vectors: int) -> dict[str, Any]:
    index = Index.create(directory, IndexDescription(DIM))
    for number, start in enumerate(range(0, vectors, BLOCK)):
        rows = min(BLOCK, vectors - start)
        index.add([f"{n:012}.jpg" for n in range(start, start + rows)], block(number, rows))
    return {"what": f"write {vectors}", "queries": 0}


def first_search(directory: Path, verify: bool) -> dict[str, Any]:
    asked = questions(Index(directory, verify=False).vector(0)[None])
    found, times = timed(lambda: Index(directory, verify=verify).search(asked, TOP))
    what = f"first search, {'verified' if verify else 'not verified'}"
    return {"what": what, "queries": 1, **times, "found itself": itself(found)}


def exact(directory: Path, count: int) -> dict[str, Any]:
    index = Index(directory)
    asked = questions(torch.stack([index.vector(n) for n in range(count)]))
    found, times = timed(lambda: index.search(asked, TOP))
    return {"what": f"exact, {len(index)} vectors", "queries": count, **times, "found itself": itself(found)}


def subset(directory: Path) -> torch.Tensor:
    """The first vectors of the index, as they are stored."""
    return torch.cat([values for start, values in Index(directory).blocks(BLOCK) if start < SUBSET])[:SUBSET].clone()


def naive(directory: Path, count: int) -> dict[str, Any]:
    kept = subset(directory)
    asked = questions(kept[:count])

    def search() -> Hits:
        scores, positions = (asked @ kept.float().T).topk(TOP)
        return Hits(positions, scores)

    _, times = timed(search)
    return {"what": f"naive, {len(kept)} vectors", "queries": count, **times, "same as naive": 1.0}


class InMemory:
    """A tensor (N, D) with the interface that `nearest` expects."""

    def __init__(self, vectors: torch.Tensor) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self, rows: int) -> Iterator[tuple[int, torch.Tensor]]:
        for start in range(0, len(self), rows):
            yield start, self.vectors[start : start + rows]


def ours(directory: Path, count: int) -> dict[str, Any]:
    kept = subset(directory)
    asked = questions(kept[:count])
    found, times = timed(lambda: nearest(InMemory(kept), asked, TOP))
    scores, positions = (asked @ kept.float().T).topk(TOP)
    torch.testing.assert_close(found.scores, scores)
    return {"what": f"exact, {len(kept)} vectors", "queries": count, **times, "same as naive": same(found, positions)}


def faiss_flat(directory: Path, count: int) -> dict[str, Any]:
    import faiss

    kept = subset(directory)
    asked = questions(kept[:count])
    flat = faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    flat.add(kept.float().numpy())
    found, times = timed(lambda: Hits(*map(torch.from_numpy, reversed(flat.search(asked.numpy(), TOP)))))
    return against("faiss, exact", kept, asked, found, times)


def faiss_lists(directory: Path, count: int) -> dict[str, Any]:
    import faiss

    kept = subset(directory)
    asked = questions(kept[:count])
    start = process_time()
    centres = faiss.IndexFlatIP(DIM)
    index = faiss.IndexIVFScalarQuantizer(
        centres, DIM, LISTS, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT
    )
    index.train(kept[:: max(1, len(kept) // (64 * LISTS))].float().numpy())
    index.add(kept.float().numpy())
    index.nprobe = PROBES
    learnt = process_time() - start
    found, times = timed(lambda: Hits(*map(torch.from_numpy, reversed(index.search(asked.numpy(), TOP)))))
    return against(f"faiss, {PROBES} of {LISTS} lists ({learnt:.0f} s to train)", kept, asked, found, times)


def against(what: str, kept: torch.Tensor, asked: torch.Tensor, found: Hits, times: dict[str, float]) -> dict[str, Any]:
    positions = (asked @ kept.float().T).topk(TOP).indices
    return {"what": what, "queries": len(asked), **times, "same as naive": same(found, positions)}


def same(found: Hits, positions: torch.Tensor) -> float:
    """Fraction of the true top ten that was found."""
    return (found.positions[:, :, None] == positions[:, None]).any(1).float().mean().item()


def itself(found: Hits) -> float:
    """Fraction of the queries whose first result is the vector they were generated from."""
    return (found.positions[:, 0] == torch.arange(len(found.positions))).float().mean().item()


def timed(search: Callable[[], Hits]) -> tuple[Hits, dict[str, float]]:
    """The result, and the seconds of the faster of two calls after a warm-up."""
    found, times = search(), []
    for _ in range(2):
        start = process_time()
        found = search()
        times.append(process_time() - start)
    return found, {"s": min(times), "ms a query": 1e3 * min(times) / len(found.positions)}


def _run(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...], pipe: Any) -> None:
    torch.set_num_threads(1)
    before = psutil.Process().memory_info().rss
    start = process_time()
    row = function(*arguments)
    row.setdefault("s", process_time() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    pipe.send(row | {"start MB": before / 1e6, "peak MB": peak / 1e6})


def apart(function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run a function in a separate process and add its memory to the row."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(function, arguments, there))
    process.start()
    there.close()
    row = here.recv()
    process.join()
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    directory = Path(mkdtemp(dir=options.directory))
    try:
        whole = [apart(write, directory / "index", options.vectors)]
        size = sum(path.stat().st_size for path in (directory / "index").iterdir())
        whole += [apart(first_search, directory / "index", verify) for verify in (True, False)]
        whole += [apart(exact, directory / "index", count) for count in (1, 16, 64)]
        others = [naive, ours] + ([faiss_flat, faiss_lists] if find_spec("faiss") else [])
        part = [apart(each, directory / "index", 64) for each in others]
    finally:
        shutil.rmtree(directory)
    report(whole, part, f"{options.vectors} x {DIM}, {size / 1e9:.2f} GB on the disk", options.save)


def report(whole: list[dict[str, Any]], part: list[dict[str, Any]], title: str, keep: bool) -> None:
    """Print and save the rows; the memory of comparisons on the subset is left out."""
    common = ("what", "queries", "s", "ms a query")
    whole = [{name: row.get(name, "") for name in (*common, "found itself", "start MB", "peak MB")} for row in whole]
    part = [{name: row[name] for name in (*common, "same as naive")} for row in part]
    show(title, whole)
    show(f"{SUBSET} x {DIM}", part)
    if keep:
        peers = {"faiss": version("faiss-cpu") if find_spec("faiss") else "not installed"}
        save("search", machine(["torch", "safetensors"]) | peers, {"whole": whole, "part": part})


if __name__ == "__main__":
    main()
