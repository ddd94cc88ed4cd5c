"""The choice of the number of components: right, and the same however the map is turned."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foveate.ops.grid import cell_centres, cell_centres_1d
from foveate.ops.mixture_fit import fit_mixture, select_mixture
from tests.mixtures import assert_same, bumps, everything, planted_maps, random_weights, seeded


@pytest.mark.parametrize("K", [1, 2, 3])
def test_the_planted_number_of_blobs_is_chosen(K: int) -> None:
    positions = cell_centres(14, 14)
    for background in (True, False):
        fit = select_mixture(planted_maps(200, K, seed=11).float(), positions, background=background)
        assert (fit.components_used == K).float().mean() >= 0.95


def test_one_blob_has_one_component() -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    for deviation in (0.02, 0.05, 0.1, 0.2):
        weights = bumps(positions, torch.tensor([[[0.4, 0.6]], [[0.5, 0.5]]]), deviation)
        assert select_mixture(weights, positions).components_used.tolist() == [1, 1]


def test_the_papers_floor_does_not_find_the_number() -> None:
    """What the cell floor is for; if this fails, the warning in the docstring can go."""
    maps, positions = planted_maps(50, 1, seed=2), cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(maps, positions, floor=1e-6, penalty=0.05)
    cell = select_mixture(maps, positions, penalty=0.05)
    assert (fit.components_used == 1).double().mean() < 0.5 < (cell.components_used == 1).double().mean()


def test_criterion_is_the_penalised_likelihood_of_each_number() -> None:
    weights, positions = planted_maps(5, 2, seed=0), cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(weights, positions, penalty=0.7, max_components=3, background=False)
    assert fit.criterion is not None
    assert fit.criterion.shape == (5, 3)
    chosen = fit.criterion.argmin(-1) + 1
    assert (chosen == fit.components_used).all()
    torch.testing.assert_close(fit.criterion.amin(-1), -2 * fit.log_likelihood + 0.7 * chosen)
    one = fit_mixture(weights, positions, 1)
    torch.testing.assert_close(fit.criterion[:, 0], -2 * one.log_likelihood + 0.7)
    again = select_mixture(weights, positions, penalty=0.2, max_components=3, background=False)
    assert again.criterion is not None
    torch.testing.assert_close(fit.criterion - again.criterion, 0.5 * torch.arange(1, 4).expand(5, 3).double())


PAPER = {"background": False, "likelihood": "point", "floor": 1e-6, "penalty": 5.0, "start": "random"}


def smooth_maps(count: int) -> Tensor:
    """Softmax of smooth random scores on 14 x 14 cells."""
    noise = torch.randn(count, 1, 4, 4, dtype=torch.float64, generator=seeded(0))
    scores = torch.nn.functional.interpolate(noise, (14, 14), mode="bicubic", align_corners=True)
    return torch.softmax(3 * scores.flatten(1), -1)


def log_density(fit: Any, row: int, positions: Tensor) -> Tensor:
    parts = fit.components
    terms = [
        weight.log()
        + torch.distributions.MultivariateNormal(parts.mean[row, k], parts.covariance[row, k]).log_prob(positions)
        for k, weight in enumerate(fit.weights[row])
    ]
    return torch.stack(terms).logsumexp(0)


def test_the_released_criterion_scores_the_weights_of_a_batch_of_eight() -> None:
    maps, positions = smooth_maps(11), cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(maps, positions, criterion="batch", **PAPER)
    assert fit.criterion is not None
    for K in (1, 2, 3, 4):
        each = fit_mixture(
            maps, positions, K, restarts=3 if K > 1 else 1, likelihood="point", floor=1e-6, start="random"
        )
        for row in (0, 7, 8, 10):
            batch = maps[:8] if row < 8 else maps[8:]
            score = (batch * log_density(each, row, positions)).sum()
            torch.testing.assert_close(fit.criterion[row, K - 1], -2 * score + 5.0 * K)
    apart = torch.cat([select_mixture(part, positions, criterion="batch", **PAPER).criterion for part in maps.split(8)])
    torch.testing.assert_close(fit.criterion, apart)
    alone = select_mixture(maps[:1], positions, criterion="batch", **PAPER)
    torch.testing.assert_close(alone.criterion, select_mixture(maps[:1], positions, **PAPER).criterion)


def test_the_criteria_differ_on_smooth_maps() -> None:
    """The printed λ nearly always keeps one component; the released code does not."""
    maps, positions = smooth_maps(200), cell_centres(14, 14, dtype=torch.float64)
    ones = {
        name: int((select_mixture(maps, positions, criterion=name, **PAPER).components_used == 1).sum())
        for name in ("equation", "batch")
    }
    assert ones["equation"] >= 190 > ones["batch"]


def test_the_released_criterion_takes_examples_with_grids_of_their_own() -> None:
    maps, positions = smooth_maps(5), cell_centres(14, 14, dtype=torch.float64)
    shared = select_mixture(maps, positions, criterion="batch", **PAPER)
    own = select_mixture(maps, positions.expand(5, -1, -1), criterion="batch", **PAPER)
    torch.testing.assert_close(shared.criterion, own.criterion)


def test_the_printed_equation_charges_every_component_in_full() -> None:
    maps, positions = 0.6 * planted_maps(3, 2, seed=0) + 0.4 / 196, cell_centres(14, 14, dtype=torch.float64)
    free, full = (select_mixture(maps, positions, penalty=p, criterion="equation").criterion for p in (0.0, 0.5))
    assert free is not None
    assert full is not None
    torch.testing.assert_close(full - free, 0.5 * torch.arange(1, 5).expand(3, 4).double())


def test_an_unknown_criterion_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'own' or 'equation' or 'batch'"):
        select_mixture(smooth_maps(1), cell_centres(14, 14), criterion="bic")  # type: ignore[arg-type]


def test_with_a_background_the_penalty_counts_for_what_is_not_background() -> None:
    weights = 0.6 * planted_maps(5, 2, seed=0) + 0.4 / 196
    positions = cell_centres(14, 14, dtype=torch.float64)
    criteria = []
    for penalty in (0.0, 0.2, 0.5):
        fit = select_mixture(weights, positions, penalty=penalty, max_components=3)
        assert fit.criterion is not None
        assert (fit.criterion.argmin(-1) + 1 == fit.components_used).all()
        criteria.append(fit.criterion)
    counts = torch.arange(1, 4).double()
    kept = ((criteria[1] - criteria[0]) / (0.2 * counts)).mean(-1, keepdim=True)
    torch.testing.assert_close(criteria[1] - criteria[0], 0.2 * counts * kept)
    torch.testing.assert_close(criteria[2] - criteria[0], 0.5 * counts * kept)
    torch.testing.assert_close(kept, torch.full_like(kept, 0.6**2), rtol=0, atol=0.03)


def test_options_of_the_choice() -> None:
    weights, positions = random_weights(6, 196, sharpness=4), cell_centres(14, 14, dtype=torch.float64)
    base = select_mixture(weights, positions, penalty=0.1)
    assert base.components_used.max() > 1
    assert select_mixture(weights, positions, penalty=50.0).components_used.tolist() == [0] * 6
    alone = select_mixture(weights, positions, penalty=50.0, background=False)
    assert alone.components_used.tolist() == [1] * 6
    assert select_mixture(weights, positions, penalty=0.0, max_components=2).components_used.tolist() == [2] * 6
    options: list[dict[str, Any]] = [{"restarts": 1}, {"iterations": 2}, {"start": "random"}, {"floor": 0.01}]
    options += [{"generator": seeded(9)}, {"background": False}, {"likelihood": "point"}]
    for changed in options:
        other = select_mixture(weights, positions, penalty=0.1, **changed)
        assert other.criterion is not None
        assert base.criterion is not None
        assert (other.criterion - base.criterion).abs().max() > 1e-6


def test_absent_components_of_the_choice_have_weight_zero() -> None:
    weights = torch.cat([planted_maps(3, K, seed=K) for K in (1, 2, 3)])
    fit = select_mixture(weights, cell_centres(14, 14, dtype=torch.float64))
    for row, used in zip(fit.weights, fit.components_used.tolist(), strict=True):
        assert (row[used:] == 0).all()
    assert fit.background is not None
    torch.testing.assert_close(fit.weights.sum(-1) + fit.background, torch.ones(9).double())


@pytest.mark.parametrize("start", ["spread", "split"])
def test_the_choice_with_a_gradient_is_the_choice_without(start: str) -> None:
    positions = cell_centres(14, 14, dtype=torch.float64)
    weights = torch.cat([planted_maps(3, K, seed=K) for K in (1, 2, 3)])
    plain = select_mixture(weights, positions, start=start)
    followed = select_mixture(weights.clone().requires_grad_(), positions, start=start)
    assert followed.mean.requires_grad
    assert_same(followed, plain)
    with torch.no_grad():
        assert not select_mixture(weights.clone().requires_grad_(), positions).mean.requires_grad


@pytest.mark.parametrize("start", ["spread", "split"])
def test_gradient_of_the_choice(start: str) -> None:
    positions = cell_centres(4, 4, dtype=torch.float64)
    scores = torch.stack([-30 * (positions - 0.3).square().sum(-1), 8 * (positions - 0.5).square().sum(-1)])
    scores = (scores + 0.1 * torch.randn(2, 16, generator=seeded(0)).double()).requires_grad_()
    used = select_mixture(torch.softmax(scores, -1), positions, penalty=0.05, start=start).components_used
    assert used[0] < used[1]

    def fit(scores: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = {"penalty": 0.05, "iterations": 3, "start": start}
        return tuple(everything(select_mixture(torch.softmax(scores, -1), positions, **options)))

    assert torch.autograd.gradcheck(fit, scores)


# ------------------------------------------------------------------------------------------------- haze


@pytest.mark.parametrize("K", [1, 2, 3])
@pytest.mark.parametrize("haze", [0.02, 0.1, 0.6])
def test_a_haze_is_no_component(K: int, haze: float) -> None:
    """More maps, noise and hazes: benchmarks/planted.py."""
    maps, positions = (1 - haze) * planted_maps(60, K, seed=5) + haze / 196, cell_centres(14, 14, dtype=torch.float64)
    fit = select_mixture(maps, positions)
    assert (fit.components_used == K).double().mean() >= 0.95
    assert fit.background is not None
    assert (fit.background - haze).abs().max() < 0.1
    papers = select_mixture(maps, positions, background=False)
    assert haze < 0.1 or (papers.components_used == K).double().mean() < 0.9


def test_a_map_that_is_all_haze_is_background() -> None:
    fit = select_mixture(torch.full((1, 196), 1 / 196), cell_centres(14, 14), iterations=60)
    assert fit.background is not None
    assert fit.background.item() > 0.9
    torch.testing.assert_close(fit.to_map(7, 7), torch.full((1, 7, 7), 1 / 49), rtol=0.1, atol=0)


# ------------------------------------------------------------------------------------------------- symmetries


def turned(maps: Tensor, symmetry: int) -> Tensor:
    """One of the eight symmetries of the square, of (..., H, W) maps: quarter turns, then also transposed."""
    maps = torch.rot90(maps, symmetry % 4, (-2, -1))
    return maps.mT if symmetry >= 4 else maps


def turned_back(maps: Tensor, symmetry: int) -> Tensor:
    maps = maps.mT if symmetry >= 4 else maps
    return torch.rot90(maps, -(symmetry % 4), (-2, -1))


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("H", [14, 10])
def test_the_choice_turns_with_the_map(H: int, background: bool) -> None:
    """Noise, blobs, and blobs over a haze whose cells are all equal; 200 maps of each in benchmarks/planted.py."""
    blobs = torch.cat([planted_maps(3, K, seed=K, noise=0.6) for K in (1, 2, 3)])
    maps = torch.cat([random_weights(9, 196, sharpness=3), blobs, 0.7 * blobs + 0.3 / 196]).reshape(-1, 14, 14)[:, :H]
    maps = maps / maps.sum((-2, -1), keepdim=True)
    plain = select_mixture(maps.flatten(1), cell_centres(H, 14, dtype=torch.float64), background=background)
    for symmetry in range(1, 8):
        other = turned(maps, symmetry)
        positions = cell_centres(*other.shape[-2:], dtype=torch.float64)
        fit = select_mixture(other.flatten(1), positions, background=background)
        assert (fit.components_used == plain.components_used).all()
        apart = (turned_back(fit.to_map(*other.shape[-2:]), symmetry) - plain.to_map(H, 14)).abs().sum((-2, -1))
        assert apart.max() <= 1e-6


def test_the_choice_on_a_line_turns_with_the_map() -> None:
    weights, positions = random_weights(20, 30, sharpness=3), cell_centres_1d(30, dtype=torch.float64)
    plain, fit = select_mixture(weights, positions), select_mixture(weights.flip(-1), positions)
    assert (fit.components_used == plain.components_used).all()
    assert (fit.to_map(30).flip(-1) - plain.to_map(30)).abs().sum(-1).max() <= 1e-6
