"""Results of attention as values: printed briefly, moved, saved and loaded safely; flat grids and videos."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.attention import Attended, SparseWeights, mechanism
from foveate.errors import ShapeError
from foveate.ops import gfusedmax, tvmax
from foveate.ops.basis import GaussianBasis
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import grid_edges, lattice_edges
from foveate.ops.total_variation import solve_tv1d

NAMES = ["sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "continuous-entmax", "multimodal"]


def attended(name: str, dtype: torch.dtype = torch.float32) -> Attended:
    g = torch.Generator().manual_seed(0)
    scores, values = torch.randn(3, 2, 49, generator=g).to(dtype), torch.randn(3, 49, 5, generator=g).to(dtype)
    mask = torch.rand(3, 49, generator=g) > 0.1
    out: Attended = mechanism(name).eval()(scores, values, grid=(7, 7), mask=mask)
    return out


def tensors(value: Any) -> list[Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, Tensor)]


@pytest.mark.parametrize("name", NAMES)
def test_printed_in_at_most_five_lines_without_tensors(name: str) -> None:
    out = attended(name)
    for value in (out, out.density, out[0]):
        text = repr(value)
        assert len(text.splitlines()) <= 5
        assert max(map(len, text.splitlines())) <= 130
        assert "tensor(" not in text
    assert "(3, 2, 49)" in repr(out)
    assert f"of {out.weights.shape[-1]} weights above zero" in repr(out)


def test_numbers_that_are_printed() -> None:
    one = Gaussian(torch.tensor([0.25, 0.5]), 0.01 * torch.eye(2))
    assert repr(one) == "Gaussian(mean=(2,), covariance=(2, 2), at (0.25, 0.50), deviations (0.10, 0.10))"
    fit = attended("multimodal").density
    assert "components used" in repr(fit)
    assert "mean background" in repr(fit)
    assert repr(SparseWeights.of(torch.eye(3))) == "SparseWeights(indices=(3, 1) int32, weights=(3, 1), key_count=3)"
    assert repr(solve_tv1d(torch.zeros(2, 3), 0.1)).startswith("TVSolution(value=(2, 3), gap=(2,) float64")


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_with_weights_only(name: str) -> None:
    out, file = attended(name), io.BytesIO()
    torch.save(out, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)
    assert type(back) is Attended
    assert type(back.density) is type(out.density)
    for a, b in zip(tensors(out), tensors(back), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", NAMES)
def test_moved_and_detached(name: str) -> None:
    out = attended(name)
    wide = out.to(torch.float64)
    assert all(x.dtype in (torch.float64, torch.bool) for x in tensors(wide))
    assert all(x.device.type == "meta" for x in tensors(out.to("meta")))
    assert all(x.device.type == "cpu" for x in tensors(out.cpu()))
    scores = torch.randn(2, 49, requires_grad=True)
    with_gradient = mechanism(name).eval()(scores, torch.randn(2, 49, 3), grid=(7, 7))
    assert with_gradient.context.requires_grad
    assert not any(x.requires_grad for x in tensors(with_gradient.detach()))


def test_plot_draws_what_show_draws() -> None:
    figure = attended("tvmax")[0].mean_over_queries().plot()
    assert type(figure).__name__ == "Figure"


def test_tvmax_of_flat_scores_takes_the_grid() -> None:
    scores = torch.randn(2, 3, 30, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 1, 30) > 0.2
    smoothness = torch.tensor([0.05, 0.1, 0.2], dtype=torch.float64)[:, None]
    for strength in (0.1, smoothness):
        flat = tvmax(scores, strength, mask, grid=(5, 6))
        other = strength.unsqueeze(-1) if isinstance(strength, Tensor) else strength
        torch.testing.assert_close(
            flat, tvmax(scores.unflatten(-1, (5, 6)), other, mask.unflatten(-1, (5, 6))).flatten(-2)
        )
    assert tvmax.__doc__ is not None
    assert "(..., H, W)" in tvmax.__doc__.splitlines()[0]
    for wrong in ((5, 5), (30,), (1, 2, 3, 5)):
        with pytest.raises(ShapeError, match="tvmax: expected scores"):
            tvmax(scores, grid=wrong)


def test_the_neighbours_of_a_video() -> None:
    assert lattice_edges(3, 4).tolist() == grid_edges(3, 4).tolist()
    assert len(lattice_edges(2, 3, 4)) == 12 + 2 * 8 + 2 * 9
    scores = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(tvmax(scores, 0.1, grid=(1, 4, 6)), tvmax(scores, 0.1, grid=(4, 6)))
    torch.testing.assert_close(tvmax(scores, 0.1, grid=(2, 3, 4)), gfusedmax(scores, lattice_edges(2, 3, 4), 0.1))
    assert torch.autograd.gradcheck(lambda z: tvmax(z, 0.1, grid=(2, 3, 4)), scores)
    turned = scores.unflatten(-1, (2, 3, 4)).permute(0, 3, 1, 2).flatten(1)  # the axes are alike
    expected = tvmax(scores, 0.1, grid=(2, 3, 4)).unflatten(-1, (2, 3, 4)).permute(0, 3, 1, 2).flatten(1)
    torch.testing.assert_close(tvmax(turned, 0.1, grid=(4, 2, 3)), expected)


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "entmax", "tvmax", "gfusedmax", "fusedmax"])
def test_discrete_attention_to_a_video(name: str) -> None:
    attend, mask = mechanism(name), torch.rand(2, 24) > 0.2
    scores, values = torch.randn(2, 24, requires_grad=True), torch.randn(2, 24, 5)
    out = attend(scores, values, grid=(2, 3, 4), mask=mask)
    assert out.map().shape == (2, 2, 3, 4)
    torch.testing.assert_close(out.map().sum((1, 2, 3)), torch.ones(2))
    assert out.map(6, 8).shape == (2, 2, 6, 8)
    assert (out.weights[~mask] == 0).all()
    target = torch.softmax(torch.randn(2, 24), -1)
    loss = attend.loss(scores, target, grid=(2, 3, 4))
    (gradient,) = torch.autograd.grad(loss.sum(), scores)
    torch.testing.assert_close(gradient, attend.weigh(scores, (2, 3, 4)) - target, atol=1e-5, rtol=0)
    with pytest.raises(ShapeError, match=r"Attended\.fit: expected a grid of one or two axes"):
        out.fit("multimodal")


@pytest.mark.parametrize("name", ["continuous-softmax", "continuous-sparsemax", "multimodal", "k-mca"])
def test_densities_of_a_video_are_not_there(name: str) -> None:
    with pytest.raises(ShapeError, match="expected a grid of one or two axes"):
        mechanism(name)(torch.zeros(1, 8), torch.zeros(1, 8, 2), grid=(2, 2, 2))


@pytest.mark.parametrize("name", ["tvmax", "continuous-softmax", "multimodal", "k-mca", "multimodal-sparse"])
def test_what_needs_a_grid_says_so(name: str) -> None:
    scores, values = torch.randn(1, 6), torch.randn(1, 6, 3)
    with pytest.raises(ShapeError, match=r"expected grid=\(H, W\), got None.*grid=\(6,\)"):
        mechanism(name)(scores, values)
    assert mechanism(name)(scores, values, grid=(6,)).map().shape == (1, 6)
    assert len(GaussianBasis.for_grid(6)) <= 6
