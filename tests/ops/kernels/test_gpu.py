"""GPUs, without one: the torch form asks the device nothing; Triton kernels are interpreted and compiled."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import foveate as fv
from foveate.ops import entmax_alpha, kernels, simplex


class NoQuestions(TorchDispatchMode):
    """Fails where a number is read, which would wait for a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "equal", "nonzero", "is_nonzero"), func
        return func(*args, **(kwargs or {}))


def scores_for_devices() -> torch.Tensor:
    """Rows that need many steps: geometric, even, far apart, masked, and infinite ones."""
    n = 600
    scores = torch.randn(12, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scores[1] = -(1.5 ** -torch.arange(n, dtype=torch.float64))
    scores[2] = -(torch.arange(n, dtype=torch.float64) ** 0.5)
    scores[3], scores[4] = 0, 1e-3 * scores[4]
    scores[5] *= 100
    scores[6, 10:], scores[7] = -math.inf, -math.inf
    scores[8, [3, 7]] = math.inf
    scores[9] = -(2.0 ** -torch.arange(n).clamp(max=60))
    scores[10] = torch.arange(n).double().log()
    return scores


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 1.8, 2.0, 3.0, "per row"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_device_is_asked_nothing(alpha, dtype, monkeypatch):
    """The form for devices, on a CPU: the same weights and gradients in a fixed number of steps."""
    options = {} if alpha == 1.0 else {"alpha": 1.05 + torch.arange(12.0)[:, None] / 6 if alpha == "per row" else alpha}
    weigh = fv.softmax if alpha == 1.0 else fv.entmax
    scores = scores_for_devices().to(dtype)
    g = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    z = scores.clone().requires_grad_()
    expected = weigh(z, **options)
    (gradient,) = torch.autograd.grad(expected, z, g)
    for module in (simplex, entmax_alpha):
        monkeypatch.setattr(module, "_may_ask", lambda x: False)
        monkeypatch.setattr(module, "check_alpha", lambda alpha: None, raising=False)
    monkeypatch.setattr(kernels, "_module", None)
    z = scores.clone().requires_grad_()
    with NoQuestions():
        weights = weigh(z, **options)
        (found,) = torch.autograd.grad(weights, z, g)
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(weights, expected, rtol=0, atol=tolerance)
    if alpha != "per row":  # alphas beyond 2 have gradients of any size
        torch.testing.assert_close(found, gradient, rtol=1e-3, atol=1e3 * tolerance)


def test_a_question_fails():
    with pytest.raises(AssertionError), NoQuestions():
        bool(torch.ones(2).any())
