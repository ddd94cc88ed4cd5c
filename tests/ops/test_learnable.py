"""Alpha and smoothness as tensors: values, exact derivatives, references of fifty digits."""

from __future__ import annotations

import mpmath
import pytest
import torch

from foveate import entmax, fusedmax, gfusedmax, tvmax
from foveate.errors import ShapeError
from foveate.ops import prox_tv1d, prox_tv2d, prox_tv_graph
from foveate.ops.grid import grid_edges
from tests.cases import draw

ALPHAS = [1.001, 1.05, 1.3, 1.5, 1.9, 2.0, 3.0]


def alphas(*shape: int) -> torch.Tensor:
    return torch.tensor(ALPHAS, dtype=torch.float64)[: torch.Size(shape).numel()].reshape(shape)


def test_a_tensor_of_alphas_is_entmax_of_each():
    scores = 2 * draw(7, 3, 9)
    out = entmax(scores, alphas(7, 1, 1))
    for i, alpha in enumerate(ALPHAS):
        torch.testing.assert_close(out[i], entmax(scores[i], alpha), rtol=1e-7, atol=1e-10)
    moved = entmax(scores.movedim(-1, 1), alphas(7, 1, 1), dim=1)
    torch.testing.assert_close(moved.movedim(1, -1), out)
    low = entmax(scores.bfloat16(), alphas(7, 1, 1))
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), out, rtol=0, atol=2e-2)


def test_masks_infinities_and_nothing_to_attend_to():
    scores, mask = draw(3, 5), torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    scores[2, 1] = torch.inf
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)
    leaf = scores.requires_grad_()
    out = entmax(leaf, alpha, mask=mask)
    torch.testing.assert_close(out, entmax(scores, 1.4, mask=mask), rtol=1e-9, atol=1e-9)
    out.square().sum().backward()
    assert torch.isfinite(alpha.grad)
    assert (leaf.grad[1] == 0).all()
    assert entmax(torch.zeros(0, 4), alpha).shape == (0, 4)


def reference(scores: list[float], alpha: float) -> tuple[list, list]:
    """Weights and their derivative in alpha, by bisection with digits for weights to the power of alpha."""
    with mpmath.workdps(120):
        z, a = [mpmath.mpf(x) for x in scores], mpmath.mpf(alpha)

        def weights(c, a):
            return [max(1 + (a - 1) * (x - c), 0) ** (1 / (a - 1)) for x in z]

        def threshold(a):
            low, high = max(z), max(z) + mpmath.log(len(z)) + 1
            for _ in range(450):
                mid = (low + high) / 2
                low, high = (mid, high) if sum(weights(mid, a)) > 1 else (low, mid)
            return low

        h = mpmath.mpf(10) ** -15
        up, down = (weights(threshold(a + s), a + s) for s in (h, -h))
        return weights(threshold(a), a), [(u - d) / (2 * h) for u, d in zip(up, down, strict=True)]


@pytest.mark.parametrize(
    ("alpha", "scale"), [(1.001, 1), (1.2, 1), (1.5, 1), (1.75, 1), (2.0, 1), (3.0, 0.5), (10.0, 0.08), (40.0, 0.01)]
)
def test_fifty_digits(alpha, scale):
    scores = [scale * z for z in (1.3, 0.9, 0.2, -0.7, -4.0)]
    weights, slopes = reference(scores, alpha)
    a = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    z = torch.tensor(scores, dtype=torch.float64)
    for i in range(5):
        out = entmax(z, a)
        (slope,) = torch.autograd.grad(out[i], a)
        assert abs(float(out[i].detach()) - float(weights[i])) < 1e-14
        assert abs(float(slope) - float(slopes[i])) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("alpha", [2.5, 10.0, 20.0, 50.0, 64.0])
@pytest.mark.parametrize("scale", [0.01, 0.1, 1.0])
def test_gradients_of_large_alphas_are_finite_in_every_dtype(dtype, alpha, scale):
    scores, slopes = ((scale * draw(64, 12)).to(dtype), draw(64, 12, seed=1).to(dtype))
    number, row = scores.clone().requires_grad_(), scores.clone().requires_grad_()
    (entmax(number, alpha) * slopes).sum().backward()
    tensor = torch.full((64, 1), alpha, dtype=torch.promote_types(dtype, torch.float32), requires_grad=True)
    (entmax(row, tensor) * slopes).sum().backward()
    assert torch.isfinite(number.grad).all()
    assert number.grad.dtype == dtype
    torch.testing.assert_close(row.grad, number.grad, rtol=2e-2 if dtype.itemsize < 4 else 1e-3, atol=1e-5)
    assert torch.isfinite(tensor.grad).all()


def test_large_alphas_in_half_precision_under_the_compiler_and_per_sample():
    """Two alphas: the second makes the number symbolic."""
    scores, slopes = (0.003 * draw(64, 12)).half(), draw(12, seed=1).half()
    scores[:, :6] = 0.125  # six equal weights: q is 6^18

    def loss(scores, alpha):
        return (entmax(scores, alpha) * slopes).sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    for alpha in (20.0, 30.0):
        eager, leaf = scores.clone().requires_grad_(), scores.clone().requires_grad_()
        loss(eager, alpha).backward()
        compiled(leaf, alpha).backward()
        assert torch.isfinite(eager.grad).all()
        assert eager.grad.abs().max() == torch.finfo(torch.float16).max
        torch.testing.assert_close(leaf.grad, eager.grad)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(0, None))(scores, alpha)
        torch.testing.assert_close(each, eager.grad)


