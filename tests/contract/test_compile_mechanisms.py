"""Every mechanism compiles with the default backend, inductor: cold, in one graph, and to the same numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foveate import (
    MECHANISMS,
    Gaussian,
    GaussianBasis,
    Mixture,
    TruncatedParaboloid,
    TruncatedParaboloidBasis,
    mechanism,
)
from foveate.attention import Grid
from foveate.attention.fits import FAMILIES
from tests.cases import draw

ROOT = Path(__file__).resolve().parents[2]
slow = pytest.mark.slow
# torch uses what it has itself deprecated
tracer = pytest.mark.filterwarnings(
    "ignore:`torch.jit:DeprecationWarning", "ignore:.*should not be instantiated:DeprecationWarning"
)


def check_compiled(
    name: str, grid: Grid, masked: bool = False, *, training: bool = False, fullgraph: bool = True
) -> None:
    """Attention and gradients of the compiled mechanism agree with those computed eagerly afterwards."""
    n = int(grid.prod(-1).max()) if isinstance(grid, torch.Tensor) else torch.Size(grid).numel()
    scores, values = draw(2, 3, n), draw(2, n, 4, seed=1)
    mask = torch.arange(n).expand(2, n) % 5 > 0 if masked else None
    attend = mechanism(name).train(training)
    results = []
    for run in (torch.compile(attend, fullgraph=fullgraph), attend):
        torch.manual_seed(0)
        leaf = scores.clone().requires_grad_()
        out = run(leaf, values, grid=grid, mask=mask)
        (gradient,) = torch.autograd.grad(out.context.square().sum(), leaf)
        size = (4,) if isinstance(grid, tuple) and len(grid) == 1 else (4, 4)
        results.append((out.context.detach(), out.weights.detach(), out.map(*size).detach(), gradient))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-8)


def check_expectation(family: str, K: int) -> None:
    """Gradients of a mixture's expectations, over two batch axes and K, agree with those computed eagerly."""
    basis, n = GaussianBasis.for_grid(3, 4), (2, 3, K)
    root = draw(*n, 2, 2, seed=1)
    parts = [draw(*n, 2).sigmoid(), 0.02 * root @ root.mT + 0.02 * torch.eye(2), draw(*n, seed=2).softmax(-1)]

    def value(mean: torch.Tensor, matrix: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return Mixture(FAMILIES[family](mean, matrix), weights).expect(basis)

    results = []
    for run in (torch.compile(value, fullgraph=True), value):
        leaves = [part.to(torch.float64).requires_grad_() for part in parts]
        r = run(*leaves)
        results.append((r.detach(), *torch.autograd.grad(r.square().sum(), leaves)))
    torch.testing.assert_close(*results, rtol=1e-7, atol=1e-8)


def run_cold(*calls: str) -> None:
    """Compile in a process where nothing has run, so that no memo is filled."""
    body = "; ".join(["import torch", f"from {__name__} import check_compiled, check_expectation", *calls])
    settings = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", body], cwd=ROOT, env=os.environ | settings, stderr=subprocess.PIPE)
    assert run.returncode == 0, run.stderr.decode()


def test_a_continuous_mechanism_compiles_cold():
    """The one that goes through all of it: basis, ridge regression, quadrature, Gauss's rule."""
    run_cold("check_compiled('continuous-sparsemax', (3, 4))")


@slow
@pytest.mark.parametrize("name", list(MECHANISMS))
def test_compiles_cold(name):
    run_cold(f"check_compiled({name!r}, (3, 4))")


@slow
@pytest.mark.parametrize("name", ["softmax", "continuous-softmax", "continuous-entmax", "k-mca"])
def test_compiles_cold_with_a_mask_and_on_a_line(name):
    run_cold(f"check_compiled({name!r}, (3, 4), True)", f"check_compiled({name!r}, (9,))")


@slow
@pytest.mark.parametrize("name", ["continuous-softmax", "k-mca"])
def test_grids_that_differ_compile_in_several_graphs(name):
    run_cold(f"check_compiled({name!r}, torch.tensor([[3, 4], [2, 5]]), fullgraph=False)")


@slow
def test_training_of_multimodal_compiles_in_several_graphs():
    run_cold("check_compiled('multimodal', (3, 4), training=True, fullgraph=False)")


@slow
@pytest.mark.parametrize("family", ["gaussian", "truncated-paraboloid"])
def test_gradients_of_expectations_compile_over_several_batch_axes(family):
    """One component: there inductor vectorised the gradient of a Gaussian's expectation wrongly."""
    run_cold(f"check_expectation({family!r}, 1)", f"check_expectation({family!r}, 2)")


@slow
@pytest.mark.parametrize("name", ["tvmax", "continuous-softmax", "continuous-sparsemax", "k-mca", "multimodal-sparse"])
def test_training_compiles_cold(name):
    run_cold(f"check_compiled({name!r}, (3, 4), training=True)")


@tracer
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "continuous-softmax" else slow)
        for name, row in MECHANISMS.items()
        if row.continuous
    ],
)
def test_one_graph_follows_batch_sizes_and_grids(name):
    """The tracer alone: sizes that become symbols must still lead to the constants of a grid."""
    options = {"max_components": 2, "iterations": 2} if name == "multimodal" else {}
    torch._dynamo.reset()
    attend = mechanism(name, **options).eval()
    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    for B, grid in ((2, (3, 4)), (3, (3, 4)), (4, (5, 2)), (3, (7,))):
        n = torch.Size(grid).numel()
        scores, values = draw(B, n), draw(B, n, 2, seed=1)
        out, expected = compiled(scores, values, grid=grid), attend(scores, values, grid=grid)
        torch.testing.assert_close(out.context, expected.context)
        assert type(out.density) is type(expected.density)
        assert out.grid == grid


@tracer
def test_second_derivatives_are_right_under_the_compiler():
    """torch.func inside torch.compile; the backward of an autograd Function would be traced as a constant."""
    scale = torch.tensor([[0.01, 0.002], [0.002, 0.005]], dtype=torch.float64)
    mean, smooth = torch.tensor([0.4, 0.55], dtype=torch.float64), GaussianBasis.grid(9, variance=0.02)
    bounded = TruncatedParaboloidBasis.grid(9, variance=0.06)
    for kind, matrix, basis in ((Gaussian, scale, smooth), (TruncatedParaboloid, 0.1 * scale, smooth)):

        def value(m, kind=kind, matrix=matrix, basis=basis):
            return kind(m, matrix).expect(basis).square().sum()

        torch._dynamo.reset()
        twice = torch.compile(torch.func.jacrev(torch.func.jacrev(value)), backend="aot_eager")
        expected = torch.autograd.functional.hessian(value, mean)
        torch.testing.assert_close(twice(mean), expected)
        torch.testing.assert_close(torch.func.hessian(value)(mean), expected)
    torch._dynamo.reset()
    first = torch.func.jacrev(lambda m: TruncatedParaboloid(m, 0.1 * scale).expect(bounded))
    with pytest.raises(Exception, match=r"expected a GaussianBasis inside torch.func under torch.compile"):
        torch.compile(first, backend="aot_eager", fullgraph=True)(mean)
