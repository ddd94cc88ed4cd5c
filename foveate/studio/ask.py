"""The page Ask: a picture, a question, the answers, and where several mechanisms look on the same scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
from torch import Tensor

from foveate.attention import MECHANISMS
from foveate.errors import DataError, FoveateError
from foveate.plot.canvas import heat_colours
from foveate.studio import picker, widgets
from foveate.studio.limits import read_question, read_upload
from foveate.studio.looks import attend, scores_of
from foveate.studio.panels import draw_panels
from foveate.studio.shelf import Shelf
from foveate.tasks.vqa_predictor import Answer

TASK = "vqa"
QUESTIONS = 5
USUAL = ("softmax", "sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "multimodal")


@dataclass(frozen=True)
class Asked:
    """What one visitor is looking at.

    Attributes:
        pixels: the picture.
        example: its number among the examples, None for a picture of the visitor's.
        scores, grid: of the run's attention for the last question, None before the first.
        truth: the region one must look at, where it is known.
    """

    pixels: np.ndarray | None = None
    example: int | None = None
    scores: Tensor | None = None
    grid: tuple[int, int] | None = None
    truth: np.ndarray | None = None


def pick_example(pick: Any) -> tuple[Asked, str, str, str]:
    """The example of a number: what is looked at now, the picture, its questions, the first of them."""
    number, pixels = picker.example_number(pick), picker.example_pixels(pick)
    own = picker.examples().questions_of(picker.examples().pictures[number].id)
    texts = list(dict.fromkeys(question.text for question in own))[:QUESTIONS]
    return Asked(pixels, number), widgets.chosen(pixels), widgets.chips(texts), texts[0]


def take_upload(address: Any) -> tuple[Asked, str]:
    """A visitor's picture: what is looked at now, and the picture."""
    pixels = read_upload(address)
    return Asked(pixels), widgets.chosen(pixels)


def ask(shelf: Shelf, run: str, asked: Asked, question: Any) -> tuple[Asked, str]:
    """The answer as HTML, and what to draw maps of.

    A question without words, one that is too long and no picture raise DataError.
    """
    text = read_question(question)
    if asked.pixels is None:
        raise DataError("ask: expected a picture, got none; pick an example or choose a file")
    found = shelf.predictor(run).answer(asked.pixels, text)  # type: ignore[attr-defined]
    seen = shelf.scorer(run).answer(asked.pixels, text).attention  # type: ignore[attr-defined]
    if not isinstance(seen.grid, tuple):
        raise DataError("ask: expected attention over a grid, got regions; choose another run")
    looked = replace(asked, scores=scores_of(seen), grid=seen.grid, truth=_truth(asked, text))
    return looked, answer_html(found)


def maps(asked: Asked, names: Sequence[str], knobs: Sequence[float]) -> str:
    """The maps of several mechanisms on the scores of the last answer; nothing before the first."""
    if asked.scores is None or asked.grid is None:
        return ""
    if not names:
        return widgets.trouble("choose at least one mechanism")
    looks = attend(asked.scores, asked.grid, names, widgets.knob_values(knobs))
    note = "Ellipses hold 50 and 95 % of a component's mass; beyond a thick line there is nothing."
    return draw_panels(asked.pixels, looks, asked.truth, note)


def answer_html(found: Answer) -> str:
    """The answers with bars, the words with the colour of their attention, words never seen."""
    bars = "".join(
        f'<div class="fv-bar"><b>{escape(text)}</b><i style="width:{100 * value:.1f}%"></i>{100 * value:.1f} %</div>'
        for text, value in found.best
    )
    most = max([weight for _, weight in found.words] + [1e-9])
    words = "".join(f'<span style="background:{_shade(w / most)}">{escape(word)}</span>' for word, w in found.words)
    unknown = f"Never seen: {escape(', '.join(found.unknown))}." if found.unknown else ""
    return (
        f'<p class="fv-answer">{escape(found.text)}</p><div class="fv-bars">{bars}</div>'
        f'<p class="fv-words">{words}</p><p class="fv-note">{unknown}</p>'
    )


