"""Every kernel beside what torch computes: values and gradients, float32 and float64, masks, odd sizes."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from foveate.attention import mechanism
from foveate.ops import entmax, fusedmax, gfusedmax, kernels, sparsemax, tvmax
from foveate.ops.basis import GaussianBasis
from foveate.ops.compact import TruncatedParaboloid
from foveate.ops.em import Points, expectation_maximisation, round_gaussians, with_background
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_variance, grid_edges
from foveate.ops.mixture_fit import fit_mixture, select_mixture
from foveate.ops.moments import match_moments
from foveate.ops.quadrature import chord_moments
from foveate.ops.reading import LARGE, weighted_sum
from foveate.ops.starts import spread_start
from foveate.ops.total_variation import solve_tv1d, solve_tv2d, solve_tv_graph
from tests.cases import draw
from tests.mixtures import only_torch

pytestmark = pytest.mark.skipif(kernels.unit() is None, reason="the kernels are not built, or turned off")
CLOSE = dict(zip((torch.float32, torch.float64), kernels.AGREEMENT["rows"], strict=True))


def allowed(family: str, dtype: torch.dtype) -> float:
    return kernels.AGREEMENT[family][dtype == torch.float64]


DTYPES = [torch.float32, torch.float64]


def assert_agree(f: Callable[[Tensor], Tensor], x: Tensor, close: float | None = None) -> None:
    """Value and gradient of f at x, with the kernels and without."""
    close = CLOSE[x.dtype] if close is None else close
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    value = f(ours)
    gradient = draw(*value.shape, seed=5, dtype=x.dtype)
    (got,) = torch.autograd.grad(value, ours, gradient)
    with only_torch():
        expected = f(theirs)
        (wanted,) = torch.autograd.grad(expected, theirs, gradient)
        assert kernels.unit() is None
    torch.testing.assert_close(value, expected, rtol=0, atol=close)
    torch.testing.assert_close(got, wanted, rtol=0, atol=10 * close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 16, 33, 196, 1000])
@pytest.mark.parametrize("alpha", [1.1, 1.3, 1.5, 1.9, 2.0])
def test_entmax(alpha: float, n: int, dtype: torch.dtype) -> None:
    for scale in (0.01, 1.0, 20.0):
        assert_agree(lambda z: entmax(z, alpha), scale * draw(5, n, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sparsemax_of_even_scores_keeps_all(dtype: torch.dtype) -> None:
    weights = sparsemax(torch.zeros(2, 100_000, dtype=dtype))
    torch.testing.assert_close(weights.double().sum(-1), torch.ones(2).double(), rtol=0, atol=1e-5)
    assert weights.amin() > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("smoothness", [0.0, 0.01, 0.1, 1.0, 30.0])
def test_fused_transforms(smoothness: float, dtype: torch.dtype) -> None:
    z, mask = draw(11, 5, 7, dtype=dtype), torch.rand(11, 5, 7, generator=torch.Generator().manual_seed(0)) > 0.2
    edges = torch.cat([grid_edges(5, 7), torch.tensor([[0, 34], [3, 20], [3, 20], [6, 6]])])
    for keep in (None, mask):
        flat = None if keep is None else keep.flatten(1)
        assert_agree(lambda v, m=keep: tvmax(v, smoothness, m), z)
        assert_agree(lambda v, m=flat: fusedmax(v, smoothness, mask=m), z.flatten(1))
        assert_agree(lambda v, m=flat: gfusedmax(v, edges, smoothness, m), z.flatten(1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_smooth_maps(dtype: torch.dtype) -> None:
    """Smooth maps need many sweeps, and some of them the maximum flow; a gap certifies each."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 19), torch.linspace(0, 1, 32), indexing="ij")
    z = torch.stack([2 * torch.exp(-((x - 0.3) ** 2 + (y - c) ** 2) / 0.02) for c in torch.linspace(0, 1, 12)])
    z = (z + 0.1 * draw(12, 19, 32).float()).to(dtype)
    for smoothness in (0.1, 0.3, 2.0):
        solution = solve_tv2d(z, smoothness)
        assert (solution.gap <= 1e-12).all()
        assert_agree(lambda v, s=smoothness: tvmax(v, s), z[:3], close=1e-5 if dtype == torch.float32 else 1e-8)


