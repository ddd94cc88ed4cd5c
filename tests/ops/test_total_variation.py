"""The total-variation prox against generic solvers, its certificate on hard inputs, and its groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import lsq_linear

from benchmarks.graph_programs import TOLERANCE, Problem, by_program, check_graphs, draw_problem
from foveate.errors import ShapeError
from foveate.ops import (
    gfusedmax,
    graphs,
    kernels,
    prox_tv1d,
    prox_tv2d,
    prox_tv_graph,
    solve_tv1d,
    solve_tv2d,
    solve_tv_graph,
    total_variation,
    tvmax,
)
from foveate.ops.grid import grid_edges
from tests.cases import draw


def incidence(edges: torch.Tensor, N: int) -> np.ndarray:
    matrix = np.zeros((len(edges), N))
    for row, (i, j) in enumerate(edges.tolist()):
        matrix[row, j] += 1
        matrix[row, i] -= 1
    return matrix


def by_bounded_least_squares(x: torch.Tensor, edges: torch.Tensor, smoothness: float) -> torch.Tensor:
    """w = x − Dᵀu with u the bounded least-squares solution of Dᵀu = x, |u| ≤ λ."""
    D = incidence(edges, x.numel())
    u = lsq_linear(D.T, x.numpy(), bounds=(-smoothness, smoothness), method="bvls", tol=1e-15).x
    return torch.from_numpy(x.numpy() - D.T @ u)


def hard_inputs(H: int, W: int) -> torch.Tensor:
    """iid, smooth, blobs with noise, few different values, constant, one spike, a step, rows that repeat."""
    y, x = torch.meshgrid(torch.linspace(0, 1, H), torch.linspace(0, 1, W), indexing="ij")
    noise = draw(H, W, seed=H * 100 + W).float()
    spike = torch.zeros(H, W)
    spike[H // 2, W // 2] = 5
    return torch.stack(
        [
            noise,
            torch.sin(5 * x) + torch.cos(4 * y),
            3 * torch.exp(-((x - 0.3) ** 2 + (y - 0.6) ** 2) / 0.02) + 0.1 * noise,
            (noise * 1.5).round(),
            torch.full((H, W), 0.7),
            spike,
            (x > 0.5).float() + 1e-3 * noise,
            noise[:1].expand(H, W),
        ]
    )


@pytest.mark.parametrize("smoothness", [1e-9, 0.05, 0.5, 5.0])
def test_chain_agrees_with_bounded_least_squares(smoothness):
    edges = torch.stack([torch.arange(14), torch.arange(1, 15)], 1)
    for seed in range(5):
        x = draw(15, seed=seed)
        torch.testing.assert_close(
            prox_tv1d(x, smoothness), by_bounded_least_squares(x, edges, smoothness), rtol=0, atol=1e-8
        )


@pytest.mark.parametrize("smoothness", [0.01, 0.1, 0.6, 3.0])
@pytest.mark.parametrize("shape", [(4, 4), (3, 7), (6, 1)])
def test_grid_agrees_with_bounded_least_squares(smoothness, shape):
    for x in (draw(*shape, seed=1), draw(*shape, seed=2).round(), draw(*shape, seed=3).cumsum(0)):
        expected = by_bounded_least_squares(x.flatten(), grid_edges(*shape), smoothness).reshape(shape)
        torch.testing.assert_close(prox_tv2d(x, smoothness), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("smoothness", [0.05, 0.4, 2.0])
def test_graph_agrees_with_bounded_least_squares(smoothness):
    edges = torch.tensor([[0, 3], [3, 5], [5, 0], [1, 2], [2, 4], [4, 1], [1, 4], [6, 6], [0, 7]])
    for seed in range(5):
        x = draw(9, seed=seed)  # node 8 has no edge, (1, 4) counts twice, (6, 6) is a loop
        torch.testing.assert_close(
            prox_tv_graph(x, edges, smoothness), by_bounded_least_squares(x, edges, smoothness), rtol=0, atol=1e-8
        )


@pytest.mark.parametrize("smoothness", [0.01, 0.1, 0.5])
def test_sparsemax_of_the_prox_is_the_joint_program(smoothness):
    edges = grid_edges(3, 4)
    for seed in range(4):
        z = draw(12, seed=seed)
        expected = by_program(Problem(z, edges, smoothness, torch.ones(12, dtype=torch.bool)))
        torch.testing.assert_close(gfusedmax(z, edges, smoothness), expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(tvmax(z.reshape(3, 4), smoothness).flatten(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_random_graphs_agree_with_a_quadratic_program(dtype):
    check_graphs(60, seed=1000, dtype=dtype)  # benchmarks/graph_programs.py checks 500


def test_the_quadratic_program_notices_a_wrong_smoothness():
    problem = draw_problem(1001)
    wrong = gfusedmax(problem.scores, problem.edges, 1.001 * problem.smoothness, problem.mask)
    assert (wrong - by_program(problem)).abs().max() > TOLERANCE[torch.float64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (5, 1), (2, 2), (8, 8), (14, 14), (5, 19), (19, 32)])
def test_every_input_is_certified(dtype, shape):
    x = hard_inputs(*shape).to(dtype)
    for smoothness in (0.0, 1e-4, 0.01, 0.1, 1.0, 100.0):
        solution = solve_tv2d(x, smoothness)
        assert solution.gap.dtype == torch.float64
        assert (solution.gap <= (1e-7 if dtype == torch.float32 else 1e-12)).all(), (shape, smoothness)
        assert (independent_gap(x.double(), solution.value.double(), smoothness) <= 2e-6).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(32, 32), (31, 17), (1, 32), (32, 3)])
def test_every_large_input_is_certified(dtype, shape):
    x = hard_inputs(*shape).to(dtype)
    for smoothness in (0.0, 1e-3, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0):
        gap = solve_tv2d(x, smoothness).gap
        assert (gap <= (1e-7 if dtype == torch.float32 else 1e-12)).all(), (shape, smoothness)


def independent_gap(x: torch.Tensor, w: torch.Tensor, smoothness: float) -> torch.Tensor:
    """How much plain dual ascent can prove that the objective of w may still fall, relative to max(1, ½‖x‖²)."""
    H, W = x.shape[-2:]
    if H * W == 1 or smoothness == 0:
        return 0.5 * (w - x).square().sum((-2, -1))
    D = torch.from_numpy(incidence(grid_edges(H, W), H * W))
    flat, value = x.flatten(1), w.flatten(1)
    u, previous = torch.zeros(len(x), len(D), dtype=torch.float64), None
    momentum = 1.0
    point = u
    for _ in range(400):
        previous = u
        u = (point + (flat - point @ D) @ D.T / 8).clamp(-smoothness, smoothness)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        point, momentum = u + (momentum - 1) / following * (u - previous), following
    primal = 0.5 * (value - flat).square().sum(1) + smoothness * (value @ D.T).abs().sum(1)
    dual = 0.5 * flat.square().sum(1) - 0.5 * (flat - u @ D).square().sum(1)
    # Dual ascent is slow where λ is large: there the bound is loose, so compare only where it has converged.
    rough = (flat - u @ D - value).norm(dim=1) > 1e-3 * flat.norm(dim=1).clamp(min=1)
    return torch.where(rough, 0, (primal - dual) / (0.5 * flat.square().sum(1)).clamp(min=1))


def test_certificate_notices_a_wrong_answer():
    from foveate.ops.graphs import GridGraph
    from foveate.ops.tv_solver import DouglasRachford, gaps

    graph = GridGraph(3, 3, torch.float64, torch.device("cpu"))
    y = draw(9, 1)
    keep, smoothness = torch.ones(9, 1, dtype=torch.bool), torch.tensor([0.3], dtype=torch.float64)
    state = DouglasRachford.start(y, keep, smoothness, graph, torch.float64)
    state.iterate(500)
    w = state.y - graph.divergence(state.dual)
    assert sum(gaps(graph, state.y, w, state.dual, state.bound)).item() < 1e-12
    w[1, 1] += 0.01
    assert sum(gaps(graph, state.y, w, state.dual, state.bound)).item() > 1e-5


def test_an_unsolved_problem_is_reported(monkeypatch):
    monkeypatch.setattr("foveate.ops.kernels._module", None)
    monkeypatch.setattr("foveate.ops.tv_solver._FIRST_CHECK", 1)
    monkeypatch.setattr("foveate.ops.tv_solver._MAX_STEPS", 0)
    with pytest.warns(UserWarning, match=r"tvmax: expected a relative gap <= 1e-06, got \d"):
        tvmax(draw(8, 8), 0.3)


def test_long_chains_and_strong_smoothing():
    x = torch.stack([draw(300), draw(300).cumsum(0) * 0.1, torch.sin(torch.arange(300.0).double() / 20)])
    for smoothness in (0.1, 1.0, 10.0, 100.0):
        solution = solve_tv1d(x, smoothness)
        assert (solution.gap <= 1e-12).all()
        torch.testing.assert_close(solution.value.sum(-1), x.sum(-1))


def test_scale_of_the_input_does_not_matter():
    x = draw(6, 8, 8)
    expected = prox_tv2d(x, 0.2)
    for scale in (1e-8, 1e8):
        torch.testing.assert_close(prox_tv2d(x * scale, 0.2 * scale) / scale, expected, rtol=0, atol=1e-8)
    for scale in (2.0**-1000, 2.0**-400, 2.0**500, 2.0**1000):
        solution = solve_tv2d(x * scale, 0.2 * scale)
        assert torch.equal(solution.value / scale, expected)  # a power of two rounds nothing
        assert (solution.gap <= 1e-12).all()


def test_the_largest_numbers_do_not_overflow():
    largest = torch.finfo(torch.float64).max
    x = torch.tensor([[largest, largest], [-largest, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(prox_tv1d(x, 0.1) / largest, x / largest)
    for smoothness in (1e300, largest):  # beyond any difference of the scores: all are fused
        flat = prox_tv1d(draw(5, 9), smoothness)
        torch.testing.assert_close(flat, draw(5, 9).mean(-1, keepdim=True).expand(5, 9))


def test_no_examples_and_no_nodes():
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0)):
        solution = solve_tv2d(torch.zeros(shape), 0.1)
        assert solution.value.shape == solution.groups.shape == shape
        assert solution.gap.shape == shape[:-2]
    for solution in (
        solve_tv1d(torch.zeros(2, 0), 0.1),
        solve_tv_graph(torch.zeros(2, 0), torch.zeros(0, 2).long(), 0.1),
    ):
        assert solution.value.shape == solution.groups.shape == (2, 0)
        assert solution.gap.tolist() == [0, 0]


def test_groups_are_the_connected_cells_of_equal_value():
    solution = solve_tv2d(draw(5, 6, 6), 0.4)
    for value, groups in zip(solution.value, solution.groups, strict=True):
        for i, j in grid_edges(6, 6).tolist():
            same = groups.flatten()[i] == groups.flatten()[j]
            close = (value.flatten()[i] - value.flatten()[j]).abs() < 1e-10
            assert bool(same) == bool(close)
        for label in groups.unique().tolist():
            assert groups.flatten()[label] == label


def test_gradient_averages_over_groups():
    x = draw(4, 5, 5).requires_grad_()
    solution, gradient = solve_tv2d(x, 0.3), draw(4, 5, 5, seed=1)
    (solution.value * gradient).sum().backward()
    for g, groups, got in zip(gradient, solution.groups, x.grad, strict=True):
        for label in groups.unique().tolist():
            inside = groups == label
            torch.testing.assert_close(got[inside], g[inside].mean().expand(int(inside.sum())))


def test_gradcheck_of_each_prox():
    edges = torch.tensor([[0, 3], [3, 5], [5, 0], [1, 2]])
    for f, x in (
        (lambda v: prox_tv1d(v, 0.3), draw(2, 7, seed=1)),
        (lambda v: prox_tv2d(v, 0.2), draw(2, 3, 4, seed=2)),
        (lambda v: prox_tv_graph(v, edges, 0.3), draw(2, 6, seed=3)),
    ):
        assert torch.autograd.gradcheck(f, x.requires_grad_(), eps=1e-7, atol=1e-6)


def test_neighbours_that_end_equal_count_as_fused():
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64, requires_grad=True)  # smoothness 1 makes 1, 1, 4
    solution = solve_tv1d(x, 1.0)
    assert solution.groups.tolist() == [0, 0, 2]
    (gradient,) = torch.autograd.grad(solution.value[0], x)
    assert gradient.tolist() == [0.5, 0.5, 0.0]


def test_masked_cells_leave_the_graph():
    x = draw(2, 5, 6)
    mask = torch.ones(2, 5, 6, dtype=torch.bool)
    mask[0, :, 3] = False  # cuts the first image in two
    mask[1, 4:, :] = False
    mask[1, :, 5:] = False  # a smaller grid, padded
    solution = solve_tv2d(x.masked_fill(~mask, math.nan), 0.3, mask)
    torch.testing.assert_close(solution.value[0, :, :3], prox_tv2d(x[0, :, :3], 0.3))
    torch.testing.assert_close(solution.value[0, :, 4:], prox_tv2d(x[0, :, 4:], 0.3))
    torch.testing.assert_close(solution.value[1, :4, :5], prox_tv2d(x[1, :4, :5], 0.3))
    assert (solution.value[~mask] == 0).all()
    assert (solution.groups[~mask] == -1).all()
    assert (solution.groups[mask] >= 0).all()


def test_masked_nodes_leave_a_chain_and_a_graph():
    x, mask = draw(9), torch.arange(9) != 4
    got = prox_tv1d(x, 0.4, mask)
    torch.testing.assert_close(got[:4], prox_tv1d(x[:4], 0.4))
    torch.testing.assert_close(got[5:], prox_tv1d(x[5:], 0.4))
    chain = torch.stack([torch.arange(8), torch.arange(1, 9)], 1)
    torch.testing.assert_close(prox_tv_graph(x, chain, 0.4, mask), got)


def test_wrong_edges_are_explained():
    x = draw(4)
    with pytest.raises(ShapeError, match=r"prox_tv_graph: expected edges \(E, 2\), got \(3,\); pass one pair"):
        prox_tv_graph(x, torch.arange(3), 0.1)
    with pytest.raises(ValueError, match=r"expected edges between nodes 0 and 3, got 4; number the nodes from 0"):
        prox_tv_graph(x, torch.tensor([[0, 4]]), 0.1)
    with pytest.raises(ValueError, match=r"expected edges between nodes 0 and 3, got -1"):
        solve_tv_graph(x, torch.tensor([[-1, 2]]), 0.1)
    with pytest.raises(TypeError, match=r"expected integers as edges, got torch.float32; call .long\(\) first"):
        prox_tv_graph(x, torch.tensor([[0.0, 1.0]]), 0.1)


def test_wrong_shapes_are_explained():
    with pytest.raises(ShapeError, match=r"prox_tv2d: expected x \(..., H, W\), got \(4,\); add the missing axes"):
        prox_tv2d(draw(4), 0.1)
    with pytest.raises(ValueError, match=r"prox_tv1d: expected finite scores, got \+inf; clip the scores"):
        prox_tv1d(torch.tensor([0.0, math.inf]), 0.1)
    with pytest.raises(TypeError, match="expected floating-point x"):
        prox_tv1d(torch.arange(3), 0.1)


def test_operator_is_well_formed():
    from foveate.ops.total_variation import _prox_tv

    x, keep = draw(4, 2, 3).requires_grad_(), torch.ones(4, 2, 3, dtype=torch.bool)
    torch.library.opcheck(_prox_tv, (x, keep, None, 2, 0.2, -1, "prox_tv2d"))


# --------------------------------------------------------------------------------------------- large graphs in torch


def in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_module", None)


@pytest.mark.parametrize("n", [513, 700])
def test_a_long_chain_goes_by_the_fast_cosine_transform(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    in_torch(monkeypatch)
    x = draw(3, n)
    fast = solve_tv1d(x, 0.4)
    monkeypatch.setattr(graphs, "_LONG", n + 1)
    slow = solve_tv1d(x, 0.4)
    assert (fast.gap <= 1e-12).all()
    torch.testing.assert_close(fast.value, slow.value, rtol=0, atol=1e-9)
    assert torch.equal(fast.groups, slow.groups)


def test_a_large_graph_needs_no_eigenvectors(monkeypatch: pytest.MonkeyPatch) -> None:
    in_torch(monkeypatch)
    x, near = draw(2, 60), torch.arange(59)
    edges = torch.cat([torch.stack([near, near + 1], 1), torch.tensor([[0, 30], [7, 7], [5, 50], [5, 50]])])
    dense = solve_tv_graph(x, edges, 0.3)
    monkeypatch.setattr(graphs, "_LARGEST_BASIS", 10)
    monkeypatch.setattr(graphs, "_laplacian_basis", None)
    sparse = solve_tv_graph(x, edges, 0.3)
    assert (sparse.gap <= 1e-12).all()
    torch.testing.assert_close(sparse.value, dense.value, rtol=0, atol=1e-9)
    lone = torch.zeros(0, 2, dtype=torch.long)
    torch.testing.assert_close(solve_tv_graph(x, lone, 0.3).value, x)


def test_the_edges_of_a_grid_are_solved_as_a_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    in_torch(monkeypatch)
    monkeypatch.setattr(total_variation, "EdgeGraph", None)
    x, edges = draw(2, 6, 5), grid_edges(6, 5)
    order = torch.randperm(len(edges), generator=torch.Generator().manual_seed(0))
    graph = solve_tv_graph(x.flatten(1), edges[order].flip(-1), 0.2)
    torch.testing.assert_close(graph.value.reshape(x.shape), solve_tv2d(x, 0.2).value, rtol=0, atol=1e-9)
