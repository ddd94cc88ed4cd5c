"""The page Play: no model; paint scores or choose a preset, and see the attention of every mechanism."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from foveate.attention import MECHANISMS
from foveate.ops.grid import cell_centres
from foveate.registry import lookup
from foveate.studio import widgets
from foveate.studio.attention_maps import KNOBS, attend
from foveate.studio.catalogue import RunCatalogue
from foveate.studio.panels import ELLIPSES_NOTE, draw_panels

SIDE = 14


def _bump(x: float, y: float, width: float) -> Tensor:
    """Scores of an object at (x, y): flat inside its width, falling outside."""
    away = (cell_centres(SIDE, SIDE) - torch.tensor([x, y])).norm(dim=-1)
    return torch.exp(-((away / width) ** 4) / 2)


def _ring() -> Tensor:
    away = (cell_centres(SIDE, SIDE) - 0.5).norm(dim=-1)
    return torch.exp(-((away - 0.3) ** 2) / (2 * 0.05**2))


def _noise() -> Tensor:
    return 0.5 * torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))


PRESETS: Mapping[str, Callable[[], Tensor]] = {
    "two objects": lambda: 5 * (_bump(0.25, 0.3, 0.12) + _bump(0.75, 0.7, 0.15)),
    "one object": lambda: 5 * _bump(0.6, 0.4, 0.2),
    "three objects and noise": lambda: (
        5 * (_bump(0.2, 0.2, 0.12) + _bump(0.8, 0.3, 0.12) + _bump(0.45, 0.8, 0.12)) + _noise()
    ),
    "ring": lambda: 4 * _ring(),
    "noise": lambda: 2 * _noise(),
    "nothing": lambda: torch.zeros(SIDE * SIDE),
}


def preset(name: str) -> str:
    """The scores of a preset, as JSON for the painter.

    >>> preset("nothing")[:6]
    '[0.0, '
    """
    scores = lookup("preset", name, PRESETS)()
    return json.dumps([round(score, 2) for score in scores.tolist()])


def play(painted: Any, contrast: float, names: Sequence[str], knobs: Sequence[float]) -> str:
    """The maps of the mechanisms on the painted scores multiplied by the contrast."""
    if not names:
        return widgets.error_html("choose at least one mechanism")
    scores = float(contrast) * torch.tensor(widgets.read_scores(painted, SIDE))
    attended = attend(scores, (SIDE, SIDE), names, widgets.knob_values(knobs))
    return draw_panels(None, attended, note=ELLIPSES_NOTE)


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    first = next(iter(PRESETS))
    every = list(MECHANISMS)
    defaults = [knob.value for knob in KNOBS.values()]
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            gr.HTML(
                '<p class="fv-note">Paint scores: drag to raise them; hold Shift or use the right button to lower '
                "them.</p>"
            )
            canvas = '<div class="fv-paint"><canvas width="280" height="280" aria-label="scores"></canvas></div>'
            painter = gr.HTML(
                preset(first), html_template=canvas, js_on_load=widgets.paint_js(SIDE), elem_id="play-paint"
            )
            chosen = gr.Dropdown(list(PRESETS), value=first, label="preset scores")
            contrast = gr.Slider(0, 4, value=1, step=0.05, label="contrast (multiplies the scores)")
            knobs = widgets.knob_sliders(gr)
        with gr.Column(scale=3, min_width=320):
            names = gr.CheckboxGroup(every, value=every, label="mechanisms")
            panels = gr.HTML(play(preset(first), 1, every, defaults), elem_id="play-maps")

    def on_change(painted: str, factor: float, which: list[str], *values: float) -> str:
        return play(painted, factor, which, values)

    inputs = [painter, contrast, names, *knobs]
    quiet = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
    picked = chosen.change(preset, chosen, painter, show_progress="hidden", api_visibility="private")
    picked.then(on_change, inputs, panels, show_progress="hidden", api_visibility="private")
    painter.change(on_change, inputs, panels, **quiet)
    names.change(on_change, inputs, panels, **quiet)
    for slider in (contrast, *knobs):
        slider.input(on_change, inputs, panels, **quiet)
