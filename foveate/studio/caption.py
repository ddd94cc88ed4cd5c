"""The page Caption: a picture in words, and for every word where the model looked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import numpy as np

from foveate.attention import Attended
from foveate.errors import DataError, FoveateError
from foveate.plot.looks import pick as pick_one
from foveate.studio import picker, widgets
from foveate.studio.limits import read_upload
from foveate.studio.panels import draw_panels
from foveate.studio.shelf import Shelf

TASK, RECIPE = "captioning", "captioning-lstm-scenes"
ALL = "all"


@dataclass(frozen=True)
class Told:
    """What one visitor is looking at: a picture, the words of its caption, and where they look, one query a word."""

    pixels: np.ndarray | None = None
    words: tuple[str, ...] = ()
    attention: Attended | None = None


def write(shelf: Shelf, run: str, pixels: np.ndarray | None, beams: float) -> tuple[Told, str, str]:
    """The caption of a picture as HTML, its words to pick, and what to draw maps of.

    No picture raises DataError.
    """
    if pixels is None:
        raise DataError("caption: expected a picture, got none; pick an example or choose a file")
    found = shelf.predictor(run).caption(pixels, beams=int(beams))  # type: ignore[attr-defined]
    others = "".join(f"<li>{escape(text)} <small>({value:.2f})</small></li>" for text, value in found.best[1:])
    html = f'<p class="fv-answer">{escape(found.text)}</p>' + (f"<ul>{others}</ul>" if others else "")
    picks = [(ALL, "all words"), *((str(t), escape(word)) for t, word in enumerate(found.words))]
    return Told(pixels, found.words, found.attention), html, widgets.pickable(picks, "fv-chips")


def maps(told: Told, pick: Any = ALL) -> str:
    """Where every word looked, or one that was picked."""
    if told.attention is None or not told.words:
        return ""
    known = isinstance(pick, str) and pick.isdecimal() and int(pick) < len(told.words)
    chosen = [int(pick)] if known else range(len(told.words))
    looks = {f"{t + 1}. {told.words[t]}": pick_one("caption", told.attention, (0, t)) for t in chosen}
    return draw_panels(told.pixels, looks)


def take(read: Callable[[Any], np.ndarray], told: Any) -> tuple[Told, str]:
    """A picture that was picked or sent: what is looked at now, and the picture, or what is wrong with it."""
    try:
        pixels = read(told)
    except FoveateError as error:
        return Told(), widgets.trouble(error)
    return Told(pixels), widgets.chosen(pixels)


def build(gr: Any, shelf: Shelf) -> None:
    """Lay the page out and wire it up."""
    if picker.no_run(gr, shelf, TASK, RECIPE):
        return
    runs = list(shelf.runs(TASK))
    told = gr.State(Told(), time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            chooser = picker.lay_out(gr, "caption")
        with gr.Column(scale=2, min_width=320):
            run = gr.Dropdown(runs, value=runs[0], label="run")
            beams = gr.Slider(1, 8, value=3, step=1, label="beams of the search")
            text = gr.HTML(elem_id="caption-text")
            words = gr.HTML(js_on_load=widgets.PICK, elem_id="caption-words")
    panels = gr.HTML(elem_id="caption-maps")

    def on_write(looked: Told, name: str, width: float) -> tuple:
        try:
            return write(shelf, name, looked.pixels, width)
        except FoveateError as error:
            return Told(), widgets.trouble(error), ""

    private, shown = {"api_visibility": "private"}, [told, chooser.picture]
    pick, send = (partial(take, read) for read in (picker.example_pixels, read_upload))
    picked = chooser.thumbs.select(widgets.on_event(gr, "pick", pick), None, shown, **private)
    sent = chooser.drop.upload(widgets.on_event(gr, "address", send), None, shown, **private)
    for begin in (picked.then, sent.then, beams.release, run.input):
        written = begin(on_write, [told, run, beams], [told, text, words], **private)
        written.then(maps, told, panels, show_progress="hidden", **private)
    words.select(widgets.on_event_with(gr, "pick", maps), told, panels, show_progress="hidden", **private)
