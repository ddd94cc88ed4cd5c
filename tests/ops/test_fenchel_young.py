"""Fenchel-Young losses: non-negative, zero at agreement, gradient p − q, for every transform with a regulariser."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from foveate.errors import ShapeError, UnknownName
from foveate.ops import TRANSFORMS, Transform, entmax, fenchel_young_loss, gfusedmax, softmax
from foveate.ops.fenchel_young import tsallis
from foveate.ops.grid import grid_edges
from tests.cases import GRID, NAMES, N, call, draw


def loss(name: str, scores: torch.Tensor, target: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    row = TRANSFORMS[name]
    if row.regulariser is None:
        pytest.skip(f"{name} has no regulariser, so it has no Fenchel-Young loss")
    if row.needs_edges:
        return fenchel_young_loss(scores, target, partial(row.function, edges=grid_edges(*GRID)), mask)
    if row.axes == 1:
        return fenchel_young_loss(scores, target, name, mask)
    mask = None if mask is None else mask.unflatten(-1, GRID)
    return fenchel_young_loss(scores.unflatten(-1, GRID), target.unflatten(-1, GRID), row.function, mask)


@pytest.mark.parametrize("name", NAMES)
def test_zero_exactly_at_agreement_and_positive_elsewhere(name):
    scores, other = draw(10, N), torch.softmax(draw(10, N, seed=1), -1)
    at = loss(name, scores, call(TRANSFORMS[name], scores))
    torch.testing.assert_close(at, torch.zeros(10, dtype=torch.float64), rtol=0, atol=1e-10)
    assert (loss(name, scores, other) > 1e-4).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradient_is_weights_less_target(name):
    scores, target = draw(4, N).requires_grad_(), torch.softmax(draw(4, N, seed=1), -1)
    (gradient,) = torch.autograd.grad(loss(name, scores, target).sum(), scores)
    torch.testing.assert_close(gradient, call(TRANSFORMS[name], scores.detach()) - target)
    assert torch.autograd.gradcheck(lambda z: loss(name, z, target), scores, eps=1e-6, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_second_derivative_is_the_jacobian(name):
    scores, target = draw(N).requires_grad_(), torch.softmax(draw(N, seed=1), -1)
    hessian = torch.autograd.functional.hessian(lambda z: loss(name, z, target), scores)
    jacobian = torch.autograd.functional.jacobian(lambda z: call(TRANSFORMS[name], z), scores)
    torch.testing.assert_close(hessian, jacobian)


@pytest.mark.parametrize("name", NAMES)
def test_masked_locations_do_not_count(name):
    mask = torch.arange(N) % 3 > 0
    scores = draw(N)
    target = call(TRANSFORMS[name], draw(N, seed=1), mask)
    expected = loss(name, scores, target, mask)
    assert torch.isfinite(expected)
    torch.testing.assert_close(loss(name, scores.masked_fill(~mask, 9.0), target, mask), expected)


@pytest.mark.parametrize("name", NAMES)
def test_masked_locations_leave_the_regulariser(name):
    mask = torch.arange(N) % 4 != 2  # inside the chain, the grid and the graph
    scores = draw(50, N)
    targets = call(TRANSFORMS[name], draw(50, N, seed=1), mask)
    at = loss(name, scores, call(TRANSFORMS[name], scores, mask), mask)
    torch.testing.assert_close(at, torch.zeros(50, dtype=torch.float64), rtol=0, atol=1e-10)
    losses = loss(name, scores, targets, mask)
    assert (losses > -1e-10).all()
    # The loss is convex in the scores with gradient p − q: it lies above its tangent at other scores.
    other = scores + 1e-3 * draw(50, N, seed=2)
    slope = ((call(TRANSFORMS[name], other, mask) - targets) * (scores - other)).sum(-1)
    assert (losses >= loss(name, other, targets, mask) + slope - 1e-10).all()
    without = loss(name, scores.masked_fill(~mask, -torch.inf), targets)
    torch.testing.assert_close(without, losses)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_that_is_no_distribution_is_named_by_its_row(name):
    scores, target = draw(2, 3, N), torch.softmax(draw(2, 3, N, seed=1), -1)
    for change, number in (
        (lambda row: row * 5, "sum 5"),
        (lambda row: row * 1.01, "sum 1.01"),
        (lambda row: row * 0, "sum 0"),
        (lambda row: row.index_fill(0, torch.tensor([2]), torch.nan), "smallest nan"),
        (lambda row: row.index_fill(0, torch.tensor([2]), torch.inf), "sum inf"),
        (lambda row: row + torch.eye(N, dtype=row.dtype)[0] * 0.5 - torch.eye(N, dtype=row.dtype)[1] * 0.5, "smallest"),
    ):
        wrong = target.clone()
        wrong[1, 2] = change(wrong[1, 2])
        with pytest.raises(ValueError, match=rf"non-negative weights that sum to one, got in row \(1, 2\).*{number}"):
            loss(name, scores, wrong)


@pytest.mark.parametrize("name", NAMES)
def test_a_target_may_be_rounded(name):
    scores, target = draw(20, N), torch.softmax(draw(20, N, seed=1), -1)
    exact = loss(name, scores, target)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 3e-2), (torch.bfloat16, 0.3)):
        torch.testing.assert_close(loss(name, scores, target.to(dtype)), exact, rtol=0, atol=tolerance)
    sparse = torch.eye(N, dtype=torch.float64)[:1]
    below = sparse.index_fill(1, torch.tensor([N - 1]), -1e-9)
    torch.testing.assert_close(loss(name, scores[:1], below), loss(name, scores[:1], sparse), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_anything_may_have_a_target_of_zeros(name):
    mask = torch.ones(2, N, dtype=torch.bool)
    mask[1] = False
    target = call(TRANSFORMS[name], draw(2, N, seed=1), mask)
    assert loss(name, draw(2, N), target, mask)[1] == 0


def test_a_transform_without_a_regulariser_has_no_loss(monkeypatch):
    monkeypatch.setitem(TRANSFORMS, "bare", Transform(bare_softmax, summary="no regulariser"))
    with pytest.raises(ValueError, match="expected a transform with a regulariser, got 'bare_softmax'; set the reg"):
        fenchel_young_loss(draw(3), draw(3), "bare")
    with pytest.raises(pytest.skip.Exception, match="bare has no regulariser, so it has no Fenchel-Young loss"):
        loss("bare", draw(3), draw(3))


def bare_softmax(scores: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    return softmax(scores, mask=mask)


def test_a_row_may_set_options_and_carry_a_name(monkeypatch):
    row = Transform(partial(entmax, alpha=1.2), tsallis, "near softmax", name="entmax-1.2")
    monkeypatch.setitem(TRANSFORMS, "gentle", row)
    scores, target = draw(4, N), torch.softmax(draw(4, N, seed=1), -1)
    expected = fenchel_young_loss(scores, target, partial(entmax, alpha=1.2))
    torch.testing.assert_close(fenchel_young_loss(scores, target, "gentle"), expected)
    torch.testing.assert_close(fenchel_young_loss(scores, target, row.function), expected)
    assert row.name == "entmax-1.2"
    assert Transform(row.function).name == "entmax"


@pytest.mark.parametrize("name", NAMES)
def test_vmap_of_the_gradient(name):
    scores, target = draw(4, N), torch.softmax(draw(4, N, seed=1), -1)
    got = torch.func.vmap(torch.func.grad(lambda z, q: loss(name, z, q)))(scores, target)
    torch.testing.assert_close(got, call(TRANSFORMS[name], scores) - target)


def test_softmax_gives_the_divergence():
    scores, target = draw(5, N), torch.softmax(draw(5, N, seed=1), -1)
    expected = torch.nn.functional.kl_div(scores.log_softmax(-1), target, reduction="none").sum(-1)
    torch.testing.assert_close(fenchel_young_loss(scores, target, "softmax"), expected)


def test_options_of_a_partial_are_used():
    scores, target = draw(N), torch.softmax(draw(N, seed=1), -1)
    losses = [fenchel_young_loss(scores, target, partial(entmax, alpha=a)).item() for a in (1.3, 1.7)]
    assert losses[0] != pytest.approx(losses[1])


@pytest.mark.parametrize("name", [name for name in NAMES if not TRANSFORMS[name].needs_edges])
def test_no_examples_and_no_locations(name):
    trailing = (0,) if TRANSFORMS[name].axes == 1 else (0, 4)
    for shape in ((2, *trailing), (0, 3, 4)):
        scores = torch.zeros(shape, requires_grad=True)
        losses = fenchel_young_loss(scores, torch.zeros(shape), TRANSFORMS[name].function)
        losses.sum().backward()
        assert losses.shape == shape[: len(shape) - TRANSFORMS[name].axes]
        assert (losses == 0).all()


def test_wrong_input_is_explained():
    with pytest.raises(UnknownName, match="did you mean 'softmax'"):
        fenchel_young_loss(draw(3), draw(3), "softmx")
    with pytest.raises(ShapeError, match=r"expected a target of the scores' shape \(3,\), got \(4,\)"):
        fenchel_young_loss(draw(3), draw(4), "softmax")
    with pytest.raises(TypeError, match=r"expected edges, got none; pass functools\.partial"):
        fenchel_young_loss(draw(3), draw(3), gfusedmax)
