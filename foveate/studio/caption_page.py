"""The page Caption: a caption of an image, and where the model looked for each of its words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import numpy as np

from foveate.attention import Attended
from foveate.errors import DataError, FoveateError
from foveate.plot.heat import select_example
from foveate.studio import picker, widgets
from foveate.studio.catalogue import RunCatalogue
from foveate.studio.limits import read_upload
from foveate.studio.panels import draw_panels

TASK, RECIPE = "captioning", "captioning-lstm-scenes"


@dataclass(frozen=True)
class CaptionView:
    """What one visitor sees: an image, the words of its caption, and their attention, one query per word."""

    pixels: np.ndarray | None = None
    words: tuple[str, ...] = ()
    attention: Attended | None = None


def write(catalogue: RunCatalogue, run: str, pixels: np.ndarray | None, beams: float) -> tuple[CaptionView, str, str]:
    """Caption an image: the new view, the caption as HTML, and its words as buttons.

    Raises DataError if there is no image.
    """
    if pixels is None:
        raise DataError("caption: expected an image, got none; pick an example or choose a file")
    caption = catalogue.predictor(run).caption(pixels, beams=int(beams))
    others = "".join(f"<li>{escape(text)} <small>({value:.2f})</small></li>" for text, value in caption.best[1:])
    html = f'<p class="fv-answer">{escape(caption.text)}</p>' + (f"<ul>{others}</ul>" if others else "")
    return CaptionView(pixels, caption.words, caption.attention), html, widgets.word_buttons(caption.words)


def maps(view: CaptionView, pick: Any = widgets.ALL) -> str:
    """The maps of all words, or of the one that was picked."""
    if view.attention is None or not view.words:
        return ""
    picked = widgets.picked_number(pick, len(view.words))
    chosen = range(len(view.words)) if picked is None else [picked]
    attended = {f"{t + 1}. {view.words[t]}": select_example("caption", view.attention, (0, t)) for t in chosen}
    return draw_panels(view.pixels, attended)


def load_image(read: Callable[[Any], np.ndarray], content: Any) -> tuple[CaptionView, str]:
    """A picked or uploaded image: the new view, and the image or an error message as HTML."""
    try:
        pixels = read(content)
    except FoveateError as error:
        return CaptionView(), widgets.error_html(error)
    return CaptionView(pixels), widgets.chosen_image(pixels)


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    if picker.is_without_runs(gr, catalogue, TASK, RECIPE):
        return
    runs = list(catalogue.runs(TASK))
    view = gr.State(CaptionView(), time_to_live=3600)
    with picker.beside_picker(gr, "caption") as chooser:
        run = gr.Dropdown(runs, value=runs[0], label="run")
        beams = gr.Slider(1, 8, value=3, step=1, label="beam width")
        text = gr.HTML(elem_id="caption-text")
        words = gr.HTML(js_on_load=widgets.PICK, elem_id="caption-words")
    panels = gr.HTML(elem_id="caption-maps")

    def on_write(seen: CaptionView, name: str, width: float) -> tuple[CaptionView, str, str]:
        try:
            return write(catalogue, name, seen.pixels, width)
        except FoveateError as error:
            return CaptionView(), widgets.error_html(error), ""

    private, shown = {"api_visibility": "private"}, [view, chooser.image]
    pick, upload = (partial(load_image, read) for read in (picker.example_pixels, read_upload))
    picked = chooser.thumbs.select(widgets.on_event(gr, "pick", pick), None, shown, **private)
    uploaded = chooser.drop.upload(widgets.on_event(gr, "address", upload), None, shown, **private)
    for event in (picked.then, uploaded.then, beams.release, run.input):
        written = event(on_write, [view, run, beams], [view, text, words], **private)
        written.then(maps, view, panels, show_progress="hidden", **private)
    words.select(widgets.on_event_with(gr, "pick", maps), view, panels, show_progress="hidden", **private)
