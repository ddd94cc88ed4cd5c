"""Every row of the speed table: ours with the kernels and in torch, peers from PyPI and torch, in one run, one thread.

    OMP_NUM_THREADS=1 python benchmarks/native.py [--save] [--only tvmax]

Processor time, medians of 11 interleaved rounds, float32. A row says what was reached and the bar: a ratio to
`torch.softmax` (or to torch's softmax attention, or `nn.MultiheadAttention`) in the same run, or microseconds per
example. "softmaxes" is the same call in units of `torch.softmax` on 512 x 608 scores, for `benchmarks/guard.py`.
The kernels are switched off inside the process for "in torch"; peers: `entmax`, and copt's 2-D prox for TVmax.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from statistics import median
from time import process_time
from typing import Any

import torch
from measure import forward_and_backward, machine, save, show
from torch import Tensor, nn
from transforms import maps, peer_tv

import foveate as fv
from foveate.ops import kernels
from foveate.ops.grid import cell_centres
from foveate.ops.mixture_fit import fit_mixture, select_mixture

Call = Callable[[], object]
ROUNDS, LEAST = 11, 0.004


def in_torch(f: Call) -> Call:
    """The same call with the kernels switched off."""

    def run() -> object:
        module, kernels._module = kernels._module, None
        try:
            return f()
        finally:
            kernels._module = module

    return run


def interleaved(calls: dict[str, Call]) -> dict[str, float]:
    """Seconds of processor time per call, the median of rounds in which every call has its turn."""
    inner, times = {}, {name: [] for name in calls}
    for name, f in calls.items():
        f()
        start = process_time()
        f()
        inner[name] = max(1, math.ceil(LEAST / max(process_time() - start, 1e-7)))
    for _ in range(ROUNDS):
        for name, f in calls.items():
            start = process_time()
            for _ in range(inner[name]):
                f()
            times[name].append((process_time() - start) / inner[name])
    return {name: median(values) for name, values in times.items()}


def row(work: str, ours: Call, bar: float, base: Call | None = None, each: int = 1, peer: Call | None = None) -> Any:
    """One row of the table, measured later: `base` makes it a ratio, otherwise microseconds per example of `each`."""
    z = torch.randn(512, 608)
    calls = {"ours": ours, "torch": in_torch(ours), "softmax": lambda: soft(z)}
    calls |= {} if base is None else {"base": base}
    calls |= {} if peer is None else {"peer": peer}

    def measure() -> dict[str, Any]:
        seconds = interleaved(calls)
        unit = 1e-6 * each if base is None else seconds["base"]
        reached = seconds["ours"] / unit
        return {
            "work": work,
            "unit": "us" if base is None else "x",
            "ours": reached,
            "in torch": seconds["torch"] / unit,
            "peer": seconds["peer"] / unit if peer else float("nan"),
            "bar": float(bar),
            "softmaxes": seconds["ours"] / seconds["softmax"],
            "": "reached" if reached <= bar else "short",
        }

    measure.work = work  # type: ignore[attr-defined]
    return measure


def soft(z: Tensor) -> Tensor:
    return torch.softmax(z, -1)


def simplex() -> list[Any]:
    import entmax as peer

    pairs = [
        ("sparsemax", fv.sparsemax, lambda z: peer.sparsemax(z, dim=-1), (1.8, 4.0)),
        ("1.5-entmax", fv.entmax, lambda z: peer.entmax15(z, dim=-1), (2.5, 4.0)),
        ("entmax 1.3", lambda z: fv.entmax(z, 1.3), lambda z: peer.entmax_bisect(z, alpha=1.3, dim=-1), (20.0, 20.0)),
    ]
    rows = []
    for at, shape in enumerate(((512, 608), (64, 196))):
        z, g = torch.randn(shape), torch.randn(shape)
        for name, ours, theirs, bars in pairs:
            size = f"{shape[0]}x{shape[1]}"
            rows.append(
                row(
                    f"{name} {size}, forward",
                    lambda f=ours, z=z: f(z),
                    bars[at],
                    lambda z=z: soft(z),
                    peer=lambda f=theirs, z=z: f(z),
                )
            )
            both = [forward_and_backward(f, z, g) for f in (ours, soft, theirs)]
            rows.append(row(f"{name} {size}, with backward", both[0], bars[at], both[1], peer=both[2]))
    z = torch.randn(1, 196)
    for name, ours, theirs, _ in pairs:
        rows.append(row(f"{name}, one row of 196", lambda f=ours: f(z), 25, peer=lambda f=theirs: f(z)))
    return rows


def structured() -> list[Any]:
    bars = {
        (14, "noise", 0.01): 25,
        (14, "noise", 0.1): 30,
        (14, "bumps", 0.01): 30,
        (14, "bumps", 0.1): 70,
        (19, "noise", 0.1): 80,
        (19, "bumps", 0.1): 350,
    }
    rows = []
    for (H, kind, smoothness), bar in bars.items():
        W = 14 if H == 14 else 32
        z, g = maps(kind, 64, H, W), torch.randn(64, H, W)
        both = forward_and_backward(lambda v, s=smoothness: fv.tvmax(v, s), z, g)
        few = lambda z=z, s=smoothness: [peer_tv(z[:8], s) for _ in range(8)]  # noqa: E731
        rows.append(row(f"TVmax {H}x{W} {kind} {smoothness}, with backward", both, bar, each=64, peer=few))
    one = maps("noise", 1, 14, 14)
    rows.append(row("TVmax, one 14x14 map, a call", lambda: fv.tvmax(one, 0.01), 80, peer=lambda: peer_tv(one, 0.01)))
    for n, bar in ((64, 8), (608, 30), (3136, 160)):
        z, g = torch.randn(64, n), torch.randn(64, n)
        rows.append(row(f"fusedmax {n}, with backward", forward_and_backward(fv.fusedmax, z, g), bar, each=64))
    return rows


def continuous() -> list[Any]:
    weights, positions = torch.softmax(2 * torch.randn(64, 196), -1).requires_grad_(), cell_centres(14, 14)
    basis, g = fv.GaussianBasis.grid(100), torch.randn(64, 100)

    def expect() -> object:
        density = fv.TruncatedParaboloid.from_weights(weights, positions)
        return torch.autograd.grad(density.expect(basis), weights, g)

    return [row("continuous sparsemax, 100 functions, with backward", expect, 45, each=64)]


def mixtures() -> list[Any]:
    weights, positions = torch.softmax(2 * torch.randn(64, 196), -1), cell_centres(14, 14)
    scores = (2 * torch.randn(64, 196)).requires_grad_()

    def with_backward() -> object:
        fit = fit_mixture(torch.softmax(scores, -1), positions, 4)
        value = fit.weights.square().sum() + fit.components.mean.sum() + fit.components.covariance.sum()
        return torch.autograd.grad(value, scores)

    return [
        row("EM K = 4, forward", lambda: fit_mixture(weights, positions, 4), 25, each=64),
        row("EM K = 4, with backward", with_backward, 50, each=64),
        row("choice of K <= 4, 3 restarts, forward", lambda: select_mixture(weights, positions), 110, each=64),
    ]


def whole() -> list[Any]:
    B, N, D = 64, 196, 512
    scores, values, g = 2 * torch.randn(B, N), torch.randn(B, N, D), torch.randn(B, D)

    def read(s: Tensor, v: Tensor) -> Tensor:
        return (torch.softmax(s, -1)[:, None] @ v)[:, 0]

    def train(f: Callable[[Tensor, Tensor], Tensor]) -> Call:
        s, v = scores.clone().requires_grad_(), values.clone().requires_grad_()
        return lambda: torch.autograd.grad(f(s, v), (s, v), g)

    bars = {
        "tvmax": (1.3, 1.3),
        "continuous-softmax": (2, 1.7),
        "continuous-sparsemax": (3, 2),
        "k-mca": (3, 2.5),
        "multimodal": (5, 3),
    }
    rows = []
    for name, (least, most) in bars.items():
        still, moving = fv.mechanism(name).eval(), fv.mechanism(name).train()

        def evaluate(attend: nn.Module = still) -> Tensor:
            with torch.inference_mode():
                return attend(scores, values, grid=(14, 14)).context

        rows.append(row(f"attention {name}, eval", evaluate, least, lambda: read(scores, values)))
        step = train(lambda s, v, attend=moving: attend(s, v, grid=(14, 14)).context)
        rows.append(row(f"attention {name}, train", step, most, train(read)))
    attend = fv.mechanism("multimodal").eval()

    def one() -> object:
        with torch.inference_mode():
            return attend(scores[:1], values[:1], grid=(14, 14))

    rows.append(row("multimodal, one map, a call", one, 600))
    return rows


def heads() -> list[Any]:
    x, g = torch.randn(8, 196, 256), torch.randn(8, 196, 256)
    theirs = nn.MultiheadAttention(256, 8, batch_first=True)
    base = forward_and_backward(lambda v: theirs(v, v, v, need_weights=True, average_attn_weights=False)[0], x, g)
    rows = []
    for name, options, bar in (("sparsemax", {}, 1.1), ("entmax", {}, 1.15), ("entmax", {"alpha": 1.3}, 1.6)):
        ours = fv.MultiheadAttention(256, 8, transform=name, **options)
        both = forward_and_backward(lambda v, attend=ours: attend(v, v).context, x, g)
        label = f"8 heads, 196 x 196, {name} {options.get('alpha', '')}".strip()
        rows.append(row(label, both, bar, base))
    return rows


GROUPS = (simplex, structured, continuous, mixtures, whole, heads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results/native.json")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = machine(["foveate", "torch", "entmax", "copt"]) | {"kernels": str(kernels.unit())}
    rows = [measure() for group in GROUPS for measure in group() if options.only in measure.work]
    show(f"one thread, float32, kernels: {where['kernels']}, {where['processor']}", rows)
    if options.save:
        print("kept in", save("native", where, {"speed": rows}))


if __name__ == "__main__":
    main()
