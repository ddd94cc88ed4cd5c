"""One example out of a batch, its heat and its summarise."""

from __future__ import annotations

import pytest
import torch

import foveate as fv
from foveate.attention import Attended
from foveate.errors import ShapeError
from foveate.ops.divergence import js_divergence
from foveate.plot.heat import (
    FINE,
    has_bounded_support,
    has_several_components,
    heat,
    select_example,
    summarise,
    truth_map,
)
from tests.plot.drawn import attend, region


def test_pick_takes_the_named_example_and_query() -> None:
    weights = torch.softmax(torch.randn(2, 3, 4), -1)
    context = torch.randn(2, 3, 5)
    one = select_example("test", Attended(context, weights, grid=(2, 2)), (1, 2))
    assert torch.equal(one.weights[0], weights[1, 2])
    assert torch.equal(one.context[0], context[1, 2])


@pytest.mark.parametrize("name", ["continuous-softmax", "continuous-entmax", "multimodal"])
def test_pick_takes_the_density_of_the_same_example(name: str) -> None:
    attended = fv.mechanism(name).eval()(torch.randn(3, 2, 49), torch.randn(3, 49, 4), grid=(7, 7))
    one = select_example("test", attended, (2, 1))
    assert one.density is not None
    torch.testing.assert_close(one.density.mean, attended.density.mean[2, 1])
    torch.testing.assert_close(one.map(9, 9)[0], attended.map(9, 9)[2, 1])


def test_pick_keeps_the_grid_and_mask_of_the_example() -> None:
    grid = torch.tensor([[2, 3], [1, 2]])
    mask = torch.arange(6) < grid.prod(-1, keepdim=True)
    attended = fv.mechanism("softmax")(torch.zeros(2, 6), torch.zeros(2, 6, 1), grid=grid, mask=mask)
    one = select_example("test", attended, 1)
    assert one.grid == (1, 2)
    assert one.mask.tolist() == [[True, True, False, False, False, False]]
    assert summarise(one) == "area 100 %"
    assert one.map()[0].tolist() == [[0.5, 0.5]]


def test_pick_detaches() -> None:
    scores = torch.zeros(1, 4, requires_grad=True)
    one = select_example("test", fv.mechanism("continuous-softmax")(scores, torch.zeros(1, 4, 1), grid=(2, 2)))
    assert one.density is not None
    assert not one.weights.requires_grad
    assert not one.density.mean.requires_grad


@pytest.mark.parametrize("index", [2, -3, (0, 0), ()])
def test_an_index_out_of_range_raises_an_error(index: int | tuple[int, ...]) -> None:
    with pytest.raises(ShapeError, match=r"show: expected an index into attention of batch shape \(2,\), got"):
        select_example("show", Attended(torch.zeros(2, 1), torch.full((2, 4), 0.25), grid=(2, 2)), index)


def test_heat_is_one_on_average_whatever_the_mechanism() -> None:
    for name in ("softmax", "tvmax", "continuous-softmax", "continuous-sparsemax", "multimodal"):
        one = select_example("test", attend(name))
        for cells in (False, True):
            assert heat(one, cells).mean().item() == pytest.approx(1, abs=1e-4)


def test_heat_of_a_density_is_its_map_on_a_fine_grid() -> None:
    one = select_example("test", attend("continuous-sparsemax"))
    fine = heat(one, cells=False)
    assert fine.shape == (FINE, FINE)
    assert (fine - one.map(FINE, FINE)[0] * FINE**2).abs().max() < 0.02 * fine.max()
    assert heat(one, cells=True).shape == (7, 7)


def test_nothing_attended_gives_no_heat() -> None:
    mask = torch.zeros(1, 4, dtype=torch.bool)
    for name in ("softmax", "continuous-softmax", "multimodal"):
        one = select_example(
            "test", fv.mechanism(name).eval()(torch.zeros(1, 4), torch.zeros(1, 4, 1), grid=(2, 2), mask=mask)
        )
        assert not heat(one, cells=False).any()
        assert summarise(one).startswith("area 0 %")


def test_numbers_state_area_components_and_divergence() -> None:
    one = select_example("test", attend("multimodal-sparse", family="truncated-paraboloid"))
    truth = region()
    js = js_divergence(one.map(14, 14)[0], truth_map(truth, 14, 14)).item()
    area = one.density.support_area().item()
    assert summarise(one, truth) == f"area {100 * area:.0f} %, K 2, JS {js:.2f}"


def test_area_is_a_fraction_of_the_image() -> None:
    mask = torch.tensor([[True, True, True, False]])
    weights = torch.tensor([[0.5, 0.0, 0.5, 0.0]])
    assert (
        summarise(select_example("test", Attended(torch.zeros(1, 1), weights, grid=(2, 2), mask=mask))) == "area 50 %"
    )


def test_numbers_of_regions_and_lines() -> None:
    weights = torch.tensor([[0.5, 0.5, 0.0]])
    assert summarise(select_example("test", Attended(torch.zeros(1, 1), weights))) == "2 of 3 regions"
    assert summarise(select_example("test", Attended(torch.zeros(1, 1), weights, grid=(3,)))) == "length 67 %"


def test_which_densities_have_an_edge_and_several_components() -> None:
    kinds = {
        name: select_example("test", attend(name)).density
        for name in ("continuous-softmax", "continuous-entmax", "k-mca")
    }
    assert [has_bounded_support(density) for density in kinds.values()] == [False, True, False]
    assert [has_several_components(density) for density in kinds.values()] == [False, False, True]
    assert has_bounded_support(select_example("test", attend("k-mca", family="truncated-paraboloid")).density)


def test_a_background_is_reported_and_has_no_edge() -> None:
    parts = fv.TruncatedParaboloid(torch.tensor([[0.3, 0.3], [0.7, 0.7]]), 0.01 * torch.eye(2).expand(2, 2, 2))
    sharp = fv.Mixture(parts, torch.tensor([0.5, 0.5]))
    hazy = fv.Mixture(parts, torch.tensor([0.4, 0.4]), background=torch.tensor(0.2))
    assert has_bounded_support(sharp)
    assert not has_bounded_support(hazy)
    assert "background" not in summarise(select_example("test", sharp))
    assert summarise(select_example("test", hazy)) == "area 100 %, K 2, background 20 %"
    none = fv.Mixture(parts, torch.tensor([0.5, 0.5]), background=torch.tensor(0.0))
    assert has_bounded_support(none)
    assert "background" not in summarise(select_example("test", none))
    faint = fv.Mixture(parts, torch.tensor([0.5, 0.499]), background=torch.tensor(0.001))
    assert "background" not in summarise(select_example("test", faint))
