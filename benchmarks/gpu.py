"""Resources of the Triton kernels for cards that are not here, and what an A100 needs at least: nothing runs on a GPU.

    python benchmarks/gpu.py --save

Every kernel is compiled ahead of time with all of its options. Bytes are those of inputs and outputs once, `L2 MB`
those that the programs read, most of them from the second cache. Operations are those of the matrix products (of the
rows: 25 per number and step), for 8 heads, 4 096 queries and keys and 64 features; the steps of Newton's iteration are
counted on random inputs. The A100 is taken at 1.555 TB/s, 312 TFLOP/s in float16, 52 in float32 (three products of
TF32), and 19.5 beside the tensor cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import machine, save, show

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from foveate.ops.kernels import gpu
from tests.ops.kernels.test_gpu import NAMES, TARGETS, compile_for, resources

HEADS, N, WIDTH, ALPHA = 8, 4096, 64, 1.5
CARDS = {("cuda", 80): "A100 (sm_80)", ("cuda", 90): "H100 (sm_90)", ("hip", "gfx942"): "MI300 (gfx942)"}
RATES = {"fp32": 52e12, "fp16": 312e12}


def newton(z: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """One step for every row, as the kernels take it."""
    gain = ALPHA - 1
    base = (1 + gain * (z - c)).clamp(min=0)
    total, slope = base.pow(1 / gain).sum(-1, keepdim=True), base.pow(1 / gain - 1).sum(-1, keepdim=True)
    step = (total.pow(gain) - 1) / gain * total.pow(1 - gain) / slope
    return torch.where(total > 1, step, 0)


def steps_of_attention(block: int, columns: int) -> float:
    """The mean number of Newton's steps of a block of rows, after the pass over blocks of keys."""
    torch.manual_seed(0)
    z = torch.randn(256, WIDTH) @ torch.randn(WIDTH, N) * WIDTH**-0.5
    c = torch.full((256, 1), -torch.inf)
    for part in z.split(columns, -1):
        c = torch.maximum(c, part.amax(-1, keepdim=True))
        for _ in range(2):
            c = c + newton(part, c)
    counts = torch.zeros(256 // block)
    going = torch.ones(256 // block, dtype=torch.bool)
    for _ in range(gpu.STEPS):
        step = newton(z, c)
        c = torch.where(going.repeat_interleave(block)[:, None], c + step, c)
        counts += going
        going &= (step > gpu.NEAR * (1 + c.abs())).view(-1, block).any(-1)
    return float(counts.mean())


def steps_of_rows() -> float:
    z = torch.randn(256, N)
    z, c = z - z.amax(-1, keepdim=True), torch.zeros(256, 1)
    count = torch.zeros(256, 1)
    for _ in range(gpu.STEPS):
        step = newton(z, c)
        c, count = c + step, count + (step > 0)
    return float(count.mean() + 1)


def work(name: str, dtype: str) -> dict[str, float]:
    """Bytes and operations of one call."""
    size = 4 if dtype == "fp32" else 2
    sizes = gpu.block_sizes(WIDTH, WIDTH, dtype != "fp32", False)
    matrix, product = HEADS * N * WIDTH * size, 2 * HEADS * N * N * WIDTH
    if name.startswith("rows"):
        numbers = HEADS * N * N
        steps = steps_of_rows() if name == "rows_forward" else 1
        each = numbers * size * (2 if name == "rows_forward" else 3)
        return {"bytes": each, "L2": each, "operations": 25.0 * steps * numbers, "steps": steps, "rate": 19.5e12}
    steps = steps_of_attention(sizes["BM"], sizes["BN"])
    products, reads, tensors = {
        "attend_forward": (steps + 3, steps + 3, 4),
        "attend_backward_query": (5, 4, 6),
        "attend_backward_key": (4, 2, 6),
    }[name]
    programs = N / (sizes["BN"] if name == "attend_backward_key" else sizes["BM"])
    found = {"bytes": tensors * matrix, "L2": reads * programs * matrix, "operations": products * product}
    return {**found, "steps": steps if name == "attend_forward" else 0.0, "rate": RATES[dtype]}


def main() -> None:
    """Compile, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write results/gpu.json")
    given = parser.parse_args()
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        os.environ |= {"TRITON_CACHE_DIR": directory, "FOVEATE_CUBIN": f"{directory}/kernel.cubin"}
        for name in NAMES:
            for dtype in RATES:
                cards = {CARDS[t]: resources(compile_for(name, *t, dtype, WIDTH), t[0]) for t in TARGETS}
                needs = work(name, dtype)
                times = {
                    "bandwidth us": 1e6 * needs["bytes"] / 1.555e12,
                    "arithmetic us": 1e6 * needs["operations"] / needs["rate"],
                }
                counted = {
                    "MB": needs["bytes"] / 1e6,
                    "L2 MB": needs["L2"] / 1e6,
                    "GFLOP": needs["operations"] / 1e9,
                    "steps": needs["steps"],
                }
                rows.append({"kernel": name, "dtype": dtype, **counted, **times, **cards})
                print(rows[-1], flush=True)
    show("gpu", [{key: value for key, value in row.items() if key not in CARDS.values()} for row in rows])
    if given.save:
        print(save("gpu", machine(["torch", "triton"]), {"kernels": rows, "cards": list(CARDS.values())}))


if __name__ == "__main__":
    main()
