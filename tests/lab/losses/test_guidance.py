from __future__ import annotations

import math

import pytest
import torch

from foveate.attention import mechanism
from foveate.errors import ShapeError
from foveate.lab.losses import js_guidance, kl_guidance


def random_maps(B: int = 3) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.rand(B, 4, 5).double().flatten(1).softmax(-1).reshape(B, 4, 5)


def test_kl_is_the_sum_of_its_definition() -> None:
    p, q = random_maps(), random_maps().flip(0)
    slow = sum(a * math.log(a / b) for a, b in zip(p.flatten().tolist(), q.flatten().tolist(), strict=True))
    assert kl_guidance(q, p).item() == pytest.approx(slow)


def test_js_is_the_sum_of_its_definition() -> None:
    p, q = random_maps(), random_maps().flip(0)
    slow = 0.0
    for a, b in zip(p.flatten().tolist(), q.flatten().tolist(), strict=True):
        m = (a + b) / 2
        slow += 0.5 * (a * math.log2(a / m) + b * math.log2(b / m))
    assert js_guidance(q, p).item() == pytest.approx(slow)


@pytest.mark.parametrize("loss", [kl_guidance, js_guidance])
def test_nothing_to_learn_from_the_target_itself_or_from_none(loss) -> None:
    p = random_maps()
    assert loss(p, p).item() == pytest.approx(0, abs=1e-12)
    assert loss(p, torch.zeros_like(p)).item() == 0


@pytest.mark.parametrize("loss", [kl_guidance, js_guidance])
def test_gradient_is_finite_where_a_sparse_map_is_zero(loss) -> None:
    maps = torch.tensor([[[1.0, 0.0, 0.0]]], requires_grad=True)
    loss(maps, torch.tensor([[[0.0, 0.5, 0.5]]])).backward()
    assert torch.isfinite(maps.grad).all()


@pytest.mark.parametrize("loss", [kl_guidance, js_guidance])
def test_guides_the_scores_of_an_attention(loss) -> None:
    scores = torch.zeros(1, 4, requires_grad=True)
    target = torch.tensor([[[0.0, 0.0], [0.0, 1.0]]])
    attend = mechanism("softmax")
    optimiser = torch.optim.SGD([scores], lr=1.0)
    for _ in range(50):
        optimiser.zero_grad()
        loss(attend(scores, torch.ones(1, 4, 2), grid=(2, 2)).map(), target).backward()
        optimiser.step()
    assert attend(scores, torch.ones(1, 4, 2), grid=(2, 2)).weights[0, 3] > 0.8


@pytest.mark.parametrize("loss", [kl_guidance, js_guidance])
def test_another_grid_raises_an_error(loss) -> None:
    with pytest.raises(ShapeError, match=rf"{loss.__name__}: expected targets \(B, H, W\) of sizes \(1, 2, 2\)"):
        loss(torch.zeros(1, 2, 2), torch.zeros(1, 4, 4))
