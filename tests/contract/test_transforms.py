"""The laws that every transform of the table obeys."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

from foveate.errors import ShapeError
from foveate.ops import TRANSFORMS, Transform
from tests.cases import GRID, NAMES, N, call, draw

pytestmark = pytest.mark.parametrize("name", NAMES)
# Loading its forward-mode derivatives, torch uses what it has itself deprecated.
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
WITH_DIM = [name for name in NAMES if "dim" in inspect.signature(TRANSFORMS[name].function).parameters]


def test_rows_lie_on_the_simplex(name):
    weights = call(TRANSFORMS[name], 3 * draw(50, N))
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(50, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_shift_changes_nothing(name):
    scores = draw(20, N)
    expected = call(TRANSFORMS[name], scores)
    for offset in (-5.0, 1e3, 1e7):
        got = call(TRANSFORMS[name], scores + offset)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-8 if offset == 1e7 else 1e-11)


def test_rows_are_independent(name):
    scores = draw(6, N)
    together = call(TRANSFORMS[name], scores)
    for i in range(6):
        torch.testing.assert_close(together[i], call(TRANSFORMS[name], scores[i]), rtol=0, atol=1e-12)
    torch.testing.assert_close(call(TRANSFORMS[name], scores.reshape(2, 3, N)).reshape(6, N), together)


def test_every_axis(name):
    if name not in WITH_DIM:
        with pytest.raises(TypeError):
            TRANSFORMS[name].function(draw(3, 4), dim=0)
        return
    function, scores = TRANSFORMS[name].function, draw(3, 4, 5)
    for dim in (-3, -2, -1, 0, 1, 2):
        expected = function(scores.movedim(dim, -1)).movedim(-1, dim)
        torch.testing.assert_close(function(scores, dim=dim), expected, rtol=0, atol=1e-12)
    with pytest.raises(ShapeError, match=r"expected dim in \[-3, 2\].*got 3; use an axis of the scores"):
        function(scores, dim=3)


def test_masked_locations_have_no_weight_and_no_influence(name):
    scores, mask = draw(8, N), torch.rand(8, N, generator=torch.Generator().manual_seed(1)) > 0.4
    weights = call(TRANSFORMS[name], scores, mask)
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(8, dtype=torch.float64))
    for junk in (100.0, math.nan, math.inf, -math.inf):
        torch.testing.assert_close(call(TRANSFORMS[name], scores.masked_fill(~mask, junk), mask), weights)
    torch.testing.assert_close(call(TRANSFORMS[name], scores.masked_fill(~mask, -math.inf)), weights)


def test_a_mask_of_one_row_serves_all(name):
    scores, mask = draw(4, N), torch.arange(N) % 3 > 0
    one = call(TRANSFORMS[name], scores, mask)
    torch.testing.assert_close(one, call(TRANSFORMS[name], scores, mask.expand(4, N)))
    assert (one[:, ~mask] == 0).all()


def test_nothing_to_attend_to_gives_zeros_with_zero_gradient(name):
    scores = draw(3, N).requires_grad_()
    mask = torch.ones(3, N, dtype=torch.bool)
    mask[1] = False
    weights = call(TRANSFORMS[name], scores, mask)
    (weights * draw(3, N, seed=2)).sum().backward()
    assert (weights[1] == 0).all()
    assert (scores.grad[1] == 0).all()
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[0].abs().sum() > 0
    assert (call(TRANSFORMS[name], torch.full((2, N), -math.inf)) == 0).all()


def test_infinite_scores_share_the_weight(name):
    scores = draw(2, N)
    scores[0, [2, 7, 8]] = math.inf
    weights = call(TRANSFORMS[name], scores)
    expected = torch.zeros(N, dtype=torch.float64)
    expected[[2, 7, 8]] = 1 / 3
    torch.testing.assert_close(weights[0], expected)
    torch.testing.assert_close(weights[1], call(TRANSFORMS[name], scores[1]))


def test_infinite_scores_have_the_gradient_of_ties(name):
    places, slopes = [2, 7, 8], draw(2, N, seed=1)
    scores = draw(2, N)
    scores[0, places] = math.inf
    ties, mask = scores.clone(), torch.ones(2, N, dtype=torch.bool)
    ties[0, places], mask[0] = 0.0, torch.isinf(scores[0])

    def read(scores, mask=None):
        return (call(TRANSFORMS[name], scores, mask) * slopes).sum()

    expected = torch.func.grad(read)(ties, mask)
    assert (expected[0, places] != 0).any()
    torch.testing.assert_close(torch.func.grad(read)(scores), expected)
    torch.testing.assert_close(torch.autograd.functional.jacobian(read, scores), expected)


def test_views_with_the_negative_bit(name):
    scores, slopes = draw(3, N), draw(3, N, seed=1)
    plain, view = scores.clone().requires_grad_(), torch._neg_view(-scores).requires_grad_()
    assert view.is_neg()
    one, other = call(TRANSFORMS[name], plain), call(TRANSFORMS[name], view)
    torch.testing.assert_close(other, one)
    one.backward(slopes)
    other.backward(torch._neg_view(-slopes))
    torch.testing.assert_close(view.grad, plain.grad)


def test_gradient_is_exact(name):
    scores = draw(3, N, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: call(TRANSFORMS[name], z), scores, eps=1e-7, atol=1e-5)


def test_gradient_is_exact_with_a_mask(name):
    scores, mask = draw(3, N, seed=4).requires_grad_(), torch.arange(N) % 4 > 0
    assert torch.autograd.gradcheck(lambda z: call(TRANSFORMS[name], z, mask), scores, eps=1e-7, atol=1e-5)


def test_double_backward(name):
    scores = draw(2, N, seed=5).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda z: call(TRANSFORMS[name], z), scores, eps=1e-7, atol=1e-5)


def test_gradient_of_a_shift_is_zero(name):
    scores = draw(5, N).requires_grad_()
    (call(TRANSFORMS[name], scores) * draw(5, N, seed=6)).sum().backward()
    torch.testing.assert_close(scores.grad.sum(-1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)


def test_two_calls_before_one_backward(name):
    first, second = draw(3, N, seed=7).requires_grad_(), draw(3, N, seed=8).requires_grad_()
    gradient = draw(3, N, seed=9)
    a, b = call(TRANSFORMS[name], first), call(TRANSFORMS[name], second)
    ((a + 2 * b) * gradient).sum().backward()
    alone = draw(3, N, seed=7).requires_grad_()
    (call(TRANSFORMS[name], alone) * gradient).sum().backward()
    torch.testing.assert_close(first.grad, alone.grad)


def test_inputs_are_untouched(name):
    scores, mask = draw(3, N), torch.arange(N) > 2
    before, mask_before = scores.clone(), mask.clone()
    call(TRANSFORMS[name], scores, mask)
    assert torch.equal(scores, before)
    assert torch.equal(mask, mask_before)


def test_scores_of_any_layout(name):
    scores = draw(N, 5).T
    torch.testing.assert_close(call(TRANSFORMS[name], scores), call(TRANSFORMS[name], scores.contiguous()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(name, dtype):
    scores = draw(20, N, dtype=dtype).requires_grad_()
    weights = call(TRANSFORMS[name], scores)
    weights.sum().backward()
    assert weights.dtype == scores.grad.dtype == dtype
    exact = call(TRANSFORMS[name], scores.detach().double())
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-6}[dtype]
    torch.testing.assert_close(weights.double(), exact, rtol=0, atol=tolerance)


def test_compiles_whole(name):
    torch._dynamo.reset()
    compiled = torch.compile(lambda z, m: call(TRANSFORMS[name], z, m), fullgraph=True, backend="aot_eager")
    scores, mask = draw(3, N, seed=10).requires_grad_(), torch.arange(N) % 5 > 0
    weights = compiled(scores, mask)
    (weights * draw(3, N, seed=11)).sum().backward()
    plain = scores.detach().clone().requires_grad_()
    (call(TRANSFORMS[name], plain, mask) * draw(3, N, seed=11)).sum().backward()
    torch.testing.assert_close(weights, call(TRANSFORMS[name], plain, mask))
    torch.testing.assert_close(scores.grad, plain.grad)


def test_vmap(name):
    scores, mask = draw(4, 3, N, seed=12), torch.arange(N) % 5 > 0
    expected = call(TRANSFORMS[name], scores, mask)
    torch.testing.assert_close(torch.vmap(lambda z: call(TRANSFORMS[name], z, mask))(scores), expected)
    masks = mask.expand(4, N)
    torch.testing.assert_close(torch.vmap(lambda z, m: call(TRANSFORMS[name], z, m))(scores, masks), expected)
    swapped = torch.vmap(lambda z: call(TRANSFORMS[name], z), in_dims=1, out_dims=1)(scores)
    torch.testing.assert_close(swapped, call(TRANSFORMS[name], scores))


@forward_mode
def test_vmap_of_derivatives(name):
    scores, target = draw(4, N, seed=12), draw(N, seed=13)

    def weigh(z):
        return call(TRANSFORMS[name], z)

    def loss(z):
        return (weigh(z) * target).sum()

    jacobians = torch.stack([torch.autograd.functional.jacobian(weigh, z) for z in scores])
    torch.testing.assert_close(vmap(jacrev(weigh))(scores), jacobians)
    torch.testing.assert_close(vmap(jacfwd(weigh))(scores), jacobians)
    torch.testing.assert_close(vmap(grad(loss))(scores), jacobians @ target)
    hessians = torch.stack([torch.autograd.functional.hessian(loss, z) for z in scores])
    torch.testing.assert_close(vmap(jacrev(grad(loss)))(scores), hessians)


@forward_mode
def test_forward_mode_agrees_with_backward_mode(name):
    scores, tangent, mask = draw(3, N, seed=14), draw(3, N, seed=15), torch.arange(N) % 5 > 0
    _, forward = jvp(lambda z: call(TRANSFORMS[name], z, mask), (scores,), (tangent,))
    expected = torch.autograd.functional.jvp(lambda z: call(TRANSFORMS[name], z, mask), scores, tangent)[1]
    torch.testing.assert_close(forward, expected)
    with forward_ad.dual_level():
        weights = call(TRANSFORMS[name], forward_ad.make_dual(scores, tangent), mask)
        torch.testing.assert_close(forward_ad.unpack_dual(weights).tangent, expected)


def test_one_location_has_all_the_weight(name):
    row = TRANSFORMS[name]
    scores = draw(2, *[1] * row.axes).requires_grad_()
    weights = row.function(scores, **without_edges(row))
    weights.square().sum().backward()
    assert (weights == 1).all()
    assert (scores.grad == 0).all()


def test_no_examples_and_no_locations(name):
    row = TRANSFORMS[name]
    shapes = [(0, 3, 4), (2, 0, 4), (2, 3, 0), (0, 0), (2, 0, 0)] if row.axes == 2 else [(0, 3), (2, 0), (0,), (0, 0)]
    for shape in shapes:
        for dtype in (torch.float16, torch.float32, torch.float64):
            scores = torch.zeros(shape, dtype=dtype, requires_grad=True)
            for mask in (None, torch.ones(shape, dtype=torch.bool)):
                weights = row.function(scores, mask=mask, **without_edges(row))
                weights.sum().backward()
                assert weights.shape == scores.grad.shape == shape
                assert weights.dtype == dtype


def test_fake_tensors_have_a_shape_and_no_values(name):
    with FakeTensorMode():
        weights = call(TRANSFORMS[name], torch.zeros(3, N), torch.ones(N, dtype=torch.bool))
    assert isinstance(weights, FakeTensor)
    assert weights.shape == (3, N)


def test_meta_tensors_have_a_shape_and_no_values(name):
    scores, mask = torch.zeros(3, N, device="meta"), torch.ones(N, dtype=torch.bool, device="meta")
    for weights in (call(TRANSFORMS[name], scores), call(TRANSFORMS[name], scores, mask)):
        assert weights.is_meta
        assert weights.shape == (3, N)
        assert weights.dtype == torch.float32


@pytest.mark.parametrize("scale", [1e100, 1e155, 1e300])
def test_huge_scores(name, scale):
    scores = draw(6, N, seed=16).requires_grad_()
    weights = call(TRANSFORMS[name], scores * scale)
    expected = torch.nn.functional.one_hot(scores.argmax(-1), N).double()
    torch.testing.assert_close(weights, expected)
    weights.square().sum().backward()
    assert torch.isfinite(scores.grad).all()
    flat = call(TRANSFORMS[name], torch.full((2, N), scale, dtype=torch.float64))
    torch.testing.assert_close(flat, torch.full((2, N), 1 / N, dtype=torch.float64))


def test_tiny_scores_are_nearly_equal(name):
    for scale in (1e-155, 1e-300):
        weights = call(TRANSFORMS[name], draw(6, N) * scale)
        torch.testing.assert_close(weights, torch.full((6, N), 1 / N, dtype=torch.float64))


def without_edges(row: Transform) -> dict[str, torch.Tensor]:
    return {"edges": torch.zeros(0, 2, dtype=torch.long)} if row.needs_edges else {}


def test_wrong_input_is_explained(name):
    row = TRANSFORMS[name]
    with pytest.raises(TypeError, match=rf"{row.name}: expected floating-point scores, got torch.int64; call .float"):
        call(row, torch.zeros(2, N, dtype=torch.long))
    bad = draw(2, N)
    bad[1, 3] = bad[1, 5] = math.nan
    at = r"\(1, 0, 3\)" if row.axes == 2 else r"\(1, 3\)"
    with pytest.raises(ValueError, match=rf"{row.name}: expected scores without NaN, got 2 of 24, the first at {at};"):
        call(row, bad)
    if name in WITH_DIM:
        with pytest.raises(ValueError, match=rf"{row.name}: expected scores without NaN.*first at \(3, 1\);"):
            row.function(bad.T, dim=0)
    scores = draw(2, *GRID) if row.axes == 2 else draw(2, N)
    with pytest.raises(ShapeError, match=rf"{row.name}: expected a mask that broadcasts to .*pass a mask"):
        row.function(scores, mask=torch.ones(7, dtype=torch.bool), **without_edges(row))
    with pytest.raises(TypeError, match=rf"{row.name}: expected a boolean mask, got torch.float32; use mask.bool"):
        row.function(scores, mask=torch.ones(scores.shape), **without_edges(row))
    if "smoothness" in inspect.signature(row.function).parameters:
        for value in (-0.1, math.nan, math.inf):
            with pytest.raises(ValueError, match=rf"{row.name}: expected smoothness >= 0, got .*; 0 leaves the scores"):
                call(row, draw(2, N), smoothness=value)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_input_gives_nan(name, data):
    number = st.floats(min_value=-1e300, max_value=1e300) | st.sampled_from(
        [0.0, 1.0, math.inf, -math.inf, 1e-300, -1e-45]
    )
    scores = torch.tensor(data.draw(st.lists(number, min_size=N, max_size=N)), dtype=torch.float64)
    if data.draw(st.booleans()):
        scores = scores.float()
    mask = torch.tensor(data.draw(st.lists(st.booleans(), min_size=N, max_size=N)))
    scores.requires_grad_()
    weights = call(TRANSFORMS[name], scores, mask)
    weights.square().sum().backward()
    assert torch.isfinite(weights).all()
    assert torch.isfinite(scores.grad).all()
    total = float(weights.detach().sum())
    assert total == pytest.approx(1.0 if bool((mask & (scores > -math.inf)).any()) else 0.0, abs=1e-5)
