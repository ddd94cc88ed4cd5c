"""Sparse attention over long sequences beside torch's fused softmax attention and the dense path, on one thread.

    python benchmarks/length.py --save

8 heads of 64 features in float32. Times are processor times, the least of interleaved rounds, as ratios to
`torch.nn.functional.scaled_dot_product_attention` in the same run, or to the dense path. Memory is the peak that the
operating system saw in a process of its own, less the inputs, the outputs and what the process held before.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

import torch
from measure import machine, save, show
from torch import Tensor
from torch.nn import functional as F

import foveate as fv
from foveate.attention import streaming

HEADS, WIDTH = 8, 64
SIZES = (1024, 2048, 4096, 8192, 16384)
Call = Callable[[], Any]
# name, alpha, fraction of the keys in a support (None: as random inputs have it), bars of forward and with backward
SUPPORTS = (
    ("random inputs", 1.5, None, 1.1, 0.5),
    ("2 %", 1.5, 0.02, 1.1, 0.5),
    ("20 %", 1.5, 0.2, 1.3, 1.3),
    ("20 %, alpha 1.15", 1.15, 0.2, 1.3, 1.3),
    ("100 %, alpha 1.01", 1.01, 1.0, 2.5, 2.5),
)


def inputs(N: int, heads: int = HEADS, Q: int | None = None, seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, heads, n, WIDTH, generator=generator) for n in (Q or N, N, N)]


def support(query: Tensor, key: Tensor, alpha: float) -> float:
    """The fraction of weights above zero of some queries of one head."""
    weights = fv.entmax(query[:, :1, :128] @ key[:, :1].mT * WIDTH**-0.5, alpha)
    return float((weights > 0).float().mean())


def gain_for(query: Tensor, key: Tensor, alpha: float, wanted: float | None) -> float:
    """What the queries are multiplied with to have supports of this size."""
    if wanted is None or wanted == 1:
        return 1.0
    low, high = 1e-3, 30.0
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if support(query * middle, key, alpha) > wanted else (low, middle)
    return middle


def fused(parts: Sequence[Tensor]) -> Tensor:
    return F.scaled_dot_product_attention(*parts)


def streamed(parts: Sequence[Tensor], alpha: float = 1.5) -> Tensor:
    return fv.scaled_dot_product_attention(*parts, transform="entmax", alpha=alpha)


def dense(parts: Sequence[Tensor], alpha: float = 1.5) -> Tensor:
    """The path of before: all scores at once."""
    query, key, value = parts
    return fv.entmax(query @ key.mT * WIDTH**-0.5, alpha) @ value


def both(attend: Callable[[Sequence[Tensor]], Tensor], parts: Sequence[Tensor]) -> Call:
    """Forward and backward."""
    leaves = [part.detach().clone().requires_grad_() for part in parts]
    gradient = torch.randn(*parts[0].shape[:-1], WIDTH, generator=torch.Generator().manual_seed(9))
    return lambda: torch.autograd.grad(attend(leaves), leaves, gradient)


def least(calls: Sequence[Call], rounds: int) -> list[float]:
    """The least processor time of each, in rounds that call all of them in turn."""
    times = [math.inf] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = process_time()
            call()
            times[i] = min(times[i], process_time() - start)
    return times


def row(work: str, against: str, times: Sequence[float], bar: float, **more: Any) -> dict[str, Any]:
    return {"work": work, "against": against, "ms": 1e3 * times[1], "ratio": times[1] / times[0], "bar": bar, **more}


def speed(rounds: int) -> list[dict[str, Any]]:
    """N = 4096 by support."""
    rows = []
    query, key, value = inputs(4096)
    for name, alpha, wanted, bar, bar_both in SUPPORTS:
        parts = [query * gain_for(query, key, alpha, wanted), key, value]
        found = support(parts[0], key, alpha)
        with torch.no_grad():
            times = least([lambda p=parts: fused(p), lambda p=parts, a=alpha: streamed(p, a)], rounds)
        rows.append(row(f"N = 4096, {name}, forward", "softmax", times, bar, support=found))
        ours = both(lambda p, a=alpha: streamed(p, a), parts)
        times = least([both(fused, parts), ours], max(2, rounds // 2))
        rows.append(row(f"N = 4096, {name}, with backward", "softmax", times, bar_both, support=found))
        print(rows[-2], rows[-1], flush=True)
    return rows


def small(rounds: int) -> list[dict[str, Any]]:
    """The sizes of vision transformers against the dense path, and one query against softmax."""
    rows = []
    for N in (197, 577, 1024):
        for name, wanted in (("random inputs", None), ("20 %", 0.2), ("80 %", 0.8)):
            query, key, value = inputs(N)
            parts = [query * gain_for(query, key, 1.5, wanted), key, value]
            times = least([both(dense, parts), both(streamed, parts)], 10 * rounds * 197 // N)
            work = f"N = {N}, {name}, with backward"
            rows.append(row(work, "dense path", times, 1.0, support=support(parts[0], key, 1.5)))
    parts = inputs(4096, Q=1)
    with torch.no_grad():
        times = least([lambda: fused(parts), lambda: streamed(parts)], 60 * rounds)
    rows.append(row("one query, N = 4096, forward", "softmax", times, 1.2, support=support(*parts[:2], 1.5)))
    return rows


WAYS = {"softmax": fused, "streamed": streamed, "dense path": dense}


def _status(key: str) -> float:
    """MB of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def peak(way: str, N: int, heads: int, backward: bool, wanted: float | None) -> dict[str, float]:
    """In a process of its own: MB at the peak beyond inputs and outputs, and seconds."""
    query, key, value = inputs(N, heads)
    parts = [query * gain_for(query, key, 1.5, wanted), key, value]
    gradient = torch.ones(*query.shape)
    attend = WAYS[way]

    def run(parts: Sequence[Tensor], gradient: Tensor) -> float:
        leaves = [part.requires_grad_(backward) for part in parts]
        start = process_time()
        context = attend(leaves)
        kept = torch.autograd.grad(context, leaves, gradient) if backward else (context,)
        seconds = process_time() - start
        run.outputs = sum(part.nbytes for part in (context, *kept)) / 2**20
        return seconds

    run([part[:, :, :64].clone() for part in parts], gradient[:, :, :64].clone())  # what torch makes once
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _status("VmRSS")
    seconds = run(parts, gradient)
    outputs = run.outputs if backward else query.nbytes / 2**20
    return {"MB": max(_status("VmHWM") - before - outputs, 0.0), "s": seconds}


