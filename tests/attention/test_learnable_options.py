"""Options that training changes: per head or for all, inside their bounds."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

from foveate import MECHANISMS, Entmax, MultiheadAttention, entmax, mechanism, scaled_dot_product_attention
from foveate.attention import Learnable
from foveate.errors import ShapeError, UnknownName
from tests.cases import draw


def options_of(name: str) -> set[str]:
    return {key.split(".")[-2] for key in mechanism(name, learnable=True).state_dict()}


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_temperature_divides_the_scores(name):
    scores, values = draw(2, 3, 12), draw(2, 12, 5, seed=1)
    plain, warm = mechanism(name).eval(), mechanism(name, temperature=0.5).eval()
    torch.testing.assert_close(
        warm(scores, values, grid=(3, 4)).weights, plain(2 * scores, values, grid=(3, 4)).weights
    )
    temperature = nn.Parameter(torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).reshape(3, 1))
    learned = mechanism(name, temperature=temperature).eval()
    out = learned(scores, values, grid=(3, 4))
    torch.testing.assert_close(out.weights[:, 1], plain(scores, values, grid=(3, 4)).weights[:, 1])
    out.context.square().sum().backward()
    assert temperature.grad.shape == (3, 1)
    assert any(p is temperature for p in learned.parameters())
    assert all("temperature" in key for key in learned.state_dict())


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_both_derivatives_in_the_temperature(name):
    scores, values = draw(2, 9), draw(2, 9, 2, seed=1)
    temperature = torch.tensor([[0.8], [1.3]], dtype=torch.float64, requires_grad=True)

    def read(temperature):
        return mechanism(name, temperature=temperature).eval()(scores, values, grid=(3, 3)).context

    assert gradcheck(read, temperature, atol=1e-5, rtol=1e-4)
    assert gradgradcheck(read, temperature, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["entmax", "fusedmax", "tvmax", "gfusedmax"])
@pytest.mark.parametrize("heads", [None, 2])
def test_learnable_options_train_and_stay_inside(name, heads):
    torch.manual_seed(0)
    attend = mechanism(name, learnable=True, heads=heads)
    option = "alpha" if name == "entmax" else "smoothness"
    assert set(attend.state_dict()) == {f"{option}.raw", "temperature.raw"}
    scores, values = torch.randn(2, 2, 3, 12), torch.randn(2, 12, 5)
    out = attend(scores, values, grid=(3, 4))
    same = mechanism(name)(scores, values, grid=(3, 4))
    torch.testing.assert_close(out.weights, same.weights, rtol=0, atol=2e-3)
    out.context.square().sum().backward()
    assert all(p.grad.shape == ((2, 1, 1) if heads else ()) for p in attend.parameters())
    for step in (50.0, -200.0):
        with torch.no_grad():
            attend.get_parameter(f"{option}.raw").fill_(step)
        value = getattr(attend, option)()
        assert ((value > 1) & (value <= 2)).all() if option == "alpha" else ((value >= 9e-7) & (value < 1.1e6)).all()
        assert torch.isfinite(attend(scores, values, grid=(3, 4)).context).all()


LEARNED = [(n, o) for n in MECHANISMS for o in ("temperature", "smoothness", "alpha") if o in options_of(n)]


@pytest.mark.parametrize("raw", [-1000.0, -100.0, -12.0, 12.0, 100.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(("name", "option"), LEARNED)
def test_every_raw_number_has_finite_weights_and_gradients(name, option, dtype, raw):
    attend = mechanism(name, learnable=[option]).eval()
    (parameter,) = attend.parameters()
    with torch.no_grad():
        parameter.fill_(raw)
    scores, values = draw(2, 3, 12).to(dtype).requires_grad_(), draw(2, 12, 5, seed=1).to(dtype)
    seen = attend(scores, values, grid=(3, 4))
    assert seen.weights.dtype == seen.context.dtype == dtype
    torch.testing.assert_close(seen.weights.float().sum(-1), torch.ones(2, 3), rtol=0, atol=2e-2)
    (seen.context.square().sum() + seen.weights.square().sum()).backward()
    assert torch.isfinite(seen.context).all()
    assert torch.isfinite(parameter.grad)
    assert torch.isfinite(scores.grad).all()


def test_unbounded_options_are_exponentials_between_the_bends():
    for initial in (2e-6, 1e-4, 0.01, 1.0, 30.0, 5e5):
        assert Learnable(initial, 0.0)().item() == pytest.approx(initial, rel=1e-4)
    for raw in (-11.0, -3.0, 0.0, 5.0, 11.0):  # as saved before there were bounds
        part = Learnable(1.0, 0.0)
        with torch.no_grad():
            part.raw.fill_(raw)
        assert part().item() == pytest.approx(math.exp(raw), rel=1e-5)
    part = Learnable(1.0, 0.0).double()
    for raw in (-13.0, -11.6, -4.0, 11.6, 12.5, 14.0):
        x = torch.tensor(raw, dtype=torch.float64, requires_grad=True)
        assert gradcheck(lambda x: torch.func.functional_call(part, {"raw": x}, ()), x, rtol=1e-4)
        assert gradgradcheck(lambda x: torch.func.functional_call(part, {"raw": x}, ()), x, rtol=1e-3)
    with pytest.raises(ValueError, match=r"expected 0\.0 \+ 1e-6 < initial < 0\.0 \+ 1e6, got 1e-07"):
        Learnable(1e-7, 0.0)


@pytest.mark.parametrize("value", [0.0, -1.0, torch.nan])
def test_a_temperature_out_of_bounds_is_blamed_itself(value):
    temperature = torch.tensor([1.0, value, 1.0]).reshape(3, 1)
    with pytest.raises(ValueError, match=f"sparsemax: expected temperature > 0, got {value:g}; 1 leaves the scores"):
        mechanism("sparsemax", temperature=temperature)(draw(2, 3, 4), draw(2, 4, 1))


def test_one_option_alone_and_unknown_ones():
    assert set(mechanism("entmax", learnable=["alpha"]).state_dict()) == {"alpha.raw"}
    with pytest.raises(UnknownName, match="learnable option of tvmax: expected a known name, got 'alpha'"):
        mechanism("tvmax", learnable=["alpha"])


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_heads_need_something_learnable(name):
    with pytest.raises(
        ValueError, match=r"expected learnable beside heads=4, got learnable=False; pass learnable=True"
    ):
        mechanism(name, heads=4)


@pytest.mark.parametrize("name", [name for name, row in MECHANISMS.items() if row.continuous])
def test_continuous_mechanisms_learn_their_temperature_per_head(name):
    attend = mechanism(name, learnable=["temperature"], heads=3)
    assert {k: tuple(v.shape) for k, v in attend.state_dict().items()} == {"transform.temperature.raw": (3, 1, 1)}
    attend(torch.randn(2, 3, 2, 12), torch.randn(2, 12, 5), grid=(3, 4)).context.square().sum().backward()
    assert all((p.grad != 0).all() for p in attend.parameters())


def test_the_alpha_of_continuous_entmax_learns():
    attend = mechanism("continuous-entmax", learnable=True, alpha=1.3).double()
    assert set(attend.state_dict()) == {"transform.temperature.raw", "alpha.raw"}
    scores, values = draw(2, 3, 12), draw(2, 12, 5, seed=1)
    out = attend(scores, values, grid=(3, 4))
    same = mechanism("continuous-entmax", alpha=1.3)(scores, values, grid=(3, 4))
    torch.testing.assert_close(out.context, same.context)
    assert out.density.alpha == pytest.approx(1.3)
    out.context.square().sum().backward()
    assert attend.alpha.raw.grad.abs() > 0
    with torch.no_grad():
        attend.alpha.raw.fill_(5.0)
    assert attend(scores, values, grid=(3, 4)).density.alpha > 1.9


@pytest.mark.parametrize("grid", [(3, 4), (12,)])
def test_the_gradient_in_alpha_of_continuous_entmax_is_exact(grid):
    scores, values = draw(2, 12).requires_grad_(), draw(2, 12, 3, seed=1)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)

    def read(scores, alpha):
        return mechanism("continuous-entmax", alpha=alpha)(scores, values, grid=grid).context

    assert gradcheck(read, (scores, alpha))
    assert gradgradcheck(read, (scores, alpha))


def test_one_alpha_serves_all_heads():
    assert mechanism("continuous-entmax", alpha=nn.Parameter(torch.tensor([1.5])))(
        draw(1, 4), draw(1, 4, 2), grid=(2, 2)
    ).context.requires_grad
    with pytest.raises(ShapeError, match=r"expected alpha as a number or a tensor of one, got \(2, 1, 1\)"):
        mechanism("continuous-entmax", alpha=torch.full((2, 1, 1), 1.5))


def test_entmax_as_a_module():
    scores = draw(2, 4, 3, 5)
    torch.testing.assert_close(Entmax(1.3)(scores), entmax(scores, 1.3))
    learned = Entmax(1.7, learnable=True, shape=(4, 1, 1)).double()
    torch.testing.assert_close(learned(scores), entmax(scores, 1.7), rtol=1e-4, atol=1e-5)
    learned(scores).square().sum().backward()
    assert learned._alpha.raw.grad.abs().min() > 0
    assert "alpha=1.3" in repr(Entmax(1.3))
    with pytest.raises(ValueError, match=r"Learnable: expected 1\.001 < initial <= 2\.0, got 2\.5"):
        Entmax(2.5, learnable=True)
    assert Learnable(2.0, 1.0, 2.0)().item() == pytest.approx(2.0, abs=2e-3)


def test_in_multihead_and_scaled_dot_product_attention():
    alpha = torch.tensor([1.2, 1.8], dtype=torch.float64).reshape(2, 1, 1).requires_grad_()
    q, k, v = (draw(3, 2, 5, 4, seed=i) for i in range(3))
    out = scaled_dot_product_attention(q, k, v, transform="entmax", alpha=alpha)
    out.sum().backward()
    assert alpha.grad.shape == (2, 1, 1)
    multi = MultiheadAttention(8, 2, transform="tvmax", learnable=True)
    multi(torch.randn(1, 6, 8), torch.randn(1, 6, 8), grid=(2, 3)).context.sum().backward()
    assert multi.transform.smoothness.raw.grad.shape == (2, 1, 1)
