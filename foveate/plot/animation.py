"""Attention that changes: the steps of a fit, or the words of a caption, as a GIF or as a page with a slider."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from foveate.checks import check_number
from foveate.errors import ShapeError, UnknownName, WrongValue
from foveate.plot.canvas import add_scale, heat_scale, make_panels, read_image, set_title
from foveate.plot.figures import draw_panel, prepare_drawing
from foveate.plot.heat import AttentionLike, ExampleIndex, select_example, summarise

DPI = 110
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<style>body {{ font: 16px system-ui, sans-serif; margin: 2rem auto; max-width: 40rem; color-scheme: light dark }}
img {{ width: 100%; background: #fff }} input {{ width: 100% }}</style>
<img alt="{title}"><input type="range" min="0" max="{last}" value="0" aria-label="frame"><p role="status"></p>
<script>const frames = {frames}, slider = document.querySelector('input');
const show = () => {{ const [title, address] = frames[slider.value]; document.querySelector('img').src = address;
document.querySelector('p').textContent = title; }};
slider.addEventListener('input', show); show();</script></html>
"""


def animate(
    image: Any,
    frames: Mapping[str, AttentionLike],
    path: str | Path,
    *,
    index: ExampleIndex = 0,
    style: str | None = None,
    seconds: float = 0.7,
) -> Path:
    """Write attention that changes from frame to frame, with one colour scale, as a GIF or as a page with a slider.

    Args:
        image: as in `show`, or a list with one image per frame, such as a video's.
        index, style: as in `show`.
        frames: attention by title, in order: the steps of a fit, the words of a caption.
        path: a file that ends in .gif or .html; the page is one file without any other host.
        seconds: per frame of a GIF.

    Returns:
        The path.

    >>> import foveate as fv, tempfile, torch
    >>> weights, places = torch.rand(196).softmax(-1), fv.ops.cell_centres(14, 14)
    >>> steps = {f"step {n}": fv.fit_mixture(weights, places, 2, iterations=n, start="spread") for n in (1, 2)}
    >>> animate(None, steps, f"{tempfile.mkdtemp()}/em.gif").name
    'em.gif'
    """
    check_number("animate", "seconds", seconds, above=0, advice="0.7 can be followed")
    path = Path(path)
    if path.suffix not in (".gif", ".html"):
        raise UnknownName("kind of animation", path.suffix, (".gif", ".html"))
    if not frames:
        raise WrongValue("animate: expected at least one frame, got none; pass {title: attended}")
    drawn = _draw_frames(image, frames, index, style)
    if path.suffix == ".html":
        addresses = [[title, f"data:image/png;base64,{base64.b64encode(png).decode()}"] for title, png in drawn]
        # "</" would end the script
        listed = json.dumps(addresses).replace("</", "<\\/")
        path.write_text(PAGE.format(title=escape(path.stem), last=len(drawn) - 1, frames=listed), encoding="utf-8")
        return path
    from PIL import Image

    first, *rest = [Image.open(io.BytesIO(png)).convert("RGB") for _, png in drawn]
    first.save(path, save_all=True, append_images=rest, duration=round(1000 * seconds), loop=0)
    return path


def _draw_frames(
    image: Any, frames: Mapping[str, AttentionLike], index: ExampleIndex, style: str | None
) -> list[tuple[str, bytes]]:
    """The frames as PNG files, by title."""
    several = [read_image("animate", one) for one in image] if isinstance(image, list | tuple) else None
    pixels = [read_image("animate", image)] * len(frames) if several is None else several
    if len(pixels) != len(frames):
        raise ShapeError(
            f"animate: expected an image for each frame, got {len(pixels)} images and {len(frames)} frames"
        )
    drawings = {
        title: prepare_drawing("animate", select_example("animate", one, index), style, None)
        for title, one in frames.items()
    }
    scale = heat_scale(max(drawing.peak for drawing in drawings.values()))
    drawn = []
    for one, (title, drawing) in zip(pixels, drawings.items(), strict=True):
        figure, panels = make_panels(1, 1, one)
        draw_panel(panels[0], one, drawing, scale)
        set_title(panels[0], title, summarise(drawing.one))
        add_scale(figure, panels, scale)
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=DPI)
        drawn.append((title, file.getvalue()))
    return drawn
