"""More laws that every mechanism obeys: transforms of torch.func, empty inputs, the meta device."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from foveate import MECHANISMS, mechanism
from tests.cases import draw

pytestmark = pytest.mark.parametrize("name", list(MECHANISMS))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # forward mode of torch itself
def test_transforms_of_torch_func(name):
    """vmap, per-sample gradients and Jacobians, Hessians: what a loop over the samples returns."""
    attend, values = mechanism(name).eval(), draw(2, 12, 2, seed=1)
    samples = draw(3, 2, 12)

    def context(scores):
        return attend(scores, values, grid=(3, 4)).context

    def loss(scores):
        return context(scores).square().sum()

    func, close = torch.func, partial(torch.testing.assert_close, rtol=1e-6, atol=1e-7)
    jacobians = torch.stack([torch.autograd.functional.jacobian(context, x) for x in samples])
    gradients = torch.stack([torch.autograd.functional.jacobian(loss, x) for x in samples])
    close(func.vmap(context)(samples), torch.stack([context(x) for x in samples]))
    close(func.vmap(func.grad(loss))(samples), gradients)
    close(func.vmap(func.jacrev(context))(samples), jacobians)
    close(func.hessian(loss)(samples[0]), torch.autograd.functional.hessian(loss, samples[0]))


def test_vmap_returns_attention_with_its_density_and_masks(name):
    attend, values = mechanism(name).eval(), draw(2, 12, 2, seed=1)
    samples, masks = draw(3, 2, 12), draw(3, 2, 12, seed=2) > -1
    whole = torch.func.vmap(lambda z, m: attend(z, values, grid=(3, 4), mask=m))(samples, masks)
    assert whole.grid == (3, 4)
    for i in range(3):
        alone = attend(samples[i], values, grid=(3, 4), mask=masks[i])
        torch.testing.assert_close(whole.context[i], alone.context)
        torch.testing.assert_close(whole.mask[i], alone.mask)
        assert type(whole.density) is type(alone.density)
        if alone.density is not None:
            torch.testing.assert_close(whole.density.to_map(3, 3)[i], alone.density.to_map(3, 3))


EMPTY = {
    "no example": ((0, 12), (3, 4)),
    "no example of many queries": ((0, 2, 12), (3, 4)),
    "no query": ((2, 0, 12), (3, 4)),
    "no example with a grid each": ((0, 12), torch.zeros(0, 2, dtype=torch.long)),
    "no location": ((2, 0), (0, 4)),
    "no location, many queries": ((2, 3, 0), (0, 4)),
    "no location with a grid each": ((2, 0), torch.zeros(2, 2, dtype=torch.long)),
    "no location on a line": ((2, 0), (0,)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("shape", "grid"), EMPTY.values(), ids=EMPTY)
def test_nothing_in_nothing_out(name, training, shape, grid):
    if MECHANISMS[name].needs_grid and len(grid) == 1:
        pytest.skip("over a two-dimensional grid only")
    scores = torch.zeros(shape, requires_grad=True)
    values = torch.zeros(shape[0], shape[-1], 5, requires_grad=True)
    out = mechanism(name).train(training)(scores, values, grid=grid)
    assert out.context.shape == (*shape[:-1], 5)
    assert out.weights.shape == shape
    assert (out.context == 0).all()
    d = 1 if isinstance(grid, tuple) and len(grid) == 1 else 2
    assert out.map(*(4, 6)[:d]).shape == (*shape[:-1], *(4, 6)[:d])
    assert (out.map(*(4, 6)[:d]) == 0).all()
    if out.density is not None:
        assert out.density.mean.shape == (*shape[:-1], d)
    out.context.sum().backward()
    assert (scores.grad == 0).all()
    assert values.grad is not None


def test_meta_device(name):
    attend = mechanism(name).eval()
    out = attend(torch.zeros(2, 3, 12, device="meta"), torch.zeros(2, 12, 5, device="meta"), grid=(3, 4))
    assert out.context.shape == (2, 3, 5)
    assert out.weights.is_meta
    assert out.context.is_meta
    if out.density is not None:
        assert out.density.to_map(5, 5).shape == (2, 3, 5, 5)


def test_views_with_the_negative_bit(name):
    attend, scores, values = mechanism(name).eval(), draw(2, 3, 12), draw(2, 12, 2, seed=1)
    plain, other = scores.clone().requires_grad_(), torch._neg_view(-scores).requires_grad_()
    expected, found = (
        attend(z, v, grid=(3, 4)).context for z, v in ((plain, values), (other, torch._neg_view(-values)))
    )
    torch.testing.assert_close(found, expected)
    slopes = draw(2, 3, 2, seed=2)
    expected.backward(slopes)
    found.backward(torch._neg_view(-slopes))
    torch.testing.assert_close(other.grad, plain.grad)