def check_derivatives(function, *leaves):
    leaves = tuple(leaf.detach().requires_grad_() for leaf in leaves)
    assert torch.autograd.gradcheck(function, leaves, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # forward mode of torch itself
def test_derivatives_in_alpha():
    scores = draw(2, 3, 5)
    check_derivatives(entmax, scores * 0.1, torch.tensor([[1.5], [4.0], [9.0]], dtype=torch.float64))
    for shape in ((), (3, 1), (2, 3, 1)):
        check_derivatives(entmax, scores, alphas(7)[1:].repeat(2)[: torch.Size(shape).numel()].reshape(shape))


GRAPH = torch.tensor([[0, 1], [1, 2], [0, 4], [3, 4], [5, 9]])
SMOOTH = {
    "fusedmax": lambda z, s: fusedmax(z, s),
    "tvmax": lambda z, s: tvmax(z.unflatten(-1, (3, 4)), s.unsqueeze(-1) if s.ndim else s),
    "gfusedmax": lambda z, s: gfusedmax(z, GRAPH, s),
    "prox_tv1d": lambda z, s: prox_tv1d(z, s),
    "prox_tv2d": lambda z, s: prox_tv2d(z.unflatten(-1, (3, 4)), s.unsqueeze(-1) if s.ndim else s),
    "prox_tv_graph": lambda z, s: prox_tv_graph(z, GRAPH, s),
}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("function", SMOOTH.values(), ids=SMOOTH)
def test_smoothness_as_a_tensor(function):
    scores = draw(2, 2, 12)
    for shape in ((), (2, 2, 1)):
        smoothness = torch.tensor([0.05, 0.2, 0.6, 1.1], dtype=torch.float64)[: torch.Size(shape).numel()].reshape(
            shape
        )
        out, each = function(scores, smoothness), smoothness.expand(2, 2, 1)
        for i in range(2):
            for j in range(2):
                alone = function(scores[i, j], float(each[i, j]) * torch.ones((), dtype=torch.float64))
                torch.testing.assert_close(out[i, j], alone, rtol=1e-9, atol=1e-9)
        check_derivatives(function, scores, smoothness)


def test_the_slope_in_lambda_is_the_signed_boundary_over_the_size():
    """Two groups of a chain: the upper falls by λ / 2, the lower rises by λ / 3."""
    x = torch.tensor([0.0, 0.1, 0.0, 4.0, 4.1], dtype=torch.float64)
    smoothness = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(prox_tv1d(x, smoothness)[i], smoothness)[0].item() for i in range(5)]
    assert slopes == pytest.approx([1 / 3] * 3 + [-1 / 2] * 2)


def test_masks_zero_and_large_smoothness():
    scores, mask = draw(2, 3, 4), draw(2, 3, 4, seed=1) > -0.5
    for value in (0.0, 1e-30, 0.3, 1e6):
        smoothness = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        out = tvmax(scores, smoothness, mask)
        torch.testing.assert_close(out, tvmax(scores, value, mask), rtol=1e-7, atol=1e-9)
        out.square().sum().backward()
        assert torch.isfinite(smoothness.grad)


def test_under_the_compiler_and_vmap():
    scores, alpha = draw(3, 12), torch.tensor([1.2, 1.5, 1.8], dtype=torch.float64)
    smoothness = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    expected = entmax(scores, alpha[:, None]), gfusedmax(scores, grid_edges(3, 4), smoothness[:, None])

    def both(z, a, s):
        return entmax(z, a), gfusedmax(z, grid_edges(3, 4), s)

    torch.testing.assert_close(torch.func.vmap(both)(scores, alpha, smoothness), expected)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(scores, alpha[:, None], smoothness[:, None]), expected)


def test_what_does_not_fit_is_explained():
    scores = draw(2, 3, 4)
    with pytest.raises(ValueError, match="expected 1 < alpha <= 64, got 1"):
        entmax(scores, torch.ones(3, 1))
    with pytest.raises(ShapeError, match=r"alpha as a number or a tensor that broadcasts to \(2, 3, 1\), got \(4,\)"):
        entmax(scores, torch.full((4,), 1.5))
    with pytest.raises(ShapeError, match=r"smoothness as a number or a tensor that broadcasts to \(2, 1, 1\), got"):
        tvmax(scores, torch.full((3, 1), 0.1))
    with pytest.raises(ValueError, match="tvmax: expected smoothness >= 0, got -1"):
        tvmax(scores, torch.tensor([0.1, -1.0]).reshape(2, 1, 1))
    with pytest.raises(TypeError, match=r"expected floating-point alpha, got torch\.int64"):
        entmax(scores, torch.tensor([2, 2, 2]).reshape(3, 1))
