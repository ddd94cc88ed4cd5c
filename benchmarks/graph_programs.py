"""`gfusedmax` on random graphs against one quadratic program per graph, solved by quadprog from PyPI.

python benchmarks/graph_programs.py [--graphs 500] [--seed 0]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
import quadprog
import torch
from torch import Tensor

import foveate as fv

RIDGE = 3e-8  # on the slack variables: quadprog needs a positive definite program, and loses digits where it is small
TOLERANCE = {torch.float64: 1e-6, torch.float32: 4e-6}


@dataclass(frozen=True)
class Problem:
    """Scores (N,) of the nodes, edges (E, 2), the smoothness, and the mask (N,) of the nodes that count."""

    scores: Tensor
    edges: Tensor
    smoothness: float
    mask: Tensor


def draw_problem(seed: int) -> Problem:
    """A random problem: 1 to 30 nodes, few to many edges with loops and repeats, ties, masks, λ from 1e-3 to 10."""
    generator = np.random.default_rng(seed)
    N = int(generator.integers(1, 31))
    edges = generator.integers(0, N, (int(generator.integers(0, 3 * N)), 2))
    scores = generator.normal(size=N) * 10 ** generator.uniform(-2, 1)
    if seed % 4 == 0:
        scores = np.round(scores, 1)  # ties
    mask = generator.random(N) > (0.3 if seed % 3 == 0 else 0)
    smoothness = float(10 ** generator.uniform(-3, 1))
    return Problem(torch.from_numpy(scores), torch.from_numpy(edges), smoothness, torch.from_numpy(mask))


def by_program(problem: Problem) -> Tensor:
    """min ½‖p − z‖² + λ Σ t  with  t ≥ ±Dp and p on the simplex, over the nodes that count, as one program."""
    kept = problem.mask.nonzero()[:, 0]
    weights = torch.zeros_like(problem.scores)
    if not len(kept):
        return weights
    number = {int(node): n for n, node in enumerate(kept)}
    edges = [(number[i], number[j]) for i, j in problem.edges.tolist() if i in number and j in number]
    N, E = len(kept), len(edges)
    D = np.zeros((E, N))
    for row, (i, j) in enumerate(edges):
        D[row, j] += 1
        D[row, i] -= 1
    G = np.diag(np.r_[np.ones(N), np.full(E, RIDGE)])
    a = np.r_[problem.scores[kept].numpy(), np.full(E, -problem.smoothness)]
    sum_to_one = np.r_[np.ones(N), np.zeros(E)][:, None]
    C = np.c_[sum_to_one, np.eye(N, N + E).T, np.c_[-D, np.eye(E)].T, np.c_[D, np.eye(E)].T]
    b = np.r_[1.0, np.zeros(N + 2 * E)]
    weights[kept] = torch.from_numpy(quadprog.solve_qp(G, a, C, b, meq=1)[0][:N])
    return weights


def largest_error(problem: Problem, dtype: torch.dtype = torch.float64) -> float:
    """Largest difference between a weight of `gfusedmax` and the program's."""
    weights = fv.gfusedmax(problem.scores.to(dtype), problem.edges, problem.smoothness, problem.mask)
    exact = Problem(problem.scores.to(dtype).double(), problem.edges, problem.smoothness, problem.mask)
    return float((weights.double() - by_program(exact)).abs().max())


def check_graphs(graphs: int = 500, seed: int = 0, dtype: torch.dtype = torch.float64) -> float:
    """Largest error over seeded random graphs; raises AssertionError with the seed of the first above the tolerance."""
    worst = 0.0
    for number in range(seed, seed + graphs):
        error = largest_error(draw_problem(number), dtype)
        assert error <= TOLERANCE[dtype], f"graph {number}: expected an error <= {TOLERANCE[dtype]:g}, got {error:g}"
        worst = max(worst, error)
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for kind in TOLERANCE:
        print(f"{options.graphs} graphs, {kind}: largest error {check_graphs(options.graphs, options.seed, kind):.2e}")
