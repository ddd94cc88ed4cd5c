"""The page Compare: two mechanisms, or two runs, on the same image and question, with a slider between the maps."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import torch

from foveate.apps.studio import picker, widgets
from foveate.apps.studio.ask_page import TASK, ask, suggestions_for
from foveate.apps.studio.attention_maps import attend
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.apps.studio.panels import (
    colour_bar,
    draw_heat,
    draw_lines,
    draw_outline,
    draw_pixels,
    pale,
    scale_end,
    sentences,
)
from foveate.apps.studio.picker import ChosenImage, choose_example, read_upload
from foveate.apps.studio.share import IMAGE_NOTE, build_restore, compare_code, share_html
from foveate.apps.studio.widgets import script
from foveate.attention import MECHANISMS, Attended
from foveate.errors import DataError, FoveateError
from foveate.plot.heat import heat, select_example

FIRST, LEFT, RIGHT = "3", "softmax", "multimodal"
OWN_ATTENTION = "its own attention"
LINE = "\n"  # between the sentences below a saved map


def sides(catalogue: RunCatalogue) -> list[str]:
    """What can be compared: every run of the task with its own attention, and every mechanism on a run's scores."""
    runs = list(catalogue.runs(TASK))
    return [*MECHANISMS, *(f"{run}: {OWN_ATTENTION}" for run in runs)]


def attention_for(catalogue: RunCatalogue, side: str, image: ChosenImage, question: str) -> tuple[Attended, str]:
    """The attention of one side, and the answer behind it; raises UnknownName for a side that is not offered."""
    run, own, _ = side.partition(f": {OWN_ATTENTION}")
    if own:
        answer = catalogue.predictor(run).answer(image.pixels, question)
        return answer.attention, f"{run}, trained on {catalogue.trained_on(run)}, answers “{answer.text}”"
    name = str(catalogue.first_run(TASK, image.domain))
    view = ask(catalogue, name, image, question)
    if view.scores is None or view.grid is None:
        raise DataError("compare: expected attention over a grid, got none; choose another run")
    return attend(view.scores, view.grid, [side], {})[
        side
    ], f"{side} on the scores of {name}, trained on {catalogue.trained_on(name)}"


def compare_html(catalogue: RunCatalogue, image: ChosenImage, question: str, left: str, right: str) -> str:
    """Both maps over each other with a slider that uncovers one or the other."""
    found = [attention_for(catalogue, side, image, question) for side in (left, right)]
    shown = [select_example("compare", one) for one, _ in found]
    values = [heat(one, cells=False) for one in shown]
    top = scale_end(values)
    known = ask(catalogue, str(catalogue.first_run(TASK, image.domain)), image, question).known
    truth = None if known is None or known.region is None else known.region()
    ratio = image.pixels.shape[1] / image.pixels.shape[0]
    layers = [
        draw_pixels(pale(image.pixels)) + draw_heat(each, top, is_grid=one.density is None) + draw_lines(one)
        for one, each in zip(shown, values, strict=True)
    ]
    outline = "" if truth is None else draw_outline(truth)
    region = None if truth is None else torch.from_numpy(np.ascontiguousarray(truth))
    said = [sentences(one, region) for one in shown]
    below = "".join(
        f"<div><p class='fv-label'>{place}</p><p><b>{escape(head)}</b><br>{escape('; '.join(each))}</p></div>"
        for place, (_, head), each in zip(("Left", "Right"), found, said, strict=True)
    )
    label = escape(f"{left} on the left of the slider, {right} on the right")
    over = "".join(
        f'<div class="fv-over fv-panel {kind}" data-title="{escape(head)}" data-below="{escape(LINE.join(each))}">'
        f"{layer}{outline}</div>"
        for kind, layer, (_, head), each in zip(("", "fv-cut"), layers, found, said, strict=True)
    )
    return (
        f'<div class="fv-compare"><div class="fv-stack fv-saved" style="aspect-ratio:{ratio:.4f}" role="img" '
        f'aria-label="{label}">{over}'
        f'<div class="fv-divider"></div></div><input class="fv-wipe" type="range" min="0" max="100" value="50" '
        f'aria-label="how much of the left map is shown"><div class="fv-sides">{below}</div>{colour_bar(top)}</div>'
    )