@dataclass(frozen=True)
class Parts:
    """The components of the page."""

    asked: Any
    picker: picker.Picker
    run: Any
    suggestions: Any
    question: Any
    button: Any
    answer: Any
    names: Any
    knobs: list[Any]
    panels: Any


def build(gr: Any, shelf: Shelf) -> None:
    """Lay the page out and wire it up."""
    parts = _lay_out(gr, list(shelf.runs(TASK)))
    _wire_picture(gr, parts)
    _wire_question(gr, shelf, parts)


def _lay_out(gr: Any, runs: list[str]) -> Parts:
    asked = gr.State(Asked(), time_to_live=3600)
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            chooser = picker.lay_out(gr, "ask")
        with gr.Column(scale=2, min_width=320):
            run = gr.Dropdown(runs, value=runs[0], label="run")
            suggestions = gr.HTML(js_on_load=widgets.PICK, elem_id="ask-suggestions")
            question = gr.Textbox(label="question", max_lines=3, elem_id="ask-question")
            button = gr.Button("Ask", variant="primary", elem_id="ask-button")
            answer = gr.HTML(elem_id="ask-answer")
    names = gr.CheckboxGroup(list(MECHANISMS), value=list(USUAL), label="mechanisms, on the same scores")
    with gr.Row():
        knobs = widgets.knob_sliders(gr)
    panels = gr.HTML(elem_id="ask-maps")
    return Parts(asked, chooser, run, suggestions, question, button, answer, names, knobs, panels)


def _wire_picture(gr: Any, parts: Parts) -> None:
    """An upload replaces the picture and clears what was said about the old one."""

    def on_upload(address: Any) -> tuple:
        try:
            return *take_upload(address), "", "", ""
        except FoveateError as error:
            return Asked(), "", "", widgets.trouble(error), ""

    parts.picker.drop.upload(
        widgets.on_event(gr, "address", on_upload),
        None,
        [parts.asked, parts.picker.picture, parts.suggestions, parts.answer, parts.panels],
        api_visibility="private",
    )


def _wire_question(gr: Any, shelf: Shelf, parts: Parts) -> None:
    """An example brings its first question; a question is answered, then the maps are drawn."""

    def on_ask(name: str, looked: Asked, text: str) -> tuple:
        try:
            return ask(shelf, name, looked, text)
        except FoveateError as error:
            return replace(looked, scores=None), widgets.trouble(error)

    def on_draw(looked: Asked, chosen: list[str], *values: float) -> str:
        return maps(looked, chosen, values)

    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    drawn = [parts.asked, parts.names, *parts.knobs]
    shown = [parts.asked, parts.picker.picture, parts.suggestions, parts.question]
    picked = parts.picker.thumbs.select(
        widgets.on_event(gr, "pick", pick_example), None, shown, api_visibility="private"
    )
    suggested = parts.suggestions.select(widgets.on_event(gr, "pick", str), None, parts.question, **quiet)
    for begin in (picked.then, suggested.then, parts.button.click, parts.question.submit):
        answered = begin(
            on_ask, [parts.run, parts.asked, parts.question], [parts.asked, parts.answer], api_visibility="private"
        )
        answered.then(on_draw, drawn, parts.panels, **quiet)
    for turn in (*(knob.input for knob in parts.knobs), parts.names.change):
        turn(on_draw, drawn, parts.panels, trigger_mode="always_last", **quiet)


def _truth(asked: Asked, text: str) -> np.ndarray | None:
    if asked.example is None:
        return None
    data = picker.examples()
    own = data.questions_of(data.pictures[asked.example].id)
    return next((question.region() for question in own if question.text == text and question.region), None)


def _shade(share: float) -> str:
    """The colour of a word that gets so much of the most attention, opaque, so that dark letters show on any page."""
    *colour, alpha = heat_colours()(0.6 * share)
    return "#" + "".join(f"{round(255 * (1 - alpha + alpha * part)):02x}" for part in colour)
