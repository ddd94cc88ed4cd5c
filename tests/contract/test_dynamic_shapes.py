"""Transforms and mechanisms under torch.compile with sizes that change, and exported with odd ones."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch._dynamo.testing
from torch.export import Dim

from foveate.attention import mechanism
from foveate.ops import TRANSFORMS, entmax, sparsemax
from tests.cases import call, draw

SIZES = [(2, 7), (3, 1), (5, 13), (1, 33), (4, 2)]


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "fusedmax"])
def test_one_graph_serves_every_size(name: str) -> None:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(TRANSFORMS[name].function, backend=counter, fullgraph=True, dynamic=True)
    for size in SIZES:
        scores = draw(*size, seed=3).requires_grad_()
        weights, expected = compiled(scores), TRANSFORMS[name].function(scores)
        torch.testing.assert_close(weights, expected)
        direction = draw(*size, seed=4)
        both = [torch.autograd.grad(w, scores, direction, retain_graph=True)[0] for w in (weights, expected)]
        torch.testing.assert_close(*both)
    assert counter.frame_count <= 3  # torch makes graphs of their own for sizes 0 and 1


def test_grids_of_odd_sizes_compile() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(TRANSFORMS["tvmax"].function, backend="eager", fullgraph=True, dynamic=True)
    for size in [(2, 3, 5), (1, 7, 2), (4, 1, 9), (2, 6, 6)]:
        scores = draw(*size, seed=5)
        torch.testing.assert_close(compiled(scores), TRANSFORMS["tvmax"].function(scores))


# torch instantiates autograd functions, which it has itself deprecated, while it traces
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("name", ["sparsemax", "continuous-softmax"])
def test_mechanisms_compile_with_batches_that_change(name: str) -> None:
    torch._dynamo.reset()
    attend = mechanism(name).eval()
    compiled = torch.compile(attend, backend="eager")  # sizes that change become dynamic by themselves
    for B, grid in [(2, (3, 5)), (5, (3, 5)), (1, (7, 1))]:
        N = grid[0] * grid[1]
        scores, values = draw(B, N, seed=1), draw(B, N, 3, seed=2)
        torch.testing.assert_close(compiled(scores, values, grid).context, attend(scores, values, grid).context)


class Weigh(torch.nn.Module):
    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return entmax(scores, 1.3) + sparsemax(scores)


def test_an_exported_program_takes_odd_sizes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = {"scores": {0: Dim("B", min=1, max=99), 1: Dim("N", min=2, max=999)}}
        program = torch.export.export(Weigh(), (draw(4, 6),), dynamic_shapes=shapes).module()
    for size in [(1, 5), (7, 31), (3, 17), (2, 997)]:
        scores = draw(*size, seed=6)
        torch.testing.assert_close(program(scores), Weigh()(scores))


def test_flat_and_empty_sizes_are_as_without_a_compiler() -> None:
    assert call(TRANSFORMS["sparsemax"], draw(0, 5), None).shape == (0, 5)
    torch._dynamo.reset()
    compiled = torch.compile(sparsemax, backend="eager", dynamic=True)
    assert compiled(draw(0, 5)).shape == (0, 5)
    assert compiled(draw(5)).shape == (5,)
