"""Words and lines."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import foveate as fv
from foveate.errors import ShapeError
from foveate.plot import profiles, show, words
from tests.plot.drawn import attend

WEIGHTS = torch.tensor([[0.1, 0.2, 0.7, 0.0]])
SEEN = fv.Attended(torch.zeros(1, 1), WEIGHTS)


def shade(figure: Figure, word: str) -> tuple[float, ...]:
    (text,) = (text for text in figure.texts if text.get_text() == word)
    return text.get_bbox_patch().get_facecolor()


def test_words_carry_shares_and_ever_darker_colours() -> None:
    figure = words(["which", "red", "star"], SEEN, title="question")
    assert [text.get_text() for text in figure.texts] == ["question", "which", "10", "red", "20", "star", "70"]
    light = [1 - c[3] * (1 - np.mean(c[:3])) for c in (shade(figure, word) for word in ("which", "red", "star"))]
    assert light == sorted(light, reverse=True)


def test_words_have_letters_that_can_be_read() -> None:
    figure = words(["which", "red", "star"], SEEN)
    colours = {text.get_text(): text.get_color() for text in figure.texts}
    assert colours["star"] == "white"
    assert colours["which"] != "white"


def test_words_break_at_the_width() -> None:
    tokens = ["striped"] * 4
    heights = [words(tokens, SEEN, width=width).get_size_inches()[1] for width in (6.0, 1.5)]
    assert heights[1] > heights[0] + 1


def test_top_makes_figures_comparable() -> None:
    alone = [shade(words(["which"], fv.Attended(torch.zeros(1, 1), torch.tensor([[w]]))), "which") for w in (0.2, 0.9)]
    fixed = [
        shade(words(["which"], fv.Attended(torch.zeros(1, 1), torch.tensor([[w]])), top=1.0), "which")
        for w in (0.2, 0.9)
    ]
    assert alone[0] == alone[1]
    assert fixed[0] != fixed[1]


def test_words_by_example_and_from_a_density() -> None:
    both = fv.Attended(torch.zeros(2, 1), torch.cat([WEIGHTS, WEIGHTS.flip(-1)]))
    assert [text.get_text() for text in words(["a", "b", "c", "d"], both, index=1).texts][1] == "0"
    seen = fv.mechanism("continuous-softmax")(torch.tensor([[0.0, 0.0, 9.0]]), torch.zeros(1, 3, 1), grid=(3,))
    shares = seen.map(3)[0]
    texts = [text.get_text() for text in words(["a", "b", "c"], seen).texts]
    assert texts[1::2] == [f"{100 * share:.0f}" for share in shares.tolist()]


def test_a_density_over_padded_words_keeps_to_their_cells() -> None:
    mask = torch.tensor([[True, True, True, False, False, False]])
    scores = torch.tensor([[0.0, 0.0, 9.0, 0.0, 0.0, 0.0]])
    seen = fv.mechanism("continuous-sparsemax")(scores, torch.zeros(1, 6, 1), grid=(6,), mask=mask)
    texts = [text.get_text() for text in words(["a", "b", "c"], seen).texts]
    assert texts[1::2] == [f"{100 * share:.0f}" for share in seen.map(6)[0, :3].tolist()]
    assert int(texts[5]) > 50
    alone = words(["a", "b"], fv.Gaussian(torch.tensor([0.25]), torch.tensor([[1e-3]])))
    assert [text.get_text() for text in alone.texts] == ["a", "100", "b", "0"]


def test_words_that_do_not_fit_raise_an_error() -> None:
    with pytest.raises(ShapeError, match="words: expected words and a weight for each, got 5 and 4; pass the tokens"):
        words(["a"] * 5, SEEN)
    with pytest.raises(ShapeError, match="words: expected words and a weight for each, got 0 and 4"):
        words([], SEEN)
    with pytest.raises(ShapeError, match=r"words: expected attention over words, got grid \(7, 7\); use plot.show"):
        words(["a"], attend("softmax"))


def test_profiles_draw_curves_and_steps() -> None:
    scores = torch.tensor([[0.0, 3.0, 0.0, 0.0]])
    names = ("softmax", "continuous-sparsemax")
    attended = {name: fv.mechanism(name)(scores, torch.zeros(1, 4, 1), grid=(4,)) for name in names}
    attended["softmax"] = fv.Attended(torch.zeros(1, 1), attended["softmax"].weights, grid=(4,))
    figure = profiles(attended, title="a line")
    (axes,) = figure.axes
    assert axes.get_title() == "a line"
    curve, ends = axes.get_lines()
    density = attended["continuous-sparsemax"].density
    x, y = curve.get_data()
    assert y == pytest.approx(density.pdf(torch.tensor(x)[:, None]).numpy()[0], rel=1e-5)
    radius = (5 * density.covariance.item()) ** 0.5
    inside = [end for end in (density.mean.item() - radius, density.mean.item() + radius) if 0 < end < 1]
    assert sorted(ends.get_xdata()) == pytest.approx(inside, abs=2e-3)
    (steps,) = axes.patches
    assert steps.get_data().values == pytest.approx(4 * attended["softmax"].weights[0].numpy())
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[1].startswith("softmax (length 100 %)") or labels[0].startswith("softmax (length 100 %)")


def test_dollars_are_letters() -> None:
    """What a user wrote is no formula, not even a broken one."""
    broken = r"$\nothing$"
    figures = [
        words([broken, broken], fv.Attended(torch.zeros(1, 1), WEIGHTS), title=broken),
        show(None, attend("softmax"), title=broken),
        profiles({broken: fv.Attended(torch.zeros(1, 1), WEIGHTS, grid=(4,))}, title=broken),
    ]
    for figure in figures:
        figure.savefig(BytesIO(), dpi=20)


def test_profiles_by_example() -> None:
    both = fv.Attended(torch.zeros(2, 1), torch.cat([WEIGHTS, WEIGHTS.flip(-1)]), grid=(4,))
    (steps,) = profiles({"one": both}, index=1).axes[0].patches
    assert steps.get_data().values == pytest.approx(4 * WEIGHTS[0].flip(-1).numpy())


def test_profiles_of_images_raise_an_error() -> None:
    with pytest.raises(
        ShapeError, match=r"profiles: expected attention in one dimension, got grid \(7, 7\); use plot.show"
    ):
        profiles({"one": attend("softmax")})