def in_process(*arguments: Any) -> dict[str, Any]:
    """`peak` or `model_step` in a new process."""
    command = [sys.executable, __file__, "--one", json.dumps(arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def memory() -> list[dict[str, Any]]:
    """8 heads, N = 8192."""
    bars = {("streamed", False): 50, ("streamed", True): 150}
    rows = []
    for backward in (False, True):
        for way in WAYS:
            found = in_process("peak", way, 8192, HEADS, backward, 0.02)
            work = f"{way}, N = 8192, 2 %, {'with backward' if backward else 'forward'}"
            rows.append({"work": work, "MB": found.get("MB", math.nan), "bar": bars.get((way, backward), math.nan)})
            print(rows[-1], flush=True)
    return rows


def growth(rounds: int) -> list[dict[str, Any]]:
    """Forward and backward of two heads by N: seconds, the least of some processes, and MB with inputs and outputs."""
    rows = []
    for way, wanted in [*((way, 0.02) for way in WAYS), ("streamed", None)]:
        rows += grown(way, wanted, rounds)
        print(rows[-2], rows[-1], flush=True)
    return rows


def grown(way: str, wanted: float | None, rounds: int) -> list[dict[str, Any]]:
    """The rows of one way: supports of a fraction of the keys, or those of random inputs."""
    rows = []
    sizes = [N for N in SIZES if way != "dense path" or N <= 8192]
    found = {N: [in_process("peak", way, N, 2, True, wanted) for _ in range(rounds if N <= 4096 else 1)] for N in sizes}
    for unit in ("s", "MB"):
        values = {N: min(each[unit] for each in runs) for N, runs in found.items()}
        if unit == "MB":  # four inputs, four outputs
            values = {N: value + 8 * 2 * N * WIDTH * 4 / 2**20 for N, value in values.items()}
        named = {f"N = {N}": values.get(N, math.nan) for N in SIZES}
        support = "2 %" if wanted else "random inputs"
        rows.append({"way": way, "support": support, "unit": unit, **named, "exponent": exponent(values)})
    return rows


def exponent(values: dict[int, float]) -> float:
    """Of the power of N that fits best."""
    x, y = (torch.tensor([*part], dtype=torch.float64).log() for part in (values, values.values()))
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def model_step(kind: str, way: str) -> dict[str, float]:
    """One training step of a model from a configuration with 4 096 tokens: peak MB of the process, loss, seconds."""
    import transformers

    torch.manual_seed(0)
    if kind == "ViT":
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 128}
        config = transformers.ViTConfig(image_size=1024, patch_size=16, num_labels=10, **sizes)
        model = transformers.ViTForImageClassification(config)
        given = {"pixel_values": torch.randn(1, 3, 1024, 1024), "labels": torch.tensor([3])}
    else:
        sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "intermediate_size": 128}
        config = transformers.LlamaConfig(vocab_size=256, num_key_value_heads=2, max_position_embeddings=4096, **sizes)
        model = transformers.LlamaForCausalLM(config)
        ids = torch.randint(256, (1, 4096))
        given = {"input_ids": ids, "labels": ids}
    fv.hf.use(model, "entmax")
    if way == "dense path":
        streaming.ALPHAS = {}  # nothing streams
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _status("VmRSS"), process_time()
    loss = model(**given).loss
    loss.backward()
    seconds = process_time() - start
    return {"MB": _status("VmHWM"), "before": before, "loss": float(loss), "s": seconds}


def models() -> list[dict[str, Any]]:
    """A ViT and a causal language model under `fv.hf.use(model, "entmax")`."""
    rows = []
    for kind in ("ViT", "Llama"):
        for way in ("streamed", "dense path"):
            rows.append({"model": kind, "way": way, **in_process("model", kind, way)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write results/length.json")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--only", nargs="+", choices=list(TABLES), help="measure these, and keep the others as saved")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        kind, *arguments = json.loads(given.one)
        print(json.dumps({"peak": peak, "model": model_step}[kind](*arguments)))
        return
    path = Path(__file__).parent / "results" / "length.json"
    saved = json.loads(path.read_text()) if given.only and path.exists() else {}
    tables = {name: saved[name] for name in TABLES if name in saved}
    for name in given.only or TABLES:
        tables[name] = TABLES[name](given.rounds)
        show(name, tables[name])
    if given.save:
        print(save("length", {**machine(["torch"]), "load": f"{os.getloadavg()[0]:.1f}"}, tables))


TABLES: dict[str, Callable[[int], list[dict[str, Any]]]] = {
    "speed": speed,
    "small": small,
    "memory": lambda rounds: memory(),
    "growth": growth,
    "models": lambda rounds: models(),
}

if __name__ == "__main__":
    main()
