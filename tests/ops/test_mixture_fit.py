"""Mixtures from weights: the fit by EM, the background, and the choice of the number of components."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.errors import ShapeError, UnknownName
from foveate.ops.compact import BetaGaussian, TruncatedParaboloid
from foveate.ops.gaussian import Gaussian
from foveate.ops.grid import cell_centres, cell_centres_1d, cell_variance
from foveate.ops.mixture import Mixture
from foveate.ops.mixture_fit import fit_mixture, select_mixture
from foveate.ops.simplex import sparsemax
from tests.mixtures import assert_same, bumps, differ, everything, planted_maps, random_weights, seeded


@pytest.mark.parametrize("start", ["spread", "split"])
def test_recovers_a_planted_mixture(start: str) -> None:
    positions = cell_centres(40, 40, dtype=torch.float64)
    mean = torch.tensor([[0.3, 0.25], [0.65, 0.7]]).double()
    covariance = torch.tensor([[[0.006, 0.002], [0.002, 0.004]], [[0.004, -0.003], [-0.003, 0.008]]]).double()
    truth = Mixture(Gaussian(mean, covariance), torch.tensor([0.7, 0.3]).double())
    fit = fit_mixture(truth.to_map(40, 40).flatten(), positions, 2, iterations=60, restarts=3, start=start, floor=1e-6)
    order = fit.weights.argsort(descending=True)
    torch.testing.assert_close(fit.weights[order], truth.weights, atol=2e-3, rtol=0)
    torch.testing.assert_close(fit.components.mean[order], mean, atol=2e-3, rtol=0)
    torch.testing.assert_close(fit.components.covariance[order], covariance, atol=2e-4, rtol=0)


def test_weights_are_a_distribution_over_components() -> None:
    fit = fit_mixture(random_weights(6, 196), cell_centres(14, 14, dtype=torch.float64), 4)
    torch.testing.assert_close(fit.weights.sum(-1), torch.ones(6).double(), atol=1e-9, rtol=0)
    assert fit.criterion is None


def test_more_iterations_and_restarts_fit_better() -> None:
    weights, positions = random_weights(8, 64, sharpness=4), cell_centres(8, 8, dtype=torch.float64)
    short = fit_mixture(weights, positions, 3, iterations=2).log_likelihood
    longer = fit_mixture(weights, positions, 3, iterations=9).log_likelihood
    assert (longer > short).all()
    best = fit_mixture(weights, positions, 3, iterations=9, restarts=5).log_likelihood
    assert (best >= longer - 1e-12).all()
    assert (best > longer + 1e-6).any()


def test_starts_and_generators_change_the_fit() -> None:
    weights, positions = random_weights(4, 64), cell_centres(8, 8, dtype=torch.float64)
    fits = [fit_mixture(weights, positions, 3, start=s) for s in ("random", "spread", "split")]
    fits.append(fit_mixture(weights, positions, 3, generator=seeded(5)))
    for i, first in enumerate(fits):
        for second in fits[:i]:
            assert differ(first, second)
    assert_same(fit_mixture(weights, positions, 3), fits[0], 0)
    assert_same(fit_mixture(weights, positions, 3, generator=seeded(0)), fits[0], 0)


def test_the_floor_is_the_least_variance() -> None:
    positions = cell_centres(4, 6, dtype=torch.float64)
    weights = torch.zeros(24, dtype=torch.float64)
    weights[9] = 1
    for floor, expected in (("cell", cell_variance(positions)), (0.02, torch.full((2,), 0.02).double())):
        fit = fit_mixture(weights, positions, 1, floor=floor)  # type: ignore[arg-type]
        torch.testing.assert_close(fit.mean, positions[9])
        torch.testing.assert_close(fit.covariance, torch.diag(expected))


def run_fit(weights: Tensor, positions: Tensor, **options: Any) -> Mixture:
    return fit_mixture(weights, positions, 3, restarts=2, start="spread", **options)


RUNS = [run_fit, partial(run_fit, background=True), select_mixture, partial(select_mixture, background=False)]


@pytest.mark.parametrize("run", RUNS)
def test_the_rest_of_the_batch_does_not_matter(run: Any) -> None:
    weights, positions = planted_maps(6, 2, seed=3), cell_centres(14, 14, dtype=torch.float64)
    weights = torch.cat([weights, random_weights(3, 196), planted_maps(3, 3, seed=4)])
    together = run(weights, positions)
    for b in range(len(weights)):
        alone = run(weights[b : b + 1], positions)
        for a, t in zip(everything(alone), everything(together), strict=True):
            torch.testing.assert_close(a[0], t[b], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("run", RUNS)
def test_the_order_of_the_locations_does_not_matter(run: Any) -> None:
    weights, positions = random_weights(3, 30, sharpness=4), cell_centres(5, 6, dtype=torch.float64)
    order = torch.randperm(30, generator=seeded(0))
    first, second = run(weights[:, order], positions[order]), run(weights, positions)
    # not component by component: two starts may end in one mixture, and rounding decides which comes first
    torch.testing.assert_close(first.log_likelihood, second.log_likelihood)
    torch.testing.assert_close(first.pdf(positions), second.pdf(positions))


@pytest.mark.parametrize("run", RUNS)
def test_a_mask_takes_locations_out(run: Any) -> None:
    weights, positions = random_weights(2, 30), cell_centres(5, 6, dtype=torch.float64)
    mask = torch.arange(30) % 6 < 4
    kept = weights[:, mask] / weights[:, mask].sum(-1, keepdim=True)
    masked = torch.where(mask, weights, 0.0) / weights[:, mask].sum(-1, keepdim=True)
    noisy = torch.where(mask, masked, torch.rand(30).double())
    expected = run(kept, positions[mask])
    assert_same(run(noisy, positions, mask=mask), expected)
    assert differ(run(weights, positions), expected)


@pytest.mark.parametrize("run", RUNS)
def test_grids_of_different_shapes_share_a_batch(run: Any) -> None:
    grids = [cell_centres(4, 6, dtype=torch.float64), cell_centres(3, 5, dtype=torch.float64)]
    weights = [random_weights(24), random_weights(15, seed=1)]
    positions = torch.stack([grids[0], torch.cat([grids[1], torch.zeros(9, 2).double()])])
    padded = torch.stack([weights[0], torch.cat([weights[1], torch.zeros(9).double()])])
    together = run(padded, positions, mask=padded > 0)
    for b in range(2):
        for a, t in zip(everything(run(weights[b], grids[b])), everything(together), strict=True):
            torch.testing.assert_close(a, t[b], atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("run", RUNS)
def test_any_batch_shape(run: Any) -> None:
    weights, positions = random_weights(2, 3, 20), cell_centres(4, 5, dtype=torch.float64)
    flat, shaped = run(weights.flatten(0, 1), positions), run(weights, positions)
    own = run(weights, positions.expand(2, 1, 20, 2), mask=torch.ones(1, 3, 20, dtype=torch.bool))
    for a, b, c in zip(everything(flat), everything(shaped), everything(own), strict=True):
        torch.testing.assert_close(a, b.flatten(0, 1))
        torch.testing.assert_close(b, c)
    assert shaped.components_used.shape == (2, 3)
    assert run(weights[0, 0], positions).mean.shape == (2,)
    assert run(weights[:0], positions).mean.shape == (0, 3, 2)


@pytest.mark.parametrize("run", RUNS)
def test_one_dimension(run: Any) -> None:
    positions = cell_centres_1d(40, dtype=torch.float64)
    weights = torch.softmax(-200 * (positions[:, 0] - torch.tensor([[0.25], [0.75]]).double()).square(), -1).mean(0)
    fit = run(weights, positions, floor=1e-3)
    near = (fit.components.mean[:, 0] < 0.5).double()
    even = 0 if fit.background is None else fit.background.item()
    assert (fit.weights * near).sum().item() + 0.5 * even == pytest.approx(0.5, abs=1e-3)
    assert even < 0.01
    assert fit.mean.item() == pytest.approx(0.5, abs=1e-6)
    assert fit.covariance.item() == pytest.approx(0.0625 + 0.0025 + 0.001, abs=1e-4)


@pytest.mark.parametrize("run", RUNS)
def test_nothing_to_attend_to(run: Any) -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    scores = torch.randn(3, 16, dtype=torch.float64, generator=seeded(0)).requires_grad_()
    weights = torch.softmax(scores, -1) * torch.tensor([1.0, 0.0, 1.0]).double()[:, None]
    mask = torch.ones(3, 16, dtype=torch.bool)
    mask[2] = False
    fit = run(weights, positions, mask=mask)
    assert fit.components_used.tolist()[1:] == [0, 0]
    assert fit.weights[1:].abs().max() == fit.log_likelihood[1:].abs().max() == 0
    assert all(torch.isfinite(t).all() for t in everything(fit))
    sum(t.sum() for t in everything(fit)).backward()
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()
    assert scores.grad[1:].abs().max() == 0
    assert scores.grad[0].abs().max() > 0


@pytest.mark.parametrize("run", RUNS)
def test_all_weight_on_one_cell(run: Any) -> None:
    positions = cell_centres(5, 5)
    weights = torch.zeros(2, 25)
    weights[0, 7] = weights[1, 24] = 1
    weights.requires_grad_()
    fit = run(weights, positions)
    torch.testing.assert_close(fit.mean, positions[[7, 24]])
    torch.testing.assert_close(fit.covariance, (torch.eye(2) / 300).expand(2, 2, 2))
    sum(t.sum() for t in everything(fit)).backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad).all()


@pytest.mark.parametrize("start", ["random", "spread", "split"])
@pytest.mark.parametrize("N", [1, 2])
def test_more_components_than_locations(start: str, N: int) -> None:
    positions = cell_centres(1, N, dtype=torch.float64)
    fit = fit_mixture(torch.full((N,), 1 / N, dtype=torch.float64), positions, 5, start=start)
    assert all(torch.isfinite(t).all() for t in everything(fit))
    torch.testing.assert_close(fit.mean, positions.mean(0))
    chosen = select_mixture(torch.full((N,), 1 / N, dtype=torch.float64), positions, start=start, background=False)
    torch.testing.assert_close(chosen.mean, positions.mean(0))
    over = select_mixture(torch.full((N,), 1 / N, dtype=torch.float64), positions, start=start)
    torch.testing.assert_close(over.mean, positions.mean(0), rtol=0, atol=1e-2)  # the background's own mean is 1/2


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precision_follows_float64(run: Any, dtype: torch.dtype) -> None:
    positions, weights = cell_centres(14, 14, dtype=torch.float64), planted_maps(4, 2, seed=1)
    fit, wide = run(weights.to(dtype), positions), run(weights, positions)
    assert fit.weights.dtype == torch.float32
    tolerance = 1e-3 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(fit.mean.double(), wide.mean, atol=tolerance, rtol=0)
    torch.testing.assert_close(fit.log_likelihood.double(), wide.log_likelihood, atol=tolerance, rtol=0)


def test_the_input_is_left_alone_and_two_calls_keep_their_gradients_apart() -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    weights = random_weights(2, 16).requires_grad_()
    before = weights.detach().clone()
    first, second = (fit_mixture(weights, positions, 2, start=s) for s in ("spread", "split"))
    (expected,) = torch.autograd.grad(fit_mixture(weights, positions, 2, start="spread").log_likelihood.sum(), weights)
    (gradient,) = torch.autograd.grad(first.log_likelihood.sum(), weights)
    assert second.log_likelihood.requires_grad
    torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(weights.detach(), before, atol=0, rtol=0)


@pytest.mark.parametrize("options", [{}, {"sparse_components": True}, {"family": TruncatedParaboloid}, {"restarts": 3}])
def test_gradient_of_the_fit(options: dict[str, Any]) -> None:
    positions = cell_centres(3, 4, dtype=torch.float64)
    scores = torch.randn(2, 12, dtype=torch.float64, generator=seeded(0)).requires_grad_()

    def fit(scores: Tensor) -> tuple[Tensor, ...]:
        result = fit_mixture(torch.softmax(scores, -1), positions, 2, iterations=3, **options)
        return tuple(everything(result))

    assert torch.autograd.gradcheck(fit, scores)


# ------------------------------------------------------------------------------------------------- other families


def test_paraboloids_have_the_moments_of_the_gaussians_and_separate_supports() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = bumps(positions, torch.tensor([[0.25, 0.3], [0.75, 0.7]]), 0.07)
    gaussians = fit_mixture(weights, positions, 2, start="split")
    sparse = fit_mixture(weights, positions, 2, start="split", family=TruncatedParaboloid)
    assert isinstance(sparse.components, TruncatedParaboloid)
    assert_same(sparse, gaussians)
    parts = sparse.components.support_area()
    assert sparse.support_area().item() == pytest.approx(parts.sum().item(), abs=1e-9)
    assert parts.sum() < 0.5
    between = sparse.pdf(torch.tensor([[0.5, 0.5]]))
    assert between == 0 < gaussians.pdf(torch.tensor([[0.5, 0.5]]))


def test_options_of_a_family_are_set_by_partial() -> None:
    weights, positions = random_weights(2, 20), cell_centres(4, 5, dtype=torch.float64)
    fit = select_mixture(weights, positions, family=partial(BetaGaussian, alpha=1.25))
    assert isinstance(fit.components, BetaGaussian)
    assert fit.components.alpha == 1.25
    assert_same(fit, select_mixture(weights, positions))


# ------------------------------------------------------------------------------------------------- sparse mixing


def test_sparse_components_are_the_sparsemax_of_the_masses() -> None:
    """Far apart, responsibilities are 0 or 1: the masses are those of the bumps, whatever the mixing weights."""
    positions = cell_centres(20, 20, dtype=torch.float64)
    masses = torch.tensor([0.5, 0.3, 0.2]).double()
    centres = torch.tensor([[[0.15, 0.15]], [[0.85, 0.15]], [[0.5, 0.85]]])
    weights = (masses[:, None] * bumps(positions, centres, 0.04)).sum(0)
    fit = fit_mixture(weights, positions, 3, start="spread", restarts=3, sparse_components=True)
    expected = sparsemax(1.5 * masses)
    torch.testing.assert_close(fit.weights.sort(descending=True).values, expected, atol=1e-6, rtol=0)
    plain = fit_mixture(weights, positions, 3, start="spread", restarts=3)
    torch.testing.assert_close(plain.weights.sort(descending=True).values, masses, atol=1e-6, rtol=0)


def test_sparse_components_vary_in_number() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    for K in (1, 2, 3):
        maps = planted_maps(50, K, seed=7)
        fit = fit_mixture(maps, positions, 4, start="spread", restarts=3, sparse_components=True)
        assert (fit.components_used == K).double().mean() >= 0.98
        full = fit_mixture(maps, positions, 4, start="spread", restarts=3)
        assert (full.components_used == 4).all()


# ------------------------------------------------------------------------------------------------- the background


def test_the_background_takes_the_haze() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    blob = bumps(positions, torch.tensor([[0.3, 0.6]]), 0.06)
    for haze in (0.0, 0.02, 0.3, 0.9):
        weights = (1 - haze) * blob + haze / 196
        fit = fit_mixture(weights, positions, 1, iterations=30, start="spread", background=True)
        assert fit.background is not None
        assert fit.background.item() == pytest.approx(haze, abs=0.01)
        assert (fit.weights.sum() + fit.background).item() == pytest.approx(1, abs=1e-9)
        torch.testing.assert_close(fit.components.mean[0], torch.tensor([0.3, 0.6]).double(), rtol=0, atol=3e-3)
        papers = fit_mixture(weights, positions, 1, iterations=30, start="spread")
        assert papers.background is None


def test_sparse_components_share_what_the_background_leaves() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = 0.8 * bumps(positions, torch.tensor([[[0.2, 0.3]], [[0.8, 0.7]]]), 0.05).mean(0) + 0.2 / 196
    options: dict[str, Any] = {"start": "spread", "sparse_components": True, "iterations": 20}
    fit = fit_mixture(weights, positions, 4, background=True, **options)
    assert fit.background is not None
    assert fit.components_used == 2
    assert (fit.weights.sum() + fit.background).item() == pytest.approx(1, abs=1e-9)
    assert fit.background.item() == pytest.approx(0.2, abs=0.02)


def test_the_papers_likelihood_has_no_trace_term() -> None:
    """Equation 7 at the fitted mixture; with the trace of the floor it would be lower by ½ tr(Σ⁻¹ F) of a component."""
    weights, positions = random_weights(3, 36, sharpness=5), cell_centres(6, 6, dtype=torch.float64)
    for run, floor in ((fit_mixture, 1e-6), (fit_mixture, "cell"), (select_mixture, 1e-6)):
        options: dict[str, Any] = {"components": 3} if run is fit_mixture else {"background": False}
        fit = run(weights, positions, floor=floor, likelihood="point", start="random", **options)
        expected = (weights * fit.pdf(positions).log()).sum(-1)
        torch.testing.assert_close(fit.log_likelihood, expected)
        cell = run(weights, positions, floor=floor, start="random", **options)
        assert (cell.log_likelihood - (weights * cell.pdf(positions).log()).sum(-1) < -1e-6).all()


# ------------------------------------------------------------------------------------------------- bad input

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"weights": torch.full((4,), 0.5)}, ValueError, "expected weights that sum to one.*got 2; divide by the sum"),
    ({"weights": torch.tensor([1.5, -0.5, 0, 0])}, ValueError, "expected weights >= 0, got -0.5; pass scores"),
    ({"weights": torch.tensor([math.nan, 1, 0, 0])}, ValueError, "expected weights without NaN"),
    ({"weights": torch.ones(4, dtype=torch.long)}, TypeError, "expected floating-point weights"),
    ({"weights": torch.tensor(1.0)}, ShapeError, r"expected weights \(..., N\)"),
    ({"weights": torch.ones(3) / 3}, ShapeError, "expected one position per weight, 3, got 4"),
    (
        {"positions": torch.rand(4, 3)},
        ShapeError,
        r"expected positions \(..., N, 1\) or .* got \(4, 3\); use one or two axes",
    ),
    ({"positions": torch.rand(4)}, ShapeError, r"expected positions \(N, d\)"),
    ({"mask": torch.ones(4)}, TypeError, "expected a boolean mask"),
    ({"mask": torch.ones(3, dtype=torch.bool)}, ShapeError, "expected a mask that broadcasts"),
    ({"floor": "cells"}, ValueError, "expected floor 'cell' or a number > 0, got 'cells'"),
    ({"floor": -1.0}, ValueError, "expected floor > 0, got -1.0"),
    ({"iterations": 0}, ValueError, "expected iterations as a whole number >= 1, got 0; use 1 or more"),
    (
        {"likelihood": "points"},
        ValueError,
        "expected likelihood 'cell' or 'point', got 'points'; the papers' is 'point'",
    ),
    ({"restarts": 1.5}, ValueError, "expected restarts as a whole number >= 1, got 1.5"),
    ({"start": "splitt"}, UnknownName, "start: expected a known name, got 'splitt'; did you mean 'split'?"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), BAD)
def test_bad_input_is_explained(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    good = {"weights": torch.ones(4) / 4, "positions": cell_centres(2, 2)}
    with pytest.raises(error, match=message) as raised:
        fit_mixture(**(good | {"components": 2} | wrong))
    assert str(raised.value).startswith("fit_mixture")
    with pytest.raises(error, match=message) as raised:
        select_mixture(**(good | wrong))
    assert str(raised.value).startswith("select_mixture")


def test_bad_numbers_are_explained() -> None:
    weights, positions = torch.ones(4) / 4, cell_centres(2, 2)
    with pytest.raises(ValueError, match="fit_mixture: expected components as a whole number >= 1, got 0"):
        fit_mixture(weights, positions, 0)
    with pytest.raises(ValueError, match="select_mixture: expected max_components as a whole number >= 1, got -2"):
        select_mixture(weights, positions, max_components=-2)
    with pytest.raises(ValueError, match=r"select_mixture: expected penalty >= 0, got -1; 0\.3 suits floor='cell'"):
        select_mixture(weights, positions, penalty=-1)
