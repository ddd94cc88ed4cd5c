"""The page Play: no model; paint scores or choose a preset, and see the attention of every mechanism."""

from __future__ import annotations

from typing import Any

import torch

from foveate.apps.studio import widgets
from foveate.apps.studio.attention_maps import PRESETS, SIDE, attend, preset
from foveate.apps.studio.cards import MapChoice, build_cards
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.apps.studio.panels import draw_panels
from foveate.apps.studio.share import build_restore, choice_fields, play_code, read_choice, share_html
from foveate.attention import MECHANISMS
from foveate.errors import FoveateError


def play(painted: Any, contrast: float, choice: MapChoice) -> str:
    """The maps of the mechanisms on the painted scores multiplied by the contrast."""
    if not choice.names:
        return widgets.error_html("Choose at least one mechanism below.")
    scores = float(contrast) * torch.tensor(widgets.read_scores(painted, SIDE))
    return draw_panels(None, attend(scores, (SIDE, SIDE), choice.names, choice.knobs), size="medium")


def share(painted: Any, contrast: float, choice: MapChoice) -> str:
    """The bar that shares the view."""
    scores = widgets.read_scores(painted, SIDE)
    link = {"scores": widgets.pack_scores(scores), "contrast": f"{contrast:g}", **choice_fields(choice)}
    return share_html(link, play_code(scores, SIDE, contrast, choice))


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    first, choice = next(iter(PRESETS)), MapChoice(tuple(MECHANISMS))
    with gr.Row(elem_classes="fv-row"):
        with gr.Column(scale=1, min_width=290):
            painter = widgets.build_painter(gr, "play", preset(first), SIDE)
            gr.HTML('<p class="fv-note">Drag to paint scores; the maps follow.</p>')
            chosen = gr.Dropdown(list(PRESETS), value=first, label="Scores to begin with", elem_id="play-preset")
            contrast = gr.Slider(0, 4, value=1, step=0.05, label="Contrast (multiplies the scores)")
        with gr.Column(scale=3, min_width=320):
            panels = gr.HTML(play(preset(first), 1, choice), elem_id="play-maps")
    bar = gr.HTML(share(preset(first), 1, choice), elem_id="play-share")
    with gr.Accordion("Mechanisms and their options", open=False, elem_id="play-controls"):
        cards = build_cards(gr, "play", choice)

    def on_change(painted: str, factor: float, value: str) -> tuple[str, str]:
        now = MapChoice.from_json(value)
        return play(painted, factor, now), share(painted, factor, now)

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        painted = widgets.unpack_scores(fields.get("scores", ""), SIDE) or preset(first)
        factor = widgets.read_number(fields.get("contrast"), 1.0, 0.0, 4.0)
        now = read_choice(fields, choice.names)
        return painted, factor, now.to_json(), *on_change(painted, factor, now.to_json())

    inputs, outputs = [painter, contrast, cards], [panels, bar]
    quiet = {"show_progress": "hidden", "api_visibility": "private"}
    picked = chosen.input(_preset_or_nothing, chosen, painter, **quiet)
    picked.then(on_change, inputs, outputs, **quiet)
    for event in (painter.change, cards.change, contrast.input):
        event(on_change, inputs, outputs, trigger_mode="always_last", **quiet)
    build_restore(gr, "play", on_restore, [*inputs, *outputs])


def _preset_or_nothing(name: str) -> str:
    try:
        return preset(name)
    except FoveateError:
        return preset("nothing")
