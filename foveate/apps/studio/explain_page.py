"""The page Explain: from softmax to multimodal attention in ten minutes, by moving things; painted scores drive it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

import torch
from torch import Tensor

from foveate.apps.studio import widgets
from foveate.apps.studio.attention_maps import PRESETS, SIDE, preset
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.apps.studio.lessons import LESSONS, Lesson, draw_together
from foveate.apps.studio.share import build_restore, explain_code, share_html
from foveate.errors import FoveateError

FIRST = "two stars"


def read_knobs(name: str, text: Any) -> dict[str, float]:
    """The values of the sliders of a part, clamped; the initial ones for anything that is no number.

    >>> read_knobs("threshold", '{"alpha": 9}')
    {'alpha': 2.0}
    """
    try:
        sent = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        sent = {}
    return {key: knob.clamp(sent.get(key)) for key, knob in LESSONS[name].knobs.items()}


def lesson_html(name: str, painted: Any, text: Any) -> str:
    """A part of the page for the painted scores, with its task, done or not."""
    lesson = LESSONS[name]
    drawn, is_done = lesson.draw(_scores(painted), read_knobs(name, text))
    sign, word = ("✓", "Done") if is_done else ("○", "Task")
    done = str(is_done).lower()
    task = f'<p class="fv-task" data-done="{done}" role="status"><b>{sign} {word}.</b> {escape(lesson.task)}</p>'
    return drawn + task


def together_html(painted: Any, texts: Mapping[str, Any]) -> str:
    """All mechanisms with the options of the parts."""
    return draw_together(_scores(painted), {name: read_knobs(name, text) for name, text in texts.items()})


def sliders_html(lesson: Lesson) -> str:
    """The sliders of a part."""
    rows = "".join(
        f'<label class="fv-knob"><span>{escape(knob.label)}<output>{knob.value:g}</output></span>'
        f'<input type="range" data-knob="{key}" min="{knob.low}" max="{knob.high}" step="{knob.step}" '
        f'value="{knob.value}"><p>{escape(knob.about)}</p></label>'
        for key, knob in lesson.knobs.items()
    )
    return f'<div class="fv-sliders">{rows}</div>'


def share(painted: Any, values: Mapping[str, str]) -> str:
    """The bar that shares the view."""
    scores = widgets.read_scores(painted, SIDE)
    fields = {f"{name}.{key}": f"{v:g}" for name, text in values.items() for key, v in read_knobs(name, text).items()}
    code = explain_code(scores, SIDE, {name: read_knobs(name, text) for name, text in values.items()})
    return share_html({"scores": widgets.pack_scores(scores), **fields}, code)


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    start = preset(FIRST)
    initial = {name: json.dumps({key: knob.value for key, knob in one.knobs.items()}) for name, one in LESSONS.items()}
    with gr.Row(elem_classes="fv-row"):
        with gr.Column(scale=1, min_width=290, elem_classes="fv-sticky"):
            gr.HTML('<p class="fv-label">Scores: paint your own, everything follows</p>')
            painter = widgets.build_painter(gr, "explain", start, SIDE)
            presets = gr.HTML(widgets.chips(PRESETS, FIRST), js_on_load=widgets.PICK, elem_id="explain-presets")
        with gr.Column(scale=3, min_width=320):
            knobs, outputs = {}, {}
            for name, lesson in LESSONS.items():
                gr.HTML(f'<h2 id="explain-{name}">{escape(lesson.title)}</h2><p class="fv-lead">{lesson.text}</p>')
                knobs[name] = gr.HTML(
                    initial[name],
                    html_template=sliders_html(lesson),
                    js_on_load=widgets.SLIDERS,
                    elem_id=f"explain-{name}-knobs",
                )
                outputs[name] = gr.HTML(lesson_html(name, start, initial[name]), elem_id=f"explain-{name}-view")
            gr.HTML(
                '<h2>All together</h2><p class="fv-lead">The same scores through every mechanism, with your '
                "options.</p>"
            )
            together = gr.HTML(together_html(start, initial), elem_id="explain-together")
    bar = gr.HTML(share(start, initial), elem_id="explain-share")
    _connect(gr, painter, presets, knobs, [*outputs.values(), together, bar])


def _connect(gr: Any, painter: Any, presets: Any, knobs: Mapping[str, Any], outputs: list[Any]) -> None:
    """Painting redraws everything; a slider its own part and what all parts share."""

    def everything(painted: str, *texts: str) -> list[str]:
        values = dict(zip(LESSONS, texts, strict=True))
        parts = [lesson_html(name, painted, text) for name, text in values.items()]
        return [*parts, together_html(painted, values), share(painted, values)]

    def on_preset(*texts_and_pick: Any) -> tuple[Any, ...]:
        *texts, pick = texts_and_pick
        try:
            painted = preset(pick)
        except FoveateError:
            painted, pick = preset(FIRST), FIRST
        return painted, widgets.chips(PRESETS, pick), *everything(painted, *texts)

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        painted = widgets.unpack_scores(fields.get("scores", ""), SIDE) or preset(FIRST)
        texts = [json.dumps(_link_knobs(name, fields)) for name in LESSONS]
        return painted, *texts, *everything(painted, *texts)

    quiet = {"show_progress": "hidden", "api_visibility": "private", "trigger_mode": "always_last"}
    sliders = list(knobs.values())
    painter.change(everything, [painter, *sliders], outputs, **quiet)
    presets.select(widgets.on_event_with(gr, "pick", on_preset), sliders, [painter, presets, *outputs], **quiet)
    for place, name in enumerate(LESSONS):

        def on_turn(painted: str, *texts: str, name: str = name, place: int = place) -> tuple[str, str, str]:
            values = dict(zip(LESSONS, texts, strict=True))
            return lesson_html(name, painted, texts[place]), together_html(painted, values), share(painted, values)

        knobs[name].change(on_turn, [painter, *sliders], [outputs[place], *outputs[-2:]], **quiet)
    build_restore(gr, "explain", on_restore, [painter, *sliders, *outputs])


def _link_knobs(name: str, fields: Mapping[str, str]) -> dict[str, float]:
    return {
        key: widgets.read_number(fields.get(f"{name}.{key}"), knob.value, knob.low, knob.high)
        for key, knob in LESSONS[name].knobs.items()
    }


def _scores(painted: Any) -> Tensor:
    return torch.tensor(widgets.read_scores(painted, SIDE))