def share(catalogue: RunCatalogue, image: ChosenImage, question: str, left: str, right: str) -> str:
    """The bar that shares the view."""
    link = {"example": image.mark, "question": question, "left": left, "right": right}
    run = str(catalogue.first_run(TASK, image.domain))
    runs = {f"{name}: {OWN_ATTENTION}": catalogue.code_name(name) for name in catalogue.runs(TASK)}
    shown, softmax = {side: runs.get(side) for side in (left, right)}, catalogue.attends_by_softmax(run)
    code = compare_code(image, question, catalogue.code_name(run), shown, softmax=softmax)
    return share_html(link, code, note=IMAGE_NOTE if image.example is None else "")


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events; the page opens with a finished example."""
    image, offered = choose_example(FIRST), sides(catalogue)
    asked = suggestions_for(image)[0]
    chosen = gr.State(image, time_to_live=3600)
    strip = picker.build_strip(gr, "compare", image.mark)
    with gr.Row(elem_classes="fv-question"):
        question = gr.Textbox(asked, label="Question", elem_id="compare-question", max_lines=3, scale=2)
        left = gr.Dropdown(offered, value=LEFT, label="Left", elem_id="compare-left", scale=1)
        right = gr.Dropdown(offered, value=RIGHT, label="Right", elem_id="compare-right", scale=1)
    view = gr.HTML(
        compare_html(catalogue, image, asked, LEFT, RIGHT), js_on_load=script("wipe"), elem_id="compare-view"
    )
    bar = gr.HTML(share(catalogue, image, asked, LEFT, RIGHT), elem_id="compare-share")
    _connect(gr, catalogue, chosen, strip, (question, left, right), [view, bar])


def _connect(
    gr: Any, catalogue: RunCatalogue, chosen: Any, strip: Any, inputs: tuple[Any, Any, Any], outputs: list[Any]
) -> None:
    """Every event draws both maps anew; the slider moves in the browser alone."""

    def show(image: ChosenImage, text: Any, one: str, other: str) -> tuple[str, str]:
        try:
            return compare_html(catalogue, image, text, one, other), share(catalogue, image, text, one, other)
        except FoveateError as error:
            return widgets.error_html(error), ""

    def on_image(choose: Any, before: ChosenImage, one: str, other: str, content: Any) -> tuple[Any, ...]:
        try:
            image = choose(content)
        except FoveateError as error:
            return before, picker.strip_value(before.mark, error), *[gr.skip()] * 3
        text = suggestions_for(image)[0]
        return image, picker.strip_value(image.mark), text, *show(image, text, one, other)

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        try:
            image = choose_example(fields.get("example", FIRST) if fields.get("example") != picker.OWN else FIRST)
        except FoveateError:
            image = choose_example(FIRST)
        text = fields.get("question") or suggestions_for(image)[0]
        one, other = fields.get("left", LEFT), fields.get("right", RIGHT)
        return image, picker.strip_value(image.mark), text, one, other, *show(image, text, one, other)

    question, left, right = inputs
    private = {"api_visibility": "private"}
    drawn = [chosen, strip, question, *outputs]
    upload = widgets.on_event_with(gr, "address", lambda *a: on_image(lambda x: ChosenImage(read_upload(x)), *a))
    picked = widgets.on_event_with(gr, "pick", lambda *a: on_image(choose_example, *a))
    strip.select(picked, [chosen, left, right], drawn, **private)
    strip.upload(upload, [chosen, left, right], drawn, **private)
    for event in (question.submit, left.input, right.input):
        event(show, [chosen, *inputs], outputs, **private)
    build_restore(gr, "compare", on_restore, [chosen, strip, *inputs, *outputs])
