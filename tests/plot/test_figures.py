"""show, compare and strip."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, Rectangle

import foveate as fv
from foveate.errors import ShapeError, UnknownName
from foveate.plot import compare, show, strip
from foveate.plot.layers import THICK
from tests.plot.drawn import GRID, PLACES, attend, image, region


def titles(figure: Figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def tops(figure: Figure) -> set[float]:
    """Upper end of the colours in every panel that has heat."""
    return {image.norm.vmax for axes in figure.axes[:-1] for image in axes.images if image.get_array().ndim == 2}


def heat_of(figure: Figure, panel: int = 1) -> np.ndarray:
    return np.asarray(figure.axes[panel].images[-1].get_array())


def test_show_draws_image_attention_and_truth() -> None:
    figure = show(image(), attend("softmax"), truth=region(), title="two things")
    assert titles(figure)[:3] == ["image", "two things", "true region"]
    assert figure.axes[1].get_xlabel().startswith("area 100 %, JS ")


def test_show_without_an_image() -> None:
    figure = show(None, attend("softmax"))
    assert titles(figure)[0] == "attention"
    assert len(figure.axes[0].images) == 1


def test_a_human_map_is_no_region() -> None:
    figure = show(image(), attend("softmax"), truth=torch.rand(9, 9))
    assert titles(figure)[2] == "human attention"
    assert not figure.axes[1].collections
    assert show(image(), attend("softmax"), truth=region()).axes[1].collections


def test_axes_keep_the_shape_of_the_image() -> None:
    figure = show(image(60, 80), attend("tvmax"))
    assert [axes.get_aspect() for axes in figure.axes[:2]] == [0.75, 0.75]
    figure.draw_without_rendering()
    box = figure.axes[1].get_window_extent()
    assert box.height / box.width == pytest.approx(0.75, rel=1e-3)


def test_cells_are_drawn_as_they_are_and_smooth_ones_are_not() -> None:
    seen = attend("softmax")
    cells = heat_of(show(image(), seen, style="cells"))
    assert cells == pytest.approx(seen.weights.reshape(GRID).numpy() * 49)
    assert heat_of(show(image(), seen)).shape[0] > 100


def test_densities_are_drawn_as_contours_by_default() -> None:
    seen = attend("continuous-softmax")
    assert len([c for c in show(None, seen).axes[0].collections if isinstance(c, ContourSet)]) == 1
    assert not show(None, seen, style="smooth").axes[0].collections


@pytest.mark.parametrize(("name", "thick"), [("continuous-softmax", 0), ("continuous-sparsemax", 1)])
def test_only_sparse_densities_have_a_thick_edge(name: str, thick: int) -> None:
    lines = [c for c in show(None, attend(name)).axes[0].collections if isinstance(c, ContourSet)]
    assert sum(bool((np.asarray(c.get_linewidth()) == THICK).all()) for c in lines) == thick


@pytest.mark.parametrize("style", ["smooth", "cells"])
def test_only_maps_with_zeros_have_an_edge(style: str) -> None:
    def edges(name: str) -> int:
        return len(show(None, attend(name), style=style).axes[0].collections)

    assert [edges(name) for name in ("softmax", "sparsemax", "continuous-softmax", "continuous-sparsemax")] == [
        0,
        1,
        0,
        1,
    ]


def test_a_mixture_shows_its_components_and_their_weights() -> None:
    seen = attend("k-mca")
    axes = show(None, seen).axes[0]
    rings = [patch for patch in axes.patches if isinstance(patch, Ellipse)]
    centres = np.array([ring.get_center() for ring in rings])
    assert centres == pytest.approx(seen.density.components.mean[0].numpy())
    assert [text.get_text() for text in axes.texts] == [f"{w:.2f}" for w in seen.density.weights[0].tolist()]
    assert not show(None, attend("continuous-softmax")).axes[0].patches


def test_compare_has_one_scale_for_all() -> None:
    attended = {name: attend(name) for name in ("softmax", "sparsemax", "multimodal")}
    figure = compare(image(), attended, truth=region())
    assert titles(figure)[:5] == ["image", *attended, "true region"]
    assert len(tops(figure)) == 1
    assert tops(figure).pop() == pytest.approx(49 * attended["sparsemax"].weights.max().item(), rel=0.05)
    assert tops(compare(None, attended, top=7.0)) == {7.0}


def test_columns_break_the_row() -> None:
    attended = {name: attend("softmax") for name in "abc"}
    rows = {axes.get_subplotspec().rowspan.start for axes in compare(None, attended, columns=2).axes[:3]}
    assert rows == {0, 1}


def test_index_picks_the_example() -> None:
    scores = torch.stack([torch.eye(7).flatten(), torch.eye(7).flip(0).flatten()])
    seen = fv.mechanism("sparsemax")(9 * scores, torch.zeros(2, 49, 1), grid=GRID)
    first, second = (heat_of(show(None, seen, style="cells", index=i), 0) for i in (0, 1))
    assert first == pytest.approx(second[::-1])
    assert first[0, 0] > 0 == second[0, 0]


def test_densities_alone_can_be_drawn() -> None:
    p = fv.Gaussian(torch.tensor([0.5, 0.5]), 0.01 * torch.eye(2))
    assert compare(None, {"one": p}).axes[0].get_xlabel() == "area 100 %"


def test_regions_are_boxes_with_weights() -> None:
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6], [0.6, 0.6, 0.9, 0.8]])
    seen = fv.Attended(torch.zeros(1, 1), torch.tensor([[0.25, 0.75]]))
    axes = show(image(), seen, boxes=boxes).axes[1]
    lines = [patch for patch in axes.patches if isinstance(patch, Rectangle) and not patch.get_fill()]
    assert [line.get_xy() for line in lines] == [pytest.approx((0.1, 0.1)), pytest.approx((0.6, 0.6))]
    assert lines[1].get_linewidth() > lines[0].get_linewidth()
    assert sorted(text.get_text() for text in axes.texts) == ["0.25", "0.75"]


def test_strip_draws_one_image_per_word() -> None:
    each = [attend("softmax", place) for place in PLACES]
    joined = fv.Attended(torch.zeros(1, 2, 2), torch.stack([one.weights for one in each], dim=1), grid=GRID)
    for attended in (joined, each):
        figure = strip(image(), ["disc", "bar"], attended, style="cells")
        assert titles(figure)[:2] == ["disc", "bar"]
        for panel, one in enumerate(each):
            assert heat_of(figure, panel) == pytest.approx(49 * one.weights.reshape(GRID).numpy(), rel=1e-5)
        assert len(tops(figure)) == 1


def test_strip_uses_its_options() -> None:
    weights = torch.softmax(torch.randn(2, 3, 49, generator=torch.Generator().manual_seed(0)), -1)
    seen = fv.Attended(torch.zeros(2, 3, 1), weights, grid=GRID)
    figure = strip(None, ["a", "b", "c"], seen, index=1, style="cells", columns=2, top=9.0)
    assert heat_of(figure, 2) == pytest.approx(49 * weights[1, 2].reshape(GRID).numpy(), rel=1e-5)
    assert tops(figure) == {9.0}
    assert figure.axes[2].get_subplotspec().rowspan.start == 1
    boxes = torch.tensor([[0.1, 0.1, 0.5, 0.6]]).expand(49, 4)
    assert len(strip(None, ["a"], seen, boxes=boxes).axes[0].patches) == 2 * 49


def test_show_and_compare_use_top_and_boxes() -> None:
    assert tops(show(None, attend("softmax"), top=5.0)) == {5.0}
    regions = fv.Attended(torch.zeros(2, 1), torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    figure = compare(None, {"one": regions}, index=1, boxes=[[0.0, 0.0, 0.5, 0.5], [0.5, 0.5, 1.0, 1.0]])
    (label,) = figure.axes[0].texts
    assert label.get_position() == (0.5, 0.5)
    assert figure.axes[0].get_xlabel() == "1 of 2 regions"


def test_errors_say_what_to_do() -> None:
    seen, line = attend("softmax"), fv.Attended(torch.zeros(1, 1), torch.full((1, 3), 1 / 3), grid=(3,))
    with pytest.raises(UnknownName, match=r"show style: expected a known name, got 'cell'; did you mean 'cells'\?"):
        show(None, seen, style="cell")
    with pytest.raises(ValueError, match="show: expected a density for contours, got weights; use style='smooth'"):
        show(None, seen, style="contours")
    with pytest.raises(ShapeError, match=r"show: expected attention over an image, got grid \(3,\); use plot.words"):
        show(None, line)
    with pytest.raises(ShapeError, match=r"show: expected attention over a grid, got none; pass boxes=\(N, 4\)"):
        show(None, fv.Attended(torch.zeros(1, 1), torch.full((1, 3), 1 / 3)))
    with pytest.raises(ShapeError, match=r"show: expected boxes \(49, 4\), one per location, got \(2, 4\); pass left"):
        show(None, seen, boxes=torch.zeros(2, 4))
    with pytest.raises(ShapeError, match=r"compare: expected truth \(h, w\), boolean or non-negative, got \(2,\)"):
        compare(None, {"one": seen}, truth=torch.zeros(2))
    with pytest.raises(ValueError, match="compare: expected at least one attention, got none; pass"):
        compare(None, {})
    with pytest.raises(ValueError, match="compare: expected columns >= 1, got 0; 4 fit on a page"):
        compare(None, {"one": seen}, columns=0)
    with pytest.raises(ShapeError, match="strip: expected words and an attention for each, got 2 words and 0 attent"):
        strip(None, ["a", "b"], seen)
    with pytest.raises(ShapeError, match="strip: expected words and an attention for each, got 0 words and 0"):
        strip(None, [], [])


def test_the_legend_fits_into_a_narrow_figure() -> None:
    for figure in (
        show(None, attend("multimodal-sparse")),
        compare(image(), {name: attend("k-mca") for name in "abc"}),
    ):
        figure.draw_without_rendering()
        legend, whole = figure.get_supxlabel(), figure.bbox
        (label,) = [text for text in figure.texts if text.get_text() == legend]
        box = label.get_window_extent()
        assert whole.x0 <= box.x0
        assert box.x1 <= whole.x1


def test_importing_the_plots_is_light() -> None:
    """Neither matplotlib before a figure is drawn, nor pyplot with its global state after."""
    code = (
        "import sys, torch, foveate as fv; from foveate import plot;"
        "assert 'matplotlib' not in sys.modules;"
        "plot.show(None, fv.mechanism('softmax')(torch.zeros(1, 4), torch.zeros(1, 4, 1), grid=(2, 2)));"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