def test_groups_and_gaps_of_each_prox() -> None:
    z = draw(4, 30)
    edges = torch.stack([torch.arange(29), torch.arange(1, 30)], 1)
    chain = solve_tv1d(z, 0.3)
    graph = solve_tv_graph(z, edges, 0.3)
    with only_torch():
        plain = solve_tv1d(z, 0.3)
    for solution in (chain, graph):
        torch.testing.assert_close(solution.value, plain.value, rtol=0, atol=1e-9)
        assert torch.equal(solution.groups, plain.groups)
        assert (solution.gap <= 1e-13).all()


def test_a_graph_without_edges_is_no_chain() -> None:
    z, none = draw(2, 5), torch.zeros(0, 2, dtype=torch.long)
    torch.testing.assert_close(solve_tv_graph(z, none, 0.3).value, z)
    torch.testing.assert_close(gfusedmax(z, none, 0.3), sparsemax(z))


def test_an_edge_to_nowhere_is_refused_inside_the_operator() -> None:
    with pytest.raises(IndexError, match="names a node that is not there"):
        kernels.prox_tv(draw(2, 4), torch.ones(2, 4, dtype=torch.bool), torch.tensor([[0, 9]]), 1, 0.1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [(), (1,), (3,), (2, 5)])
def test_sparse_reading(queries: tuple[int, ...], dtype: torch.dtype) -> None:
    B, N, D = 3, 150, 161
    values = draw(B, N, D, dtype=dtype)
    assert values.numel() >= LARGE
    assert_agree(lambda z: weighted_sum(sparsemax(z), values, sparse=True), 3 * draw(B, *queries, N, dtype=dtype), 2e-5)
    scores = 3 * draw(B, *queries, N, dtype=dtype)
    assert_agree(lambda v: weighted_sum(sparsemax(scores), v, sparse=True), values, 2e-5)


