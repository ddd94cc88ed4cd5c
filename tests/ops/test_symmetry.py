"""Maps without structure and maps that are their own mirror images: no side is favoured, whatever computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.attention import mechanism
from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_fit import fit_mixture, select_mixture
from tests.mixtures import only_torch, seeded

SQUARE = range(8)
DTYPES = [torch.float32, torch.float64]


def turned(maps: Tensor, which: int) -> Tensor:
    """One of the eight mirrors and rotations of (B, H, W) maps."""
    maps = maps.flip(-1) if which & 1 else maps
    maps = maps.flip(-2) if which & 2 else maps
    return maps.transpose(-1, -2) if which & 4 else maps


def group(name: str) -> list[int]:
    return {"x": [0, 1], "y": [0, 2], "half": [0, 3], "both": [0, 1, 2, 3], "diagonal": [0, 4], "all": list(SQUARE)}[
        name
    ]


def symmetric_maps(name: str, side: int, seed: int, sharpness: float) -> Tensor:
    """Softmax of random scores that are their own images under a group of mirrors and rotations."""
    scores = torch.randn(4, side, side, dtype=torch.float64, generator=seeded(seed))
    scores = torch.stack([turned(scores, g) for g in group(name)]).mean(0) * sharpness
    return torch.softmax(scores.flatten(1), -1).unflatten(-1, (side, side))


def density(fit: Mixture) -> Tensor:
    return fit.to_map(6, 6)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", ["x", "y", "half", "both", "diagonal", "all"])
def test_symmetric_maps_have_symmetric_mixtures(name: str, native: bool) -> None:
    for seed, (side, sharpness) in enumerate([(7, 1.0), (6, 3.0), (9, 6.0)]):
        maps = symmetric_maps(name, side, seed, sharpness)
        for dtype, close in ((torch.float32, 2e-4), (torch.float64, 1e-8)):
            weights, positions = maps.to(dtype), cell_centres(side, side, dtype=dtype)
            with only_torch() if not native else torch.no_grad():
                chosen = density(select_mixture(weights.flatten(1), positions))
                three = density(fit_mixture(weights.flatten(1), positions, 3, 5, start="spread", restarts=2))
            for g in group(name):
                torch.testing.assert_close(turned(chosen, g), chosen, rtol=0, atol=close)
                # symmetric fits with a given number may be saddles: rounding grows threefold with every step
                torch.testing.assert_close(turned(three, g), three, rtol=0, atol=20 * close)


@pytest.mark.parametrize("name", ["x", "diagonal", "all"])
def test_symmetric_maps_turn_with_the_grid(name: str) -> None:
    maps = symmetric_maps(name, 8, 3, 3.0)
    positions = cell_centres(8, 8, dtype=torch.float64)
    found = density(select_mixture(maps.flatten(1), positions))
    for g in SQUARE:
        other = density(select_mixture(turned(maps, g).flatten(1), positions))
        torch.testing.assert_close(other, turned(found, g), rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["x", "both", "all"])
def test_all_paths_agree_on_symmetric_maps(name: str) -> None:
    for seed in range(4):
        maps = symmetric_maps(name, 7, 10 + seed, 2.5).flatten(1)
        found = []
        for dtype in DTYPES:
            weights, positions = maps.to(dtype), cell_centres(7, 7, dtype=dtype)
            followed = select_mixture(weights.clone().requires_grad_(), positions)
            found += [select_mixture(weights, positions), followed]
            with only_torch():
                found.append(select_mixture(weights, positions))
        for fit in found[1:]:
            assert torch.equal(fit.components_used, found[0].components_used)
            torch.testing.assert_close(density(fit).double(), density(found[0]).double(), rtol=0, atol=2e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("native", [True, False])
def test_a_map_without_structure_is_background_alone(native: bool, dtype: torch.dtype) -> None:
    for H, W in [(7, 7), (14, 14), (5, 8), (1, 6), (3, 1), (24, 24), (1, 1)]:
        positions = cell_centres(H, W, dtype=dtype)
        weights = torch.full((2, H * W), 1 / (H * W), dtype=dtype).requires_grad_()
        with only_torch() if not native else torch.enable_grad():
            fits = [select_mixture(weights, positions), select_mixture(weights.detach(), positions, start="split")]
        for fit in fits:
            assert fit.components_used.tolist() == [0, 0]
            assert fit.background is not None
            torch.testing.assert_close(fit.background, torch.ones_like(fit.background))
            torch.testing.assert_close(density(fit), torch.full_like(density(fit), 1 / 36))
        assert torch.autograd.grad(density(fits[0]).square().sum(), weights)[0].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("native", [True, False])
def test_constant_scores_with_a_random_mask_are_background_alone(native: bool, dtype: torch.dtype) -> None:
    attend = mechanism("multimodal").eval()
    for seed, share in enumerate([0.9, 0.7, 0.5, 0.2, 0.02]):
        mask = torch.rand(3, 8, 8, generator=seeded(seed)) < share
        mask[:, 0, 0] = True
        values = torch.randn(3, 8, 8, 5, generator=seeded(9)).to(dtype)
        with only_torch() if not native else torch.no_grad():
            out = attend(torch.zeros(3, 64, dtype=dtype), values.flatten(1, 2), grid=(8, 8), mask=mask.flatten(1))
            flat = (values * 0 + 1).flatten(1, 2)
            constant = attend(torch.zeros(3, 64, dtype=dtype), flat, grid=(8, 8), mask=mask.flatten(1)).context
            for g in SQUARE:
                v = torch.stack([turned(part, g) for part in values.unbind(-1)], -1)
                other = attend(torch.zeros(3, 64, dtype=dtype), v.flatten(1, 2), (8, 8), turned(mask, g).flatten(1))
                torch.testing.assert_close(other.context, out.context, rtol=0, atol=1e-5)
        assert isinstance(out.density, Mixture)
        assert out.density.components_used.tolist() == [0, 0, 0]
        assert (constant - 1).abs().max() < 0.1  # the mean of what counts, up to the ridge


def test_structure_beside_a_mask_is_found() -> None:
    positions = cell_centres(14, 14)
    mask = torch.rand(1, 196, generator=seeded(0)) < 0.6
    blob = torch.exp(-60 * (positions - 0.3).square().sum(-1)) * mask
    weights = 0.7 * blob / blob.sum() + 0.3 * mask / mask.sum()
    fit = select_mixture(weights, positions, mask=mask)
    assert fit.components_used.item() >= 1
    heaviest = fit.components.mean[0, fit.weights[0].argmax()]
    assert (heaviest - 0.3).abs().max() < 0.1


@pytest.mark.parametrize("native", [True, False])
def test_a_haze_over_what_a_mask_leaves_is_background(native: bool) -> None:
    positions = cell_centres(14, 14)
    for seen in (positions[:, 0] < 0.5, (positions - 0.5).abs().amax(-1) < 0.35, positions[:, 1] > 0.2):
        middle = positions[seen].mean(0)
        blob = torch.exp(-120 * (positions - middle).square().sum(-1)) * seen
        weights = 0.3 * blob / blob.sum() + 0.7 * seen / seen.sum()
        with only_torch() if not native else torch.no_grad():
            fit = select_mixture(weights, positions, mask=seen)
        assert fit.components_used.item() == 1
        assert fit.background is not None
        assert fit.background.item() == pytest.approx(0.7, abs=0.03)
        torch.testing.assert_close(fit.components.mean[fit.weights.argmax()], middle, atol=0.02, rtol=0)


def test_a_symmetric_line() -> None:
    half = torch.randn(5, 6, dtype=torch.float64, generator=seeded(0))
    weights = torch.softmax(3 * torch.cat([half, half.flip(-1)], -1), -1)
    fit = select_mixture(weights, cell_centres_1d(12, dtype=torch.float64))
    torch.testing.assert_close(fit.to_map(9), fit.to_map(9).flip(-1), rtol=0, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"sparse_components": True}])
def test_two_equal_blobs_are_two_components(options: dict[str, Any]) -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = sum(
        torch.softmax(-80 * (positions - at).square().sum(-1), -1) / 2
        for at in positions.new_tensor([[0.3, 0.5], [0.7, 0.5]])
    )
    assert select_mixture(weights, positions).components_used.item() == 2
    fit = fit_mixture(weights, positions, 2, start="spread", **options)
    assert fit.components.mean[:, 0].sort().values.tolist() == pytest.approx([0.3, 0.7], abs=0.02)


@pytest.mark.parametrize("name", ["k-mca", "multimodal-sparse"])
def test_other_mixtures_agree_on_maps_without_structure(name: str) -> None:
    attend, values = mechanism(name).eval(), torch.randn(2, 49, 3, dtype=torch.float64, generator=seeded(1))
    mask = torch.rand(2, 49, generator=seeded(2)) < 0.7
    for keep in (None, mask):
        found = []
        for dtype in DTYPES:
            scores = torch.zeros(2, 49, dtype=dtype)
            found.append(attend(scores, values.to(dtype), grid=(7, 7), mask=keep).context.double())
            with only_torch():
                found.append(attend(scores, values.to(dtype), grid=(7, 7), mask=keep).context.double())
        for context in found[1:]:
            torch.testing.assert_close(context, found[0], rtol=0, atol=1e-4)
    if name == "multimodal-sparse":
        out = attend(torch.zeros(2, 49), values.float(), grid=(7, 7))
        assert isinstance(out.density, Mixture)
        assert out.density.components_used.tolist() == [1, 1]
