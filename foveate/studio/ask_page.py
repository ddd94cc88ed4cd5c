"""The page Ask: an image, a question, the answers, and the maps of several mechanisms on the same scores."""

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
from foveate.studio.attention_maps import attend, scores_of
from foveate.studio.catalogue import RunCatalogue
from foveate.studio.limits import read_question, read_upload
from foveate.studio.panels import ELLIPSES_NOTE, draw_panels
from foveate.tasks.vqa.predictor import Answer

TASK = "vqa"
QUESTIONS = 5  # suggested per example
SHOWN = ("softmax", "sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "multimodal")


@dataclass(frozen=True)
class AskView:
    """What one visitor sees.

    Attributes:
        pixels: the image.
        example: its number among the examples, None for an uploaded image.
        scores, grid: of the run's attention for the last question, None before the first.
        truth: the region that must be attended to, if it is known.
    """

    pixels: np.ndarray | None = None
    example: int | None = None
    scores: Tensor | None = None
    grid: tuple[int, int] | None = None
    truth: np.ndarray | None = None


def pick_example(pick: Any) -> tuple[AskView, str, str, str]:
    """An example that was picked: the new view, the image, its questions as buttons, and the first of them."""
    number, pixels = picker.example_number(pick), picker.example_pixels(pick)
    own = picker.examples().questions_of(picker.examples().images[number].id)
    texts = list(dict.fromkeys(question.text for question in own))[:QUESTIONS]
    return AskView(pixels, number), widgets.chosen_image(pixels), widgets.chips(texts), texts[0]


def take_upload(address: Any) -> tuple[AskView, str]:
    """An uploaded image: the new view, and the image."""
    pixels = read_upload(address)
    return AskView(pixels), widgets.chosen_image(pixels)


def ask(catalogue: RunCatalogue, run: str, view: AskView, question: Any) -> tuple[AskView, str]:
    """Answer a question: the new view, and the answer as HTML.

    Raises DataError if there is no image, or if the question is empty or too long.
    """
    text = read_question(question)
    if view.pixels is None:
        raise DataError("ask: expected an image, got none; pick an example or choose a file")
    answer = catalogue.predictor(run).answer(view.pixels, text)
    attention = catalogue.scorer(run).answer(view.pixels, text).attention
    if not isinstance(attention.grid, tuple):
        raise DataError("ask: expected attention over a grid, got regions; choose another run")
    answered = replace(view, scores=scores_of(attention), grid=attention.grid, truth=_truth(view, text))
    return answered, answer_html(answer)


def maps(view: AskView, names: Sequence[str], knobs: Sequence[float]) -> str:
    """The maps of several mechanisms on the scores of the last answer; empty before the first."""
    if view.scores is None or view.grid is None:
        return ""
    if not names:
        return widgets.error_html("choose at least one mechanism")
    attended = attend(view.scores, view.grid, names, widgets.knob_values(knobs))
    return draw_panels(view.pixels, attended, view.truth, ELLIPSES_NOTE)


def answer_html(found: Answer) -> str:
    """The answers with bars, the words on the colour of their attention, and the words outside the vocabulary."""
    bars = "".join(
        f'<div class="fv-bar"><b>{escape(text)}</b><i style="width:{100 * value:.1f}%"></i>{100 * value:.1f} %</div>'
        for text, value in found.best
    )
    most = max([weight for _, weight in found.words] + [1e-9])
    words = "".join(f'<span style="background:{_shade(w / most)}">{escape(word)}</span>' for word, w in found.words)
    unknown = f"Not in the vocabulary: {escape(', '.join(found.unknown))}." if found.unknown else ""
    return (
        f'<p class="fv-answer">{escape(found.text)}</p><div class="fv-bars">{bars}</div>'
        f'<p class="fv-words">{words}</p><p class="fv-note">{unknown}</p>'
    )


@dataclass(frozen=True)
class AskComponents:
    """The components of the page."""

    view: Any
    picker: picker.Picker
    run: Any
    suggestions: Any
    question: Any
    button: Any
    answer: Any
    names: Any
    knobs: list[Any]
    panels: Any


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    parts = _lay_out(gr, list(catalogue.runs(TASK)))
    _connect_upload(gr, parts)
    _connect_question(gr, catalogue, parts)


def _lay_out(gr: Any, runs: list[str]) -> AskComponents:
    view = gr.State(AskView(), time_to_live=3600)
    with picker.beside_picker(gr, "ask") as chooser:
        run = gr.Dropdown(runs, value=runs[0], label="run")
        suggestions = gr.HTML(js_on_load=widgets.PICK, elem_id="ask-suggestions")
        question = gr.Textbox(label="question", max_lines=3, elem_id="ask-question")
        button = gr.Button("Ask", variant="primary", elem_id="ask-button")
        answer = gr.HTML(elem_id="ask-answer")
    names = gr.CheckboxGroup(list(MECHANISMS), value=list(SHOWN), label="mechanisms (on the same scores)")
    with gr.Row():
        knobs = widgets.knob_sliders(gr)
    panels = gr.HTML(elem_id="ask-maps")
    return AskComponents(view, chooser, run, suggestions, question, button, answer, names, knobs, panels)


def _connect_upload(gr: Any, parts: AskComponents) -> None:
    """An upload replaces the image and clears the answer to the previous one."""

    def on_upload(address: Any) -> tuple[AskView, str, str, str, str]:
        try:
            return *take_upload(address), "", "", ""
        except FoveateError as error:
            return AskView(), "", "", widgets.error_html(error), ""

    parts.picker.drop.upload(
        widgets.on_event(gr, "address", on_upload),
        None,
        [parts.view, parts.picker.image, parts.suggestions, parts.answer, parts.panels],
        api_visibility="private",
    )


def _connect_question(gr: Any, catalogue: RunCatalogue, parts: AskComponents) -> None:
    """Picking an example asks its first question; after an answer the maps are drawn."""

    def on_ask(name: str, view: AskView, text: str) -> tuple[AskView, str]:
        try:
            return ask(catalogue, name, view, text)
        except FoveateError as error:
            return replace(view, scores=None), widgets.error_html(error)

    def on_draw(view: AskView, chosen: list[str], *values: float) -> str:
        return maps(view, chosen, values)

    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    drawn = [parts.view, parts.names, *parts.knobs]
    shown = [parts.view, parts.picker.image, parts.suggestions, parts.question]
    picked = parts.picker.thumbs.select(
        widgets.on_event(gr, "pick", pick_example), None, shown, api_visibility="private"
    )
    suggested = parts.suggestions.select(widgets.on_event(gr, "pick", str), None, parts.question, **quiet)
    for event in (picked.then, suggested.then, parts.button.click, parts.question.submit):
        answered = event(
            on_ask, [parts.run, parts.view, parts.question], [parts.view, parts.answer], api_visibility="private"
        )
        answered.then(on_draw, drawn, parts.panels, **quiet)
    for turn in (*(knob.input for knob in parts.knobs), parts.names.change):
        turn(on_draw, drawn, parts.panels, trigger_mode="always_last", **quiet)


def _truth(view: AskView, text: str) -> np.ndarray | None:
    """The true region of a question about an example."""
    if view.example is None:
        return None
    data = picker.examples()
    own = data.questions_of(data.images[view.example].id)
    return next((question.region() for question in own if question.text == text and question.region), None)


def _shade(fraction: float) -> str:
    """The colour of a word with this fraction of the largest weight, opaque, so that dark letters show on any page."""
    *colour, alpha = heat_colours()(0.6 * fraction)
    return "#" + "".join(f"{round(255 * (1 - alpha + alpha * part)):02x}" for part in colour)
