"""Continuous and multimodal attention: every option matters, and the density is the one the weights ask for."""

from __future__ import annotations

import warnings

import pytest
import torch

from foveate import Gaussian, GaussianBasis, Mixture, TruncatedParaboloid, fit_mixture, mechanism, ops
from foveate.errors import ShapeError, UnknownName
from tests.cases import draw

GRID, N = (8, 8), 64


def two_bumps(B: int = 3) -> torch.Tensor:
    """Scores with two separate peaks, which one density cannot cover."""
    at = ops.cell_centres(*GRID, dtype=torch.float64)
    left = -40 * (at - torch.tensor([0.2, 0.3])).square().sum(-1)
    right = -40 * (at - torch.tensor([0.8, 0.7])).square().sum(-1)
    return torch.logaddexp(left, right) + 0.05 * draw(B, N)


def context(name: str, scores: torch.Tensor | None = None, **options: object) -> torch.Tensor:
    torch.manual_seed(0)
    scores = two_bumps() if scores is None else scores
    return mechanism(name, **options).eval()(scores, draw(3, N, 5, seed=1), grid=GRID).context


def test_context_is_the_expectation_of_the_fitted_values():
    scores, values, basis = two_bumps(), draw(3, N, 5, seed=1), GaussianBasis.grid(49)
    out = mechanism("continuous-softmax", basis=basis, padding=True)(scores, values, grid=GRID)
    density = Gaussian.from_weights(torch.softmax(scores, -1), ops.cell_centres(*GRID, dtype=torch.float64))
    expected = torch.einsum("bj,bjd->bd", density.expect(basis), ops.ridge_coefficients(values, basis, GRID))
    torch.testing.assert_close(out.context, expected)
    torch.testing.assert_close(out.density.mean, density.mean)


def test_a_constant_value_is_read_back():
    scores = two_bumps()
    for name in ("continuous-softmax", "continuous-sparsemax", "continuous-entmax", "multimodal", "k-mca"):
        out = mechanism(name).eval()(scores, torch.ones(3, N, 2, dtype=torch.float64), grid=GRID)
        assert (out.context - 1).abs().max() < 0.08, name


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("continuous-softmax", {"ridge": 1.0}),
        ("multimodal", {"ridge": 1.0}),
        ("continuous-softmax", {"padding": True}),
        ("continuous-softmax", {"basis": GaussianBasis.grid(25, variance=0.01)}),
        ("continuous-softmax", {"transform": "sparsemax"}),
        ("continuous-softmax", {"floor": 1e-6}),
        ("continuous-entmax", {"alpha": 1.9}),
        ("multimodal", {"max_components": 1}),
        ("multimodal", {"penalty": 50.0}),
        ("multimodal", {"iterations": 1}),
        ("multimodal", {"floor": 1e-6}),
        ("multimodal", {"background": False}),
        ("multimodal", {"likelihood": "point"}),
        ("multimodal", {"start": "random"}),
        ("multimodal", {"family": "truncated-paraboloid"}),
        ("k-mca", {"components": 4}),
        ("k-mca", {"iterations": 9}),
        ("k-mca", {"likelihood": "point"}),
        ("multimodal-sparse", {"max_components": 1}),
        ("multimodal-sparse", {"family": "truncated-paraboloid"}),
    ],
)
def test_no_option_is_ignored(name, option):
    assert not torch.allclose(context(name), context(name, **option), rtol=1e-6, atol=1e-9)


