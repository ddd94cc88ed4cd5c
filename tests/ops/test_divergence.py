from __future__ import annotations

import math

import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

from foveate.errors import ShapeError
from foveate.ops.divergence import entropy, js_divergence, kl_divergence


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    p, q = torch.rand(2, 3, 4, 5, dtype=torch.float64)
    p[0, 0] = 0
    return p / p.sum((-2, -1), keepdim=True), q / q.sum((-2, -1), keepdim=True)


def test_against_scipy() -> None:
    p, q = pair()
    for base in (2.0, math.e, 10.0):
        for b in range(3):
            flat = p[b].flatten().numpy(), q[b].flatten().numpy()
            assert kl_divergence(p, q, base=base)[b].item() == pytest.approx(scipy_entropy(*flat, base=base))
            assert entropy(p, base=base)[b].item() == pytest.approx(scipy_entropy(flat[0], base=base))
            distance = jensenshannon(*flat, base=base)
            assert js_divergence(p, q, base=base, distance=True)[b].item() == pytest.approx(distance)
            assert js_divergence(p, q, base=base)[b].item() == pytest.approx(distance**2)


def test_axes() -> None:
    p, q = pair()
    torch.testing.assert_close(
        js_divergence(p.flatten(-2), q.flatten(-2), axes=1), js_divergence(p, q), rtol=1e-12, atol=0
    )


def test_infinite_without_a_floor_finite_with() -> None:
    p, q = torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]])
    assert kl_divergence(p, q).item() == math.inf
    assert kl_divergence(p, q, floor=1e-6).item() == pytest.approx(-math.log(1e-6))
    assert js_divergence(p, q).item() == 1.0


def test_gradient_of_js() -> None:
    p, q = (x[1:].clone().requires_grad_() for x in pair())
    assert torch.autograd.gradcheck(js_divergence, (p, q))


def test_wrong_input_is_explained() -> None:
    with pytest.raises(ShapeError, match=r"js_divergence: expected distributions over the same 2 axes, got \(2, 2\)"):
        js_divergence(torch.zeros(2, 2), torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"entropy: expected base > 1, got 1; use 2 for bits"):
        entropy(torch.zeros(2, 2), base=1)
    with pytest.raises(TypeError, match="kl_divergence: expected floating-point distributions"):
        kl_divergence(torch.zeros(2, 2, dtype=torch.long), torch.zeros(2, 2))
