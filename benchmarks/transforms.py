"""Value, gradient, time and memory of the discrete transforms, beside `entmax` and `copt` from PyPI, on one thread.

make bench          or: python benchmarks/transforms.py [--save]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import entmax as peer
import numpy as np
import torch
from copt.tv_prox import prox_tv2d as peer_prox
from measure import forward_and_backward, machine, megabytes, save, seconds, show

import foveate as fv

EXACT = torch.float64


def relative(a: torch.Tensor, b: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """Largest L2 error of a row relative to the row itself, or to the row of `scale`."""
    size = (b if scale is None else scale).double().flatten(1).norm(dim=1)
    return float(((a.double() - b).flatten(1).norm(dim=1) / size).max())


def simplex_rows() -> list[dict]:
    """Sparsemax and 1.5-entmax of foveate and of entmax, compared with float64."""
    pairs: list[tuple[str, Callable, Callable | None]] = [
        ("sparsemax", fv.sparsemax, lambda z: peer.sparsemax(z, dim=-1)),
        ("entmax 1.5", fv.entmax, lambda z: peer.entmax15(z, dim=-1)),
        ("entmax 1.3", lambda z: fv.entmax(z, 1.3), lambda z: peer.entmax_bisect(z, alpha=1.3, dim=-1)),
        ("softmax", fv.softmax, lambda z: torch.softmax(z, -1)),
    ]
    rows = []
    for count in (64, 512):
        for size in (64, 196, 608):
            z, g = torch.randn(count, size), torch.randn(count, size)
            for name, ours, theirs in pairs:
                exact = z.to(EXACT).requires_grad_()
                value = ours(exact)
                (gradient,) = torch.autograd.grad(value, exact, g.to(EXACT))
                base: dict[str, float] = {}
                for who, f in (("foveate", ours), ("torch" if name == "softmax" else "entmax", theirs)):
                    both = forward_and_backward(f, z, g)
                    forward, total = seconds(lambda f=f, z=z: f(z)), seconds(both)
                    base.setdefault("forward", forward)
                    base.setdefault("total", total)
                    rows.append(
                        {
                            "transform": name,
                            "rows": count,
                            "scores": size,
                            "who": who,
                            "value error": relative(f(z), value.detach()),
                            "gradient error": relative(both()[0], gradient, g),
                            "forward ms": forward * 1e3,
                            "with backward ms": total * 1e3,
                            "MB": megabytes(both),
                            "ours is faster, forward": forward / base["forward"],
                            "with backward": total / base["total"],
                        }
                    )
    return rows


def maps(kind: str, B: int, H: int, W: int) -> torch.Tensor:
    """Score maps: independent noise, or two bumps with a little noise, similar to those of a trained model."""
    noise = torch.randn(B, H, W)
    if kind == "noise":
        return noise
    y, x = torch.meshgrid(torch.linspace(0, 1, H), torch.linspace(0, 1, W), indexing="ij")
    centre = torch.rand(B, 2, 2, 1, 1)
    return (2 * torch.exp(-((x - centre[:, :, 0]) ** 2 + (y - centre[:, :, 1]) ** 2) / 0.02)).sum(1) + 0.1 * noise


def peer_tv(z: torch.Tensor, smoothness: float) -> torch.Tensor:
    """copt's Dykstra algorithm on each map, followed by our sparsemax."""
    H, W = z.shape[1:]
    flat = z.double().flatten(1).numpy()
    fused = np.stack([peer_prox(row, smoothness, H, W) for row in flat])
    return fv.sparsemax(torch.from_numpy(fused).to(z.dtype)).reshape(z.shape)


def tv_rows() -> list[dict]:
    """TVmax with its certified gap, beside copt's 2-D prox followed by sparsemax, which has no gradient."""
    rows = []
    for H, W in ((8, 8), (14, 14), (19, 32)):
        for kind in ("noise", "bumps"):
            for smoothness in (0.01, 0.1):
                z, g = maps(kind, 64, H, W), torch.randn(64, H, W)
                exact = z.to(EXACT).requires_grad_()
                value = fv.tvmax(exact, smoothness)
                (gradient,) = torch.autograd.grad(value, exact, g.to(EXACT))
                both = forward_and_backward(lambda v, s=smoothness: fv.tvmax(v, s), z, g)
                common = {"grid": f"{H}x{W}", "scores": kind, "smoothness": smoothness}
                ours = seconds(lambda z=z, s=smoothness: fv.tvmax(z, s))
                theirs = seconds(lambda z=z, s=smoothness: peer_tv(z, s), repeat=3)
                rows.append(
                    common
                    | {
                        "who": "foveate",
                        "worst gap": float(fv.ops.solve_tv2d(z, smoothness).gap.max()),
                        "value error": relative(fv.tvmax(z, smoothness), value.detach()),
                        "gradient error": relative(both()[0], gradient, g),
                        "forward us": ours / 64 * 1e6,
                        "with backward us": seconds(both) / 64 * 1e6,
                        "MB": megabytes(both),
                        "ours is faster": 1.0,
                    }
                )
                rows.append(
                    common
                    | {
                        "who": "copt",
                        "worst gap": float("nan"),
                        "value error": relative(peer_tv(z, smoothness), value.detach()),
                        "gradient error": float("nan"),
                        "forward us": theirs / 64 * 1e6,
                        "with backward us": float("nan"),
                        "MB": float("nan"),
                        "ours is faster": theirs / ours,
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results/transforms.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    where = machine(["foveate", "torch", "entmax", "copt", "numba"])
    tables = {"simplex": simplex_rows(), "total variation": tv_rows()}
    for title, rows in tables.items():
        show(f"{title}: batch 64 and 512, float32, {where['processor']}", rows)
    if options.save:
        print("saved in", save("transforms", where, tables))


if __name__ == "__main__":
    main()