def test_families_lie_between_gaussian_and_paraboloid():
    soft, sparse = context("continuous-softmax"), context("continuous-sparsemax")
    torch.testing.assert_close(context("continuous-entmax", alpha=2.0), sparse, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(context("continuous-entmax", alpha=1.0001), soft, rtol=1e-2, atol=1e-3)


def test_multimodal_finds_both_peaks_where_one_density_cannot():
    scores, values = two_bumps(), draw(3, N, 5, seed=1)
    many = mechanism("multimodal").eval()(scores, values, grid=GRID)
    one = mechanism("continuous-softmax").eval()(scores, values, grid=GRID)
    assert many.density.components_used.tolist() == [2, 2, 2]
    target = torch.softmax(scores, -1).reshape(3, *GRID)
    assert ((many.map() - target).abs().sum((1, 2)) < (one.map() - target).abs().sum((1, 2)) / 2).all()


def test_training_draws_k_and_starts_from_the_global_seed():
    attend, scores, values = mechanism("multimodal"), two_bumps(), draw(3, N, 5, seed=1)
    drawn = set()
    for seed in range(12):
        torch.manual_seed(seed)
        first = attend(scores, values, grid=GRID)
        torch.manual_seed(seed)
        assert torch.equal(first.context, attend(scores, values, grid=GRID).context)
        drawn.add(first.density.weights.shape[-1])
    assert drawn == {1, 2, 3, 4}


def test_random_starts_of_training_come_from_the_global_seed():
    scores, values, found = two_bumps(), draw(3, N, 5, seed=1), []
    for seed in range(3):
        torch.manual_seed(seed)
        attend = mechanism("multimodal", max_components=1, start="random")
        found.append(attend(scores, values, grid=GRID).context)
        torch.manual_seed(seed)
        assert torch.equal(found[-1], attend(scores, values, grid=GRID).context)
    assert not torch.allclose(found[0], found[1])
    assert not torch.allclose(found[0], found[2])


def test_a_haze_is_reported_as_background_and_not_counted():
    weights = 0.8 * torch.softmax(two_bumps(), -1) + 0.2 / N
    for training in (True, False):
        torch.manual_seed(1)
        attend = mechanism("multimodal", max_components=2).train(training)
        density = attend(weights.log(), draw(3, N, 5, seed=1), grid=GRID).density
        assert density.components_used.tolist() == [2, 2, 2]
        assert (density.background - 0.2).abs().max() < 0.1  # training takes five steps only
    papers = mechanism("multimodal", background=False).eval()(weights.log(), draw(3, N, 5, seed=1), grid=GRID).density
    assert papers.background is None


def test_the_papers_model_is_the_papers_fit():
    """Three random starts, a floor of 1e-6, the likelihood of points, no background."""
    scores = two_bumps()
    options = {"floor": 1e-6, "likelihood": "point", "start": "random", "background": False}
    out = mechanism("multimodal", penalty=5.0, **options).eval()(scores, draw(3, N, 5), grid=GRID)
    at, weights = ops.cell_centres(*GRID, dtype=torch.float64), torch.softmax(scores, -1)
    candidates = [fit_mixture(weights, at, k, 10, 3, "random", floor=1e-6, likelihood="point") for k in range(1, 5)]
    likelihoods = torch.stack([fit.log_likelihood for fit in candidates], -1)
    torch.testing.assert_close(out.density.criterion, 5.0 * torch.arange(1, 5) - 2 * likelihoods)
    for fit, each in zip(candidates, likelihoods.unbind(-1), strict=True):
        torch.testing.assert_close(each, (weights * fit.pdf(at).log()).sum(-1))


def test_iterations_are_those_of_evaluation_and_training_takes_five():
    scores, values, results = two_bumps(), draw(3, N, 5, seed=1), []
    for steps in (1, 9):
        attend = mechanism("multimodal", max_components=4, iterations=steps)
        torch.manual_seed(3)
        results.append(attend(scores, values, grid=GRID))
        results.append(attend.eval()(scores, values, grid=GRID))
    torch.testing.assert_close(results[0].context, results[2].context)
    assert not torch.allclose(results[1].context, results[3].context)
    at, weights = ops.cell_centres(*GRID, dtype=torch.float64), torch.softmax(scores, -1)
    trained = results[0].density
    K = trained.weights.shape[-1]
    fit = fit_mixture(weights, at, K, 5, start="spread", background=True)
    torch.testing.assert_close(trained.components.mean, fit.components.mean)


def test_k_mca_is_the_split_fit_with_the_steps_of_the_thesis():
    scores = two_bumps()
    for components, steps in ((2, 2), (4, 5)):
        out = mechanism("k-mca", components=components)(scores, draw(3, N, 5), grid=GRID)
        at = ops.cell_centres(*GRID, dtype=torch.float64)
        fit = fit_mixture(torch.softmax(scores, -1), at, components, steps, start="split")
        torch.testing.assert_close(out.density.components.mean, fit.components.mean)


def test_sparse_components_vary_without_a_choice():
    at = ops.cell_centres(*GRID, dtype=torch.float64)
    one = (-40 * (at - 0.5).square().sum(-1)).expand(1, N)
    scores = torch.cat([one, two_bumps(2)])
    used = mechanism("multimodal-sparse").eval()(scores, draw(3, N, 5), grid=GRID).density.components_used
    assert used.tolist() == [1, 2, 2]


def test_mixtures_of_paraboloids_leave_room_between_them():
    attend = mechanism("multimodal", family="truncated-paraboloid", background=False).eval()
    out = attend(two_bumps(), draw(3, N, 5), grid=GRID)
    assert isinstance(out.density, Mixture)
    assert isinstance(out.density.components, TruncatedParaboloid)
    assert (out.density.support_area() < 0.8).all()
    assert (out.map(16, 16) == 0).any()


def test_one_peak_on_one_cell_is_finite():
    scores = torch.full((3, N), -1e4, dtype=torch.float64)
    scores[:, 10] = 0.0
    scores.requires_grad_()
    for name in ("continuous-softmax", "continuous-sparsemax", "continuous-entmax", "multimodal", "k-mca"):
        out = mechanism(name).eval()(scores, draw(3, N, 5), grid=GRID)
        out.context.sum().backward()
        assert torch.isfinite(out.context).all(), name
        assert torch.isfinite(scores.grad).all(), name


def test_gradcheck_through_the_whole_mechanism():
    values = draw(1, 12, 2, seed=1)
    for name in ("continuous-softmax", "continuous-sparsemax", "k-mca"):
        attend = mechanism(name).eval()
        assert torch.autograd.gradcheck(
            lambda z, a=attend: a(z, values, grid=(3, 4)).context, draw(1, 12).requires_grad_(), eps=1e-6, atol=1e-4
        )


def test_text_and_audio_lie_on_a_line():
    scores, values = draw(2, 9), draw(2, 9, 3, seed=1)
    for name in ("continuous-softmax", "multimodal"):
        out = mechanism(name).eval()(scores, values, grid=(9,))
        assert out.grid == (9,)
        assert out.density.mean.shape == (2, 1)


def test_unknown_options_and_families_are_explained():
    with pytest.raises(UnknownName, match=r"got 'penalt'; did you mean 'penalty'"):
        mechanism("multimodal", penalt=1)
    with pytest.raises(UnknownName, match=r"family: .*did you mean 'gaussian'"):
        mechanism("k-mca", family="gausian")(draw(1, 4), draw(1, 4, 2), grid=(2, 2))
    with pytest.raises(ShapeError, match=r"continuous attention: expected a grid of 4 cells, got \(3, 3\)"):
        mechanism("k-mca")(draw(1, 4), draw(1, 4, 2), grid=(3, 3))


def test_a_first_call_in_inference_mode_leaves_nothing_behind():
    attend = mechanism("continuous-softmax")
    with torch.inference_mode():
        attend(torch.zeros(1, 15), torch.ones(1, 15, 2), grid=(3, 5))
    scores = torch.zeros(1, 15, requires_grad=True)
    attend(scores, torch.ones(1, 15, 2), grid=(3, 5)).context.sum().backward()
    assert scores.grad is not None


def test_positions_of_the_thesis_stretch_the_cells_to_the_edges():
    """Moments at linspace(0, 1, n) as in the thesis: the covariance of 14 cells grows by (14 / 13)^2 = 1.16."""
    line = torch.linspace(0, 1, 14, dtype=torch.float64)
    at = torch.stack([line.expand(14, 14), line[:, None].expand(14, 14)], -1).reshape(196, 2)
    scores, values = draw(3, 196), draw(3, 196, 5, seed=1)
    weights = torch.softmax(scores, -1)
    mean = weights @ at
    centred = at - mean[:, None]
    covariance = torch.einsum("bn,bni,bnj->bij", weights, centred, centred) + 1e-6 * torch.eye(2)
    options = {"floor": 1e-6, "basis": GaussianBasis.grid(100), "padding": True}
    out = mechanism("continuous-softmax", positions="ends", **options)(scores, values, grid=(14, 14))
    torch.testing.assert_close(out.density.mean, mean)
    torch.testing.assert_close(out.density.covariance, covariance)
    ours = mechanism("continuous-softmax", **options)(scores, values, grid=(14, 14)).density
    floor = 1e-6 * torch.eye(2)
    torch.testing.assert_close(covariance - floor, (14 / 13) ** 2 * (ours.covariance - floor))
    read = ops.ridge_coefficients(values, options["basis"], (14, 14))  # the padded regression stays at the centres
    expected = torch.einsum("bj,bjd->bd", out.density.expect(options["basis"]), read)
    torch.testing.assert_close(out.context, expected)


def test_positions_of_the_thesis_follow_each_grid():
    scores, values = draw(2, 12), draw(2, 12, 5, seed=1)
    attend = mechanism("continuous-softmax", positions="ends")
    both = attend(scores, values, grid=[(3, 4), (2, 6)])
    for row, grid in enumerate([(3, 4), (2, 6)]):
        alone = attend(scores[row : row + 1], values[row : row + 1], grid=grid)
        torch.testing.assert_close(both.context[row], alone.context[0])
        torch.testing.assert_close(both.density.mean[row], alone.density.mean[0])
    narrow = attend(scores, values, grid=(1, 12)).density.mean
    torch.testing.assert_close(narrow[:, 1], torch.full((2,), 0.5, dtype=torch.float64))
    with pytest.raises(ValueError, match="'centres' or 'ends'"):
        mechanism("continuous-softmax", positions="corners")


def test_the_released_criterion_is_only_for_the_options_of_its_paper():
    paper = {"max_components": 4, "penalty": 5.0, "likelihood": "point", "background": False, "floor": 1e-6}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mechanism("multimodal", criterion="batch", start="random", **paper)
    with pytest.warns(UserWarning, match="depend on the other images of its batch"):
        attend = mechanism("multimodal", criterion="batch", background=False).eval()
    scores, values = two_bumps(), draw(3, N, 5, seed=1)
    together = attend(scores, values, grid=GRID).density.criterion[0]
    assert not torch.allclose(together, attend(scores[:1], values[:1], grid=GRID).density.criterion[0])
    ours = mechanism("multimodal", background=False).eval()
    alone = ours(scores[:1], values[:1], grid=GRID).density.criterion[0]
    torch.testing.assert_close(ours(scores, values, grid=GRID).density.criterion[0], alone)
