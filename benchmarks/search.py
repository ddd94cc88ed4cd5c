"""Time and memory of searching an index: 1 000 000 vectors of 1 024 numbers, float16, memory-mapped.

    OMP_NUM_THREADS=1 python benchmarks/search.py [--vectors 1000000] [--folder DIR] [--save]

Writes an index of clustered vectors (2.1 GB for a million; give a folder with that much room; it is removed at the end)
and measures, each in a process of its own so that peaks do not mix:

- write: adding the vectors, 65 536 at a time
- exact: `Index.search`, 1, 16 and 64 queries at a time, the first ten
- naive: all vectors as one float32 matrix, one product, one topk, on `SUBSET` vectors only; and ours on the same ones,
  whose positions must be the same
- faiss: the rival's exact search over the same float16 numbers held in memory, and our `FaissIndex`, on `SUBSET`

Seconds are of the processor, of one thread. Peak memory is that of the whole process, with torch ("start MB", there
before anything is done) and with the pages of the file, which the system takes back when it needs them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import shutil
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from time import process_time
from typing import Any

import psutil
import torch
from measure import machine, save, show

from foveate.search import FaissIndex, Hits, Index, IndexDescription
from foveate.search.nearest import InMemory, nearest

DIM, BLOCK, CENTRES, TOP, SUBSET = 1024, 65536, 1000, 10, 100_000


def block(number: int, rows: int) -> torch.Tensor:
    """Vectors of length about one around a thousand centres, the same for the same number."""
    centres = torch.randn(CENTRES, DIM, generator=torch.Generator().manual_seed(0))
    g = torch.Generator().manual_seed(1 + number)
    chosen = torch.randint(CENTRES, (rows,), generator=g)
    return (centres[chosen] + 0.7 * torch.randn(rows, DIM, generator=g)) / 32


def questions(kept: torch.Tensor) -> torch.Tensor:
    """Queries near some of the vectors."""
    return kept.float() + 0.3 * torch.randn(kept.shape, generator=torch.Generator().manual_seed(5)) / 32


def write(folder: Path, vectors: int) -> dict[str, Any]:
    index = Index.create(folder, IndexDescription(DIM))
    for number, start in enumerate(range(0, vectors, BLOCK)):
        rows = min(BLOCK, vectors - start)
        index.add([f"{n:012}.jpg" for n in range(start, start + rows)], block(number, rows))
    return {"what": f"write {vectors}", "queries": 0}


def exact(folder: Path, count: int) -> dict[str, Any]:
    index = Index(folder)
    asked = questions(torch.stack([index.vector(n) for n in range(count)]))
    found, times = timed(lambda: index.search(asked, TOP))
    return {"what": f"exact, {len(index)} vectors", "queries": count, **times, "found itself": itself(found)}


def subset(folder: Path) -> torch.Tensor:
    """The first vectors of the index, as they are kept."""
    return torch.cat([values for start, values in Index(folder).blocks(BLOCK) if start < SUBSET])[:SUBSET].clone()


def naive(folder: Path, count: int) -> dict[str, Any]:
    kept = subset(folder)
    asked = questions(kept[:count])

    def search() -> Hits:
        scores, positions = (asked @ kept.float().T).topk(TOP)
        return Hits(positions, scores)

    _, times = timed(search)
    return {"what": f"naive, {len(kept)} vectors", "queries": count, **times, "same as naive": 1.0}


def ours(folder: Path, count: int) -> dict[str, Any]:
    kept = subset(folder)
    asked = questions(kept[:count])
    found, times = timed(lambda: nearest(InMemory(kept), asked, TOP))
    scores, positions = (asked @ kept.float().T).topk(TOP)
    torch.testing.assert_close(found.scores, scores)
    return {"what": f"exact, {len(kept)} vectors", "queries": count, **times, "same as naive": same(found, positions)}


def faiss_flat(folder: Path, count: int) -> dict[str, Any]:
    import faiss

    kept = subset(folder)
    asked = questions(kept[:count])
    flat = faiss.IndexScalarQuantizer(DIM, faiss.ScalarQuantizer.QT_fp16, faiss.METRIC_INNER_PRODUCT)
    flat.add(kept.float().numpy())
    found, times = timed(lambda: Hits(*map(torch.from_numpy, reversed(flat.search(asked.numpy(), TOP)))))
    return against("faiss, exact", kept, asked, found, times)


def faiss_lists(folder: Path, count: int) -> dict[str, Any]:
    kept = subset(folder)
    asked = questions(kept[:count])
    start = process_time()
    index = FaissIndex(InMemory(kept), lists=256, probes=8)
    learnt = process_time() - start
    found, times = timed(lambda: index.search(asked, TOP))
    return against(f"FaissIndex, 8 of 256 lists ({learnt:.0f} s to learn)", kept, asked, found, times)


def against(what: str, kept: torch.Tensor, asked: torch.Tensor, found: Hits, times: dict[str, float]) -> dict[str, Any]:
    positions = (asked @ kept.float().T).topk(TOP).indices
    return {"what": what, "queries": len(asked), **times, "same as naive": same(found, positions)}


def same(found: Hits, positions: torch.Tensor) -> float:
    """Share of the true first ten that was found."""
    return (found.positions[:, :, None] == positions[:, None]).any(1).float().mean().item()


def itself(found: Hits) -> float:
    """Share of the queries that find the vector they were made of first."""
    return (found.positions[:, 0] == torch.arange(len(found.positions))).float().mean().item()


def timed(search: Callable[[], Hits]) -> tuple[Hits, dict[str, float]]:
    """The result, and the seconds of the quicker of two calls after one to warm up."""
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
    """Run a function in a process of its own and add what memory it took."""
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
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    folder = Path(mkdtemp(dir=options.folder))
    try:
        whole = [apart(write, folder / "index", options.vectors)]
        size = sum(path.stat().st_size for path in (folder / "index").iterdir())
        whole += [apart(exact, folder / "index", count) for count in (1, 16, 64)]
        rivals = [naive, ours] + ([faiss_flat, faiss_lists] if find_spec("faiss") else [])
        part = [apart(rival, folder / "index", 64) for rival in rivals]
    finally:
        shutil.rmtree(folder)
    report(whole, part, f"{options.vectors} x {DIM}, {size / 1e9:.2f} GB on the disk", options.save)


def report(whole: list[dict[str, Any]], part: list[dict[str, Any]], title: str, keep: bool) -> None:
    """Print the rows, and keep them; the memory of the small ones is that of comparing them, and is left out."""
    common = ("what", "queries", "s", "ms a query")
    whole = [{name: row.get(name, "") for name in (*common, "found itself", "start MB", "peak MB")} for row in whole]
    part = [{name: row[name] for name in (*common, "same as naive")} for row in part]
    show(title, whole)
    show(f"{SUBSET} x {DIM}", part)
    if keep:
        rival = {"faiss": version("faiss-cpu") if find_spec("faiss") else "not installed"}
        save("search", machine(["torch", "safetensors"]) | rival, {"whole": whole, "part": part})


if __name__ == "__main__":
    main()
