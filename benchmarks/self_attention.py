"""Time of self-attention to J functions beside softmax self-attention to N tokens, one thread.

    python benchmarks/self_attention.py

Each row: N tokens, milliseconds of forward and backward of torch's multi-head attention, of `ContinuousSelfAttention`
with J functions, and the ratio.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import foveate as fv

DIM, HEADS, FUNCTIONS = 64, 4, 49
SIDES = (14, 28, 56, 112)


def milliseconds(call: Callable[[], Tensor], repeats: int = 3) -> float:
    """The shortest of a few runs of forward and backward."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call().sum().backward()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    ours = fv.ContinuousSelfAttention(DIM, HEADS, FUNCTIONS)
    print("| N | softmax, ms | functions, ms | ratio |\n|---|---|---|---|")
    for side in SIDES:
        x = torch.randn(1, side * side, DIM, requires_grad=True)
        ours(x, grid=(side, side))  # the regression matrix is kept between calls
        full = milliseconds(lambda x=x: theirs(x, x, x, need_weights=False)[0])
        few = milliseconds(lambda x=x, side=side: ours(x, grid=(side, side)).context)
        print(f"| {side * side} | {full:.1f} | {few:.1f} | {full / few:.1f} |", flush=True)


if __name__ == "__main__":
    main()