def test_chords() -> None:
    semi = torch.tensor([[0.5, 0.3], [3.0, 0.05], [20.0, 9.0], [60.0, 0.5]], dtype=torch.float64)
    centre = draw(4, 53, 2) * (semi[:, None] + 1)
    got = chord_moments(semi, centre)
    with only_torch():
        expected = chord_moments(semi, centre)
    size = expected.abs().amax(1, keepdim=True)
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=1e-7)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("deviation", [1e-3, 0.03, 0.3, 3.0])
def test_paraboloid_expectation(deviation: float, dtype: torch.dtype) -> None:
    """Without a gradient: thin and wide ellipses in every direction, relative to the largest value of a row."""
    root = deviation * draw(40, 2, 2, dtype=dtype) * torch.tensor([1.0, 0.2], dtype=dtype)
    scale = root @ root.mT + (0.01 * deviation) ** 2 * torch.eye(2)
    density = TruncatedParaboloid(draw(40, 2, seed=1, dtype=dtype).sigmoid(), scale)
    basis = GaussianBasis.grid(49)
    got = density.expect(basis)
    with only_torch():
        expected = density.expect(basis)
    size = expected.amax(1, keepdim=True)
    torch.testing.assert_close(got / size, expected / size, rtol=0, atol=allowed("expectation", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("K", [1, 2, 4, 7])
def test_em(K: int, spread: bool, background: bool, dtype: torch.dtype) -> None:
    positions = cell_centres(6, 7, dtype=dtype)
    begin = round_gaussians(torch.rand(3, 2, K, 2, generator=torch.Generator().manual_seed(0)).to(dtype), 0.02)
    begin = with_background(begin, 0.2) if background else begin

    def run(scores: Tensor) -> Tensor:
        points = Points(torch.softmax(scores, -1), positions, cell_variance(positions), spread)
        state, likelihood = expectation_maximisation(points, begin, 6)
        likelihood = likelihood if state.log_background is None else likelihood + state.log_background
        return torch.cat([state.log_weights.exp(), state.mean.flatten(2), state.covariance.flatten(2)], -1).sum(
            1
        ) + likelihood.sum(1, keepdim=True)

    assert_agree(run, draw(3, 42, dtype=dtype), close=allowed("em", dtype))


def test_em_from_a_start_with_a_gradient_and_own_positions() -> None:
    positions = torch.rand(3, 30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def run(scores: Tensor) -> Tensor:
        fit = fit_mixture(torch.softmax(scores, -1), positions, 4, 5, start="split")
        return torch.cat([fit.weights, fit.components.mean.flatten(1), fit.components.covariance.flatten(1)], -1)

    assert_agree(run, draw(3, 30))
    scores = draw(2, 12).requires_grad_()
    few = positions[:2, :12]
    assert torch.autograd.gradgradcheck(
        lambda z: fit_mixture(torch.softmax(z, -1), few, 2, 2, start="split").components.mean, scores, atol=1e-4
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("start", ["spread", "random"])
def test_choice_of_components(start: str, background: bool, dtype: torch.dtype) -> None:
    positions = cell_centres(9, 9, dtype=dtype)
    weights = sparsemax(2 * draw(6, 81, dtype=dtype))
    mask = torch.rand(6, 81, generator=torch.Generator().manual_seed(2)) > 0.2
    weights = torch.where(mask, weights, 0) / torch.where(mask, weights, 0).sum(-1, keepdim=True)

    def choose() -> list[Tensor]:
        fit = select_mixture(
            weights, positions, 5, mask=mask, start=start, background=background, generator=torch.Generator()
        )
        return [fit.criterion, fit.weights, fit.components.mean, fit.components.covariance, fit.log_likelihood]

    ours = choose()
    with only_torch():
        theirs = choose()
    for got, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=allowed("choice", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_spread_starts_choose_the_same_locations(dtype: torch.dtype) -> None:
    """Exactly: also with ties, with weight on one location only, and with positions of their own."""
    maps = torch.softmax(draw(7, 30, dtype=dtype), -1)
    maps[0] = torch.where(draw(30) > 0.7, 3.0, 1.0).to(dtype)
    maps[0] /= maps[0].sum()
    maps[1] = torch.nn.functional.one_hot(torch.tensor(11), 30)
    maps[2] = sparsemax(3 * draw(30, dtype=dtype))
    own = torch.rand(7, 30, 2, generator=torch.Generator().manual_seed(1), dtype=dtype)
    for positions in (cell_centres(5, 6, dtype=dtype), own):
        points = Points(maps, positions, cell_variance(positions))
        ours = spread_start(points, 5, 4, None).mean
        with only_torch():
            assert torch.equal(ours, spread_start(points, 5, 4, None).mean)


def test_the_gradient_of_the_choice() -> None:
    positions = cell_centres(6, 6, dtype=torch.float64)

    def run(scores: Tensor) -> Tensor:
        fit = select_mixture(torch.softmax(scores, -1), positions)
        return torch.cat([fit.weights, fit.components.mean.flatten(1), fit.components.covariance.flatten(1)], -1)

    assert_agree(run, 2 * draw(4, 36), close=1e-8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_are_not_sound_are_explained(dtype: torch.dtype) -> None:
    weights = torch.softmax(draw(3, 21, dtype=dtype), -1)
    for column in (0, 20):
        for value in (math.nan, math.inf, -1e-6, 0.9 + float(weights[1, column])):
            wrong = weights.clone()
            wrong[1, column] = value
            with pytest.raises(ValueError, match="fit_mixture: expected weights"):
                fit_mixture(wrong, cell_centres(3, 7).to(dtype), 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("floor", ["cell", 1e-3])
def test_moments_of_weights(floor: float | str, dtype: torch.dtype) -> None:
    positions = cell_centres(6, 7, dtype=dtype)
    weights = sparsemax(2 * draw(3, 2, 42, dtype=dtype))
    weights[0, 1] = 0
    mask = torch.rand(3, 2, 42, generator=torch.Generator().manual_seed(0)) > 0.3
    shared = torch.where(mask, weights, 0)
    shared = shared / shared.sum(-1, keepdim=True).clamp(min=1e-9)
    for w, keep in ((weights, None), (shared, mask), (shared[:, 0], mask[:, 0])):
        ours = match_moments(w, positions, keep, floor, where="test")
        with only_torch():
            theirs = match_moments(w, positions, keep, floor, where="test")
        for got, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, expected, rtol=0, atol=CLOSE[dtype])
    for wrong in (-weights, 2 * weights, torch.full_like(weights, torch.nan)):
        with pytest.raises(ValueError, match="test: expected"):
            match_moments(wrong, positions, None, floor, where="test")


@pytest.mark.parametrize("dtype", DTYPES)
def test_expectations_of_gaussians(dtype: torch.dtype) -> None:
    root = draw(4, 3, 2, 2, dtype=dtype)
    density = Gaussian(draw(4, 3, 2, dtype=dtype), 0.1 * root @ root.mT + 1e-3 * torch.eye(2, dtype=dtype))
    for basis in (GaussianBasis.grid(25), GaussianBasis.for_grid(14, 14)):
        ours = density.expect(basis)
        with only_torch():
            theirs = density.expect(basis)
        torch.testing.assert_close(ours, theirs, rtol=CLOSE[dtype], atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parameters_that_are_not_sound_are_refused(dtype: torch.dtype) -> None:
    good = torch.eye(2, dtype=dtype).expand(3, 2, 2).clone()
    for row in (
        [1.0, 2.0, 2.0, 1.0],
        [1.0, 0.5, -0.5, 1.0],
        [math.nan, 0, 0, 1.0],
        [0.0, 0, 0, 0],
        [math.inf, 0, 0, 1],
    ):
        wrong = good.clone()
        wrong[1] = torch.tensor(row).reshape(2, 2)
        with pytest.raises(ValueError, match="Gaussian: expected"):
            Gaussian(torch.zeros(3, 2, dtype=dtype), wrong)
    with pytest.raises(ValueError, match="finite mean"):
        Gaussian(torch.full((3, 2), math.inf, dtype=dtype), good)


def test_constants_that_both_sides_have_are_equal() -> None:
    from foveate.ops import em, fused, mixture_choice, quadrature, starts
    from foveate.ops.kernels import mixtures

    source = Path(kernels.__file__).parent / "src"
    found = {
        name: float(value.rstrip("fL"))
        for file in sorted(source.iterdir())
        for name, value in re.findall(r"constexpr \w+ (\w+) = ([-\d.e]+);", file.read_text())
    }
    assert found["kLeastMass"] == em.LEAST_MASS
    assert found["kSame"] == mixture_choice.SAME
    assert found["on"] == starts.ON_AXIS
    assert found["kFarBelow"] == fused.FAR_BELOW
    assert found["kReach"] == quadrature.REACH
    assert found["kMostComponents"] == mixtures.MOST_COMPONENTS
    assert int(re.findall(r'"interface"\) = (\d+)', (source / "module.cpp").read_text())[0]) == kernels.INTERFACE


def test_a_stale_build_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernels._load() is not None
    monkeypatch.setattr(kernels, "INTERFACE", -1)
    assert kernels._load() is None


def test_operators_pass_opcheck() -> None:
    from foveate.ops.simplex import _entmax_rows
    from foveate.ops.total_variation import _prox_tv

    for alpha in (1.3, 1.5, 2.0):
        torch.library.opcheck(_entmax_rows, (draw(3, 5).requires_grad_(), alpha, -1, "entmax"))
    grid, keep = draw(3, 2, 3).requires_grad_(), torch.ones(3, 6, dtype=torch.bool)
    torch.library.opcheck(_prox_tv, (grid, keep.reshape(3, 2, 3), None, 2, 0.2, -1, "prox_tv2d"))
    edges = torch.tensor([[0, 5]])
    torch.library.opcheck(_prox_tv, (draw(3, 6).requires_grad_(), keep, edges, 1, 0.2, -1, "prox_tv_graph"))


def test_fake_tensors_and_tracers_do_not_reach_the_kernels() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    with FakeTensorMode():
        assert sparsemax(torch.empty(3, 5)).shape == (3, 5)
    graph = make_fx(lambda z: sparsemax(z))(draw(3, 5))
    z = draw(3, 5, seed=1)
    torch.testing.assert_close(graph(z), sparsemax(z))


def test_two_threads_give_the_same() -> None:
    before = torch.get_num_threads()
    z, maps = draw(600, 608, dtype=torch.float32), draw(100, 14, 14, dtype=torch.float32)
    try:
        torch.set_num_threads(1)
        one = sparsemax(z), entmax(z, 1.3), tvmax(maps, 0.1)
        torch.set_num_threads(3)
        many = sparsemax(z), entmax(z, 1.3), tvmax(maps, 0.1)
    finally:
        torch.set_num_threads(before)
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-7)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_kernels_work_after_a_fork() -> None:
    code = (
        "import os, torch, foveate as fv\n"
        "z = torch.randn(600, 608); fv.sparsemax(z); fv.tvmax(torch.randn(200, 14, 14), 0.1)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ok = bool((fv.sparsemax(z).sum(-1) - 1).abs().max() < 1e-5)\n"
        "    fv.tvmax(torch.randn(200, 14, 14), 0.1)\n"
        "    os._exit(0 if ok else 1)\n"
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=120).returncode == 0


@pytest.mark.parametrize("unit", ["avx2", "baseline"])
def test_lesser_vector_units(unit: str) -> None:
    code = (
        "import torch, foveate as fv\n"
        "from foveate.ops import kernels\n"
        "torch.manual_seed(0); z = torch.randn(9, 50); maps = torch.randn(9, 6, 5)\n"
        "values = [fv.sparsemax(z), fv.entmax(z), fv.entmax(z, 1.3), fv.tvmax(maps, 0.1).flatten(1), fv.fusedmax(z)]\n"
        "print(kernels.unit(), *(float((v * v).sum()) for v in values))\n"
    )
    outputs = []
    for chosen in ({}, {"FOVEATE_UNIT": unit}):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **chosen}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout.split())
    assert outputs[1][0] in (unit, "baseline")
    assert [float(v) for v in outputs[0][1:]] == pytest.approx([float(v) for v in outputs[1][1:]], abs=1e-4)


def test_turned_off_by_the_environment() -> None:
    code = (
        "import torch, foveate as fv\n"
        "from foveate.ops import kernels\n"
        "print(kernels.unit(), fv.sparsemax(torch.ones(1)))\n"
    )
    off = {**os.environ, "FOVEATE_NATIVE": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=off, capture_output=True, text=True)
    assert done.stdout.startswith("None tensor")


@pytest.mark.parametrize("name", ["sparsemax", "tvmax", "continuous-sparsemax", "k-mca", "multimodal"])
def test_whole_attentions(name: str) -> None:
    attend = mechanism(name).eval()
    scores, values = 2 * draw(3, 49), draw(3, 49, 8)
    mask = torch.arange(49) % 5 > 0
    for keep in (None, mask.expand(3, 49)):
        got = attend(scores, values, grid=(7, 7), mask=keep).context
        with only_torch():
            expected = attend(scores, values, grid=(7, 7), mask=keep).context
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)
    assert math.isfinite(float(got.sum()))
