"""The gradient that can be differentiated again is the plain one, and its derivative is right; kernels on and off."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import Tensor

from foveate import MECHANISMS, mechanism
from foveate.ops import TRANSFORMS
from tests.cases import NAMES, N, call, draw
from tests.ops.kernels.test_agreement import only_torch

CLOSE = {torch.float32: 2e-4, torch.float64: 1e-8}
slow = pytest.mark.slow


def check_orders(function: Callable[..., Tensor], inputs: tuple[Tensor, ...], kernels: bool) -> None:
    """The first derivative with and without a graph of its own; in float64 also the second, against differences."""
    with nullcontext() if kernels else only_torch():
        output = function(*inputs)
        direction = draw(*output.shape, seed=9, dtype=output.dtype)
        again = torch.autograd.grad(function(*inputs), inputs, direction, create_graph=True)
        plain = torch.autograd.grad(output, inputs, direction)
        close = CLOSE[output.dtype]
        torch.testing.assert_close([x.detach() for x in again], list(plain), rtol=close, atol=close)
        if output.dtype == torch.float64:
            torch.manual_seed(0)
            assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("name", NAMES)
def test_transforms(name, kernels):
    for dtype in CLOSE:
        for shape, mask in (((2, N), None), ((1, N), torch.arange(N) % 4 > 0), ((2, 3, N), None)):
            scores = draw(*shape, seed=5, dtype=dtype).requires_grad_()
            check_orders(partial(call, TRANSFORMS[name], mask=mask), (scores,), kernels)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize("dtype", CLOSE, ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("grid", "B", "queries", "masked"),
    [
        pytest.param((3, 3), 1, (), False, marks=slow),
        ((3, 4), 2, (3,), True),
        pytest.param((6,), 2, (), True, marks=slow),
    ],
    ids=["one map", "queries and a mask", "line"],
)
@pytest.mark.parametrize("name", list(MECHANISMS))
def test_mechanisms(name, grid, B, queries, masked, dtype, kernels):
    if MECHANISMS[name].needs_grid and len(grid) == 1:
        pytest.skip("over a two-dimensional grid only")
    n = math.prod(grid)
    attend = mechanism(name).eval()
    scores = draw(B, *queries, n, dtype=dtype).requires_grad_()
    values = draw(B, n, 2, seed=1, dtype=dtype).requires_grad_()
    mask = torch.arange(n).expand(B, n) % 5 > 0 if masked else None
    check_orders(lambda z, v: attend(z, v, grid=grid, mask=mask).context, (scores, values), kernels)
