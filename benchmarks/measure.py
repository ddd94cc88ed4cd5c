"""Shared by all benchmarks: timing on one thread, memory, the machine, and tables to print and save."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def seconds(f: Callable[[], object], repeat: int = 15, least: float = 0.05) -> float:
    """Processor time of one call: the lower quartile over repeats, each of which lasts at least `least` seconds.

    Other programs on the machine affect the processor time of one thread less than the wall-clock time.
    """
    f()
    start = process_time()
    f()
    inner = max(1, int(least / max(process_time() - start, 1e-7)))
    times = []
    for _ in range(repeat):
        start = process_time()
        for _ in range(inner):
            f()
        times.append((process_time() - start) / inner)
    return sorted(times)[len(times) // 4]


def megabytes(f: Callable[[], object]) -> float:
    """Memory that torch allocates during one call, in MB; memory that is freed and allocated again counts twice."""
    f()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        f()
    taken = sum(event.self_cpu_memory_usage for event in profile.key_averages() if event.self_cpu_memory_usage > 0)
    return taken / 1e6


def forward_and_backward(
    f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, g: torch.Tensor
) -> Callable[[], Any]:
    """A function that computes f and its gradient once."""
    x = x.detach().clone().requires_grad_()
    return lambda: torch.autograd.grad(f(x), x, g)


def machine(packages: Sequence[str]) -> dict[str, str]:
    """The processor, the number of threads and the versions of packages."""
    found = {name: version(name) if find_spec(name) else "not installed" for name in packages}
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        ]
        model = names[0] if names else model
    return {"processor": model, "python": platform.python_version(), "threads": str(torch.get_num_threads()), **found}


def show(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table, with numbers to four digits."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for key in rows[0]:
        table.add_column(key, justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=150).print(table)


def save(name: str, where: dict[str, str], tables: dict[str, Sequence[dict[str, Any]]]) -> Path:
    """Save the rows as JSON beside the benchmarks."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": where, **tables}, indent=1) + "\n", encoding="utf-8")
    return path
