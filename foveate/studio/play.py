"""The page Play: no model; paint or pick scores and see what every mechanism makes of them."""

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
from foveate.studio.looks import KNOBS, attend
from foveate.studio.panels import draw_panels
from foveate.studio.shelf import Shelf

SIDE = 14


def _bump(x: float, y: float, width: float) -> Tensor:
    """A thing at (x, y): high and flat inside its width, then falling."""
    away = (cell_centres(SIDE, SIDE) - torch.tensor([x, y])).norm(dim=-1)
    return torch.exp(-((away / width) ** 4) / 2)


def _ring() -> Tensor:
    away = (cell_centres(SIDE, SIDE) - 0.5).norm(dim=-1)
    return torch.exp(-((away - 0.3) ** 2) / (2 * 0.05**2))


def _noise() -> Tensor:
    return 0.5 * torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))


PRESETS: Mapping[str, Callable[[], Tensor]] = {
    "two things": lambda: 5 * (_bump(0.25, 0.3, 0.12) + _bump(0.75, 0.7, 0.15)),
    "one thing": lambda: 5 * _bump(0.6, 0.4, 0.2),
    "three things and noise": lambda: (
        5 * (_bump(0.2, 0.2, 0.12) + _bump(0.8, 0.3, 0.12) + _bump(0.45, 0.8, 0.12)) + _noise()
    ),
    "ring": lambda: 4 * _ring(),
    "noise": lambda: 2 * _noise(),
    "nothing": lambda: torch.zeros(SIDE * SIDE),
}


def preset(name: str) -> str:
    """The scores of a name, as the painter takes them.

    >>> preset("nothing")[:6]
    '[0.0, '
    """
    scores = lookup("preset", name, PRESETS)()
    return json.dumps([round(score, 2) for score in scores.tolist()])


def play(painted: Any, contrast: float, names: Sequence[str], knobs: Sequence[float]) -> str:
    """The maps of the mechanisms on painted scores, times the contrast."""
    if not names:
        return widgets.trouble("choose at least one mechanism")
    scores = float(contrast) * torch.tensor(widgets.read_scores(painted, SIDE))
    looks = attend(scores, (SIDE, SIDE), names, widgets.knob_values(knobs))
    return draw_panels(
        None, looks, note="Ellipses hold 50 and 95 % of a component's mass; beyond a thick line: nothing."
    )


def build(gr: Any, shelf: Shelf) -> None:
    """Lay the page out and wire it up."""
    first = next(iter(PRESETS))
    every = list(MECHANISMS)
    usual = [knob.value for knob in KNOBS.values()]
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            gr.HTML('<p class="fv-note">Paint scores: drag to raise them, with shift or the right button to lower.</p>')
            canvas = '<div class="fv-paint"><canvas width="280" height="280" aria-label="scores"></canvas></div>'
            painter = gr.HTML(
                preset(first), html_template=canvas, js_on_load=widgets.paint_js(SIDE), elem_id="play-paint"
            )
            chosen = gr.Dropdown(list(PRESETS), value=first, label="or pick scores")
            contrast = gr.Slider(0, 4, value=1, step=0.05, label="contrast: the scores times")
            knobs = widgets.knob_sliders(gr)
        with gr.Column(scale=3, min_width=320):
            names = gr.CheckboxGroup(every, value=every, label="mechanisms")
            panels = gr.HTML(play(preset(first), 1, every, usual), elem_id="play-maps")

    def on_change(painted: str, times: float, which: list[str], *values: float) -> str:
        return play(painted, times, which, values)

    inputs = [painter, contrast, names, *knobs]
    quiet = {"show_progress": "hidden", "trigger_mode": "always_last", "api_visibility": "private"}
    picked = chosen.change(preset, chosen, painter, show_progress="hidden", api_visibility="private")
    picked.then(on_change, inputs, panels, show_progress="hidden", api_visibility="private")
    painter.change(on_change, inputs, panels, **quiet)
    names.change(on_change, inputs, panels, **quiet)
    for slider in (contrast, *knobs):
        slider.input(on_change, inputs, panels, **quiet)
