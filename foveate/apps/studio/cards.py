"""A card per mechanism: one sentence, a tiny image, its options and what they do, its documentation; a card turns a
mechanism on and off."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from html import escape
from typing import Any

import foveate.attention
import foveate.ops
from foveate.apps.studio.attention_maps import KNOBS, SIDE, Knob, attend, preset_scores
from foveate.apps.studio.panels import data_address
from foveate.apps.studio.widgets import script
from foveate.attention import MECHANISMS
from foveate.plot.canvas import heat_colours, heat_scale
from foveate.plot.heat import heat
from foveate.plot.layers import smooth

TINY = 64  # pixels of the small images

# What to say beyond the one line of the table; a mechanism without a row here shows that line.
SENTENCES: Mapping[str, str] = {
    "softmax": "Every location gets some attention, however low its score.",
    "sparsemax": "Locations whose score is below a threshold get exactly nothing.",
    "entmax": "Between the two: alpha 1 is softmax, alpha 2 is sparsemax.",
    "fusedmax": "Sparse, and neighbours along a line share one weight.",
    "tvmax": "Sparse, and neighbours on the image share one weight: whole objects light up in patches.",
    "gfusedmax": "Sparse, and neighbours on any graph share one weight.",
    "continuous-softmax": "One Gaussian over the image, with the mean and the spread of the scores.",
    "continuous-sparsemax": "One ellipse over the image, and nothing outside of it.",
    "continuous-entmax": "Between the Gaussian and the ellipse, by alpha.",
    "multimodal": "As many Gaussians as the scores call for, and a background for the rest.",
    "k-mca": "A mixture of exactly K Gaussians.",
    "multimodal-sparse": "A mixture whose superfluous components vanish by themselves.",
}
SECTIONS = {"softmax": 1, "sparsemax": 1, "entmax": 1, "fusedmax": 2, "tvmax": 2, "gfusedmax": 2}
CONTINUOUS_SECTIONS = {"multimodal": 4, "k-mca": 4, "multimodal-sparse": 4}


@dataclass(frozen=True)
class MapChoice:
    """The mechanisms that are shown, and the values of their options.

    Attributes:
        names: of mechanisms, in the order in which they were chosen.
        knobs: values by name, as in KNOBS.
    """

    names: tuple[str, ...]
    knobs: Mapping[str, float] = field(default_factory=lambda: {name: knob.value for name, knob in KNOBS.items()})

    def to_json(self) -> str:
        """The value of the cards."""
        return json.dumps({"names": list(self.names), "knobs": dict(self.knobs)})

    @classmethod
    def from_json(cls, text: Any) -> MapChoice:
        """The choice that the cards sent; what is unknown is left out, numbers are clamped to their range.

        >>> MapChoice.from_json('{"names": ["tvmax", "nonsense"], "knobs": {"alpha": 99}}').names
        ('tvmax',)
        >>> MapChoice.from_json('{"names": [], "knobs": {"alpha": 99}}').knobs["alpha"]
        2.0
        """
        try:
            sent = json.loads(text)
            names, knobs = list(sent["names"]), dict(sent["knobs"])
        except (TypeError, ValueError, LookupError, RecursionError):
            names, knobs = [], {}
        known = dict.fromkeys(name for name in names if isinstance(name, str) and name in MECHANISMS)
        return cls(tuple(known), {name: knob.clamp(knobs.get(name)) for name, knob in KNOBS.items()})


def build_cards(gr: Any, page: str, choice: MapChoice) -> Any:
    """Add the cards; the component sends `change`, and its value is read by `MapChoice.from_json`."""
    return gr.HTML(
        choice.to_json(),
        html_template=cards_html(MECHANISMS),
        js_on_load=script("cards", sliders=script("sliders")),
        elem_id=f"{page}-cards",
    )


def cards_html(names: Iterable[str]) -> str:
    """The cards of some mechanisms."""
    return f'<div class="fv-cards">{"".join(_card(name) for name in names)}</div>'


@lru_cache(maxsize=1)
def tiny_images() -> Mapping[str, str]:
    """Every mechanism on the same scores, two objects, as a small image in a data URL."""
    attended = attend(preset_scores("two objects"), (SIDE, SIDE), MECHANISMS, {})
    drawn = {}
    for name, one in attended.items():
        values = heat(one, cells=False)
        fine = (smooth(values) if one.density is None else values).numpy()
        step = max(1, len(fine) // TINY)
        colours = heat_colours()(heat_scale(float(values.max()))(fine[::step, ::step]), bytes=True)
        drawn[name] = data_address(colours)
    return drawn


def documentation(name: str) -> str:
    """The documentation of a mechanism: of its transform, or of the fit behind its density.

    >>> documentation("tvmax").splitlines()[0]
    'Sparse weights in patches of a grid, from scores (..., H, W): the last two axes are rows and columns.'
    """
    if name in foveate.ops.TRANSFORMS:
        return inspect.getdoc(getattr(foveate.ops, name)) or ""
    fit = getattr(foveate.attention.mechanism(name), "fit", None)
    return inspect.getdoc(type(fit)) or ""


def _card(name: str) -> str:
    row = MECHANISMS[name]
    section = SECTIONS.get(name, 0) or CONTINUOUS_SECTIONS.get(name, 3)
    knobs = "".join(_slider(key, knob) for key, knob in KNOBS.items() if name in knob.options)
    return (
        f'<section class="fv-card" data-name="{escape(name)}"><label class="fv-card-head">'
        f'<img alt="" src="{tiny_images()[name]}"><span><b><input type="checkbox">{escape(name)}</b>'
        f"<p>{escape(SENTENCES.get(name, row.summary))}</p></span></label>{knobs}"
        f'<details><summary>Documentation<span class="fv-hidden"> of {escape(name)}</span></summary>'
        f'<p><a href="#explain" data-section="{section}">See it move on the page Explain, part {section}</a></p>'
        f'<p>{escape(row.reference)}</p><pre tabindex="0">{_template_safe(documentation(name))}</pre>'
        "</details></section>"
    )


def _slider(key: str, knob: Knob) -> str:
    return (
        f'<label class="fv-knob"><span>{escape(knob.label)}<output>{knob.value:g}</output></span>'
        f'<input type="range" data-knob="{key}" min="{knob.low}" max="{knob.high}" step="{knob.step}" '
        f'value="{knob.value}"><p>{escape(knob.about)}</p></label>'
    )


def _template_safe(text: str) -> str:
    """Escaped text without the signs that gradio's templates replace."""
    return escape(text).replace("$", "&#36;").replace("{", "&#123;").replace("`", "&#96;").replace("\\", "&#92;")
