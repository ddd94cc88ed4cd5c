"""Sheets of many maps, animations, and what a notebook shows."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

import foveate as fv
from foveate.errors import ShapeError, UnknownName

IMAGE = np.zeros((40, 60, 3), np.uint8)
SEEN = fv.Attended(
    torch.zeros(3, 8), torch.rand(3, 16, generator=torch.Generator().manual_seed(0)).softmax(-1), grid=(4, 4)
)


def test_a_gallery_has_one_panel_per_example_and_one_scale():
    truth = np.zeros((40, 60), bool)
    truth[:10, :10] = True
    figure = fv.plot.gallery([IMAGE] * 3, SEEN, titles=["a", "b", "c"], truths=[truth, None, None], columns=2)
    assert [axes.get_title() for axes in figure.axes[:3]] == ["a", "b", "c"]
    assert len(figure.axes) == 4
    assert "JS" in figure.axes[0].get_xlabel()
    assert "JS" not in figure.axes[1].get_xlabel()
    scales = {image.norm.vmax for axes in figure.axes[:3] for image in axes.images[1:]}
    assert len(scales) == 1
    fixed = fv.plot.gallery([None] * 3, SEEN, top=9.0, style="cells")
    assert fixed.axes[0].images[0].norm.vmax == 9.0
    assert fixed.axes[0].images[0].get_array().shape == (4, 4)
    assert fixed.axes[0].get_title() == ""


@pytest.mark.parametrize("options", [{"titles": ["a"]}, {"truths": [None]}])
def test_a_gallery_needs_one_of_each_per_image(options):
    with pytest.raises(ShapeError, match="gallery: expected one per image, got 3 images and 1"):
        fv.plot.gallery([None] * 3, SEEN, **options)
    with pytest.raises(ShapeError, match="got 2 images and 3 attentions"):
        fv.plot.gallery([None] * 2, SEEN)
    with pytest.raises(ShapeError, match="expected at least one image"):
        fv.plot.gallery([], [])


def test_heads_are_laid_out_by_layer_and_head():
    weights = torch.zeros(2, 3, 16)
    weights[..., 0] = 1
    weights[1, 2] = torch.eye(16)[15]
    figure = fv.plot.heads(IMAGE, weights, grid=(4, 4), title="word")
    assert len(figure.axes) == 6
    assert [axes.get_title() for axes in figure.axes[:3]] == ["head 0", "head 1", "head 2"]
    assert [figure.axes[n].get_ylabel() for n in (0, 3)] == ["layer 0", "layer 1"]
    last = figure.axes[5].images[1].get_array()
    assert last[-1, -1] > 0
    assert last[0, 0] == 0
    with pytest.raises(ShapeError, match=r"heads: expected weights \(L, M, N\) with N = 3 x 4, got"):
        fv.plot.heads(None, weights, grid=(3, 4))


def test_an_animation_has_one_frame_per_step(tmp_path):
    frames = {f"step {n}": SEEN for n in range(3)}
    path = fv.plot.animate(IMAGE, frames, tmp_path / "a.gif", seconds=0.2)
    with Image.open(path) as made:
        assert made.n_frames in (1, 3)  # equal frames may be merged
        assert made.info["duration"] in (200, 600)
    moving = {"a": SEEN, "b": fv.Attended(SEEN.context, SEEN.weights.flip(-1), grid=(4, 4))}
    with Image.open(fv.plot.animate(None, moving, tmp_path / "b.gif", index=1, style="cells")) as made:
        assert made.n_frames == 2
    text = fv.plot.animate(None, {"</script>": SEEN}, str(tmp_path / "c.html")).read_text()
    assert text.count("data:image/png") == 1
    assert text.count("</script>") == 1
    assert "http" not in text
    with pytest.raises(UnknownName, match="kind of animation"):
        fv.plot.animate(None, frames, tmp_path / "a.mp4")
    with pytest.raises(ValueError, match="animate: expected at least one frame"):
        fv.plot.animate(None, {}, tmp_path / "a.gif")
    with pytest.raises(ValueError, match="seconds"):
        fv.plot.animate(None, frames, tmp_path / "a.gif", seconds=0)


def test_a_notebook_shows_the_maps():
    png = SEEN._repr_png_()
    assert Image.open(io.BytesIO(png)).size[0] > 300
    words = fv.Attended(torch.zeros(1, 2, 8), torch.full((1, 2, 16), 1 / 16), grid=(4, 4))
    assert words._repr_png_() is not None
    assert fv.Attended(torch.zeros(1, 8), torch.full((1, 4), 0.25))._repr_png_() is None
    assert fv.Attended(torch.zeros(1, 8), torch.full((1, 4), 0.25), grid=(4,))._repr_png_() is None
