"""How time grows with the number of locations, of components and of threads, with the kernels and without.

    OMP_NUM_THREADS=1 python benchmarks/growth.py [--save]

Microseconds of processor time per example, forward and backward, float32; the exponent is the slope of a straight line
through the logarithms. `--threads` compares two threads with one by wall-clock time: only on an idle machine. `--save`
also draws docs/images/growth.png.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from measure import forward_and_backward, machine, save, seconds, show
from native import in_torch

import foveate as fv
from foveate.ops import kernels
from foveate.ops.grid import cell_centres, grid_edges

PLOT = Path(__file__).parent.parent / "docs/images/growth.png"
SIZES = (196, 784, 1764, 3136)


def by_locations(n: int) -> dict[str, Callable[[], Any]]:
    side = round(n**0.5)
    B = max(1, 12544 // n)
    z, g = torch.randn(B, n), torch.randn(B, n)
    ring = torch.stack([torch.arange(n), torch.arange(1, n + 1) % n], 1)
    edges = torch.cat([ring, torch.stack([torch.arange(n), (torch.arange(n) * 7 + 3) % n], 1)])
    grid = grid_edges(side, side)
    flat = {
        "sparsemax": fv.sparsemax,
        "entmax": fv.entmax,
        "fusedmax": fv.fusedmax,
        "tvmax": lambda v: fv.tvmax(v.reshape(B, side, side), 0.1).flatten(1),
        "gfusedmax, grid": lambda v: fv.gfusedmax(v, grid),
        "gfusedmax, any graph": lambda v: fv.gfusedmax(v, edges),
    }
    return {name: (forward_and_backward(f, z, g), B) for name, f in flat.items()}


def by_components(most: int) -> dict[str, Callable[[], Any]]:
    weights, positions = torch.softmax(2 * torch.randn(32, 196), -1), cell_centres(14, 14)
    return {"choice of K": (lambda: fv.select_mixture(weights, positions, max_components=most), 32)}


def measure(make: Callable[[int], dict[str, Any]], sizes: tuple[int, ...], axis: str) -> list[dict[str, Any]]:
    found: dict[tuple[str, str], list[float]] = {}
    for size in sizes:
        for name, (call, examples) in make(size).items():
            for how, run in (("kernels", call), ("torch", in_torch(call))):
                took = seconds(run, repeat=5, least=0.01) / examples * 1e6
                found.setdefault((name, how), []).append(took)
    rows = []
    for (name, how), times in found.items():
        slope = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
        each = {f"{axis} = {n}": t for n, t in zip(sizes, times, strict=True)}
        rows.append({"work": name, "in": how, **each, "exponent": slope})
    return rows


def by_threads() -> list[dict[str, Any]]:
    """Wall-clock time of one thread over that of two, at batch 512."""
    z, maps = torch.randn(512, 608), torch.randn(512, 14, 14)
    weights, positions = torch.softmax(2 * torch.randn(512, 196), -1), cell_centres(14, 14)
    works: dict[str, Callable[[], Any]] = {
        "entmax 1.3": lambda: fv.entmax(z, 1.3),
        "tvmax": lambda: fv.tvmax(maps, 0.1),
        "EM K = 4": lambda: fv.fit_mixture(weights, positions, 4),
        "choice of K": lambda: fv.select_mixture(weights, positions),
    }
    rows = []
    for name, work in works.items():
        best = {1: float("inf"), 2: float("inf")}
        for _ in range(15):
            for threads in best:
                torch.set_num_threads(threads)
                start = perf_counter()
                work()
                best[threads] = min(best[threads], perf_counter() - start)
        torch.set_num_threads(1)
        rows.append({"work": f"{name}, batch 512", "one ms": best[1] * 1e3, "two threads, times": best[1] / best[2]})
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    names = list(dict.fromkeys(row["work"] for row in rows))
    for row in rows:
        times = [row[f"N = {n}"] for n in SIZES]
        colour, style = f"C{names.index(row['work'])}", "-o" if row["in"] == "kernels" else "--"
        axes.loglog(SIZES, times, style, color=colour, markersize=4, label=f"{row['work']}, {row['in']}")
    axes.set(xlabel="locations per example", ylabel="µs per example, forward and backward")
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    PLOT.parent.mkdir(exist_ok=True)
    figure.savefig(PLOT, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results/growth.json and draw")
    parser.add_argument("--threads", action="store_true", help="also compare one thread with two, on an idle machine")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    locations, components = measure(by_locations, SIZES, "N"), measure(by_components, (1, 2, 4, 7), "K")
    tables = {"locations": locations, "components": components} | ({"threads": by_threads()} if options.threads else {})
    where = machine(["foveate", "torch"]) | {"kernels": str(kernels.unit())}
    for title, rows in tables.items():
        show(title, rows)
    if options.save:
        draw(locations)
        print("kept in", save("growth", where, tables))


if __name__ == "__main__":
    main()
