"""The widgets of the pages, built on gradio's HTML component: buttons, a drop area for an image, a painter of scores.

They communicate by events (`select`, `upload`, `change`). No file is stored on the server: an uploaded image is part of
the message of its event, as a data URL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from foveate.studio.attention_maps import KNOBS
from foveate.studio.limits import MAX_FILE
from foveate.studio.panels import data_address

ALL = "all"  # picked instead of the position of a word

CSS = """
.fv-panels { display: flex; flex-wrap: wrap; gap: 12px; }
.fv-panel { margin: 0; width: 176px; } .fv-panel figcaption { font-weight: 600; font-size: 14px; margin-bottom: 3px;
  white-space: nowrap; letter-spacing: -.01em; }
.fv-panel small, .fv-note { color: var(--body-text-color); opacity: .72; }
@media (max-width: 520px) { .fv-panel { width: calc(50% - 6px); } .fv-panel figcaption { overflow: hidden;
  text-overflow: ellipsis; } }
.fv-stack { position: relative; width: 100%; background: #fff; border: 1px solid var(--border-color-primary);
  border-radius: 4px; overflow: hidden; }
.fv-stack > img, .fv-stack > svg { position: absolute; inset: 0; width: 100%; height: 100%; margin: 0; }
.fv-stack ellipse, .fv-stack path { fill: none; stroke: #10131a; vector-effect: non-scaling-stroke; }
.fv-line { stroke-width: 1.2px; } .fv-edge { stroke-width: 2.6px; }
.fv-stack .fv-part { stroke: #0072b2; stroke-width: 2px; stroke-dasharray: 6 3; }
.fv-note { font-size: 14px; margin: 6px 0 0; }
.fv-error { border-left: 4px solid #d55e00; padding: 8px 12px; background: var(--background-fill-secondary); }
.fv-bars { max-width: 480px; } .fv-bar { display: grid; grid-template-columns: 8em 1fr 4em; gap: 8px;
  align-items: center; margin: 3px 0; }
.fv-bar i { display: block; height: 14px; background: #0072b2; border-radius: 3px; min-width: 1px; }
.fv-bar b { overflow-wrap: anywhere; } .fv-answer { font-size: 22px; margin: 0 0 6px; }
.fv-words span { padding: 2px 4px; margin: 0 2px; border-radius: 3px; color: #10131a; display: inline-block; }
.fv-thumbs { display: flex; flex-wrap: wrap; gap: 8px; }
.fv-thumbs button, .fv-chips button { cursor: pointer; border: 2px solid var(--border-color-primary);
  background: var(--background-fill-secondary); border-radius: 6px; padding: 2px; margin: 0 !important; }
.fv-thumbs img { width: 72px; height: 72px; display: block; margin: 0; }
.fv-thumbs button:hover, .fv-chips button:hover, .fv-thumbs button:focus-visible { border-color: #0072b2; }
.fv-chips { display: flex; flex-wrap: wrap; gap: 6px; } .fv-chips button { padding: 4px 10px; font-size: 14px; }
.fv-chosen img { max-width: 100%; max-height: 260px; display: block; margin: 0; image-rendering: auto; }
.fv-drop { display: block; border: 2px dashed var(--border-color-primary); border-radius: 6px; padding: 10px;
  font-size: 14px; }
.fv-drop input { display: block; margin-top: 4px; max-width: 100%; }
.fv-report { width: 100%; height: 80vh; border: 1px solid var(--border-color-primary); background: Canvas; }
.fv-paint canvas { width: 280px; height: 280px; touch-action: none; cursor: crosshair; border-radius: 4px;
  border: 1px solid var(--border-color-primary); }
"""

# One listener on the component itself, because its content may be replaced.
PICK = """
element.addEventListener('click', event => {
  const picked = event.target.closest('[data-pick]');
  if (picked) trigger('select', { pick: picked.dataset.pick });
});
"""
DROP = """
const send = file => {
  if (!file) return;
  if (file.size > MAX_FILE) { trigger('upload', { address: 'too large', size: file.size }); return; }
  const reader = new FileReader();
  reader.onload = () => trigger('upload', { address: reader.result, size: file.size });
  reader.readAsDataURL(file);
};
element.addEventListener('change', event => {
  event.stopPropagation();
  if (event.target.type === 'file') { send(event.target.files[0]); event.target.value = ''; }
});
element.addEventListener('dragover', event => event.preventDefault());
element.addEventListener('drop', event => { event.preventDefault(); send(event.dataTransfer.files[0]); });
""".replace("MAX_FILE", str(MAX_FILE))
PAINT = """
const SIDE = __SIDE__;
const read = () => { try { return JSON.parse(props.value); } catch { return new Array(SIDE * SIDE).fill(0); } };
let scores = read(), painting = false;
const canvas = () => element.querySelector('canvas');
const draw = () => {
  const context = canvas().getContext('2d'), cell = canvas().width / SIDE;
  const high = Math.max(3, ...scores.map(Math.abs));
  scores.forEach((score, n) => {
    const share = score / high, light = 97 - 62 * Math.abs(share), hue = share < 0 ? 205 : 25;
    context.fillStyle = `hsl(${hue} ${score ? 75 : 0}% ${light}%)`;
    context.fillRect((n % SIDE) * cell, Math.floor(n / SIDE) * cell, cell, cell);
  });
};
const brush = event => {
  const box = canvas().getBoundingClientRect(), down = event.shiftKey || event.buttons === 2 ? -1 : 1;
  const x = (event.clientX - box.left) / box.width * SIDE - 0.5;
  const y = (event.clientY - box.top) / box.height * SIDE - 0.5;
  scores = scores.map((score, n) => {
    const far = ((n % SIDE) - x) ** 2 + (Math.floor(n / SIDE) - y) ** 2;
    const added = far < 9 ? down * 0.7 * Math.exp(-far / 2) : 0;
    return Math.round(100 * Math.min(9, Math.max(-9, score + added))) / 100;
  });
  draw();
};
const done = () => { if (painting) { painting = false; props.value = JSON.stringify(scores); trigger('change'); } };
element.addEventListener('pointerdown', event => { if (event.target === canvas()) { painting = true; brush(event); } });
element.addEventListener('pointermove', event => { if (painting && event.target === canvas()) brush(event); });
element.addEventListener('pointerup', done);
element.addEventListener('pointerleave', done);
element.addEventListener('contextmenu', event => event.preventDefault());
watch('value', () => { scores = read(); draw(); });
draw();
"""


def pick_buttons(buttons: Iterable[tuple[str, str]], kind: str) -> str:
    """Buttons, from pairs of the value that is picked and the HTML inside.

    >>> pick_buttons([("a&b", "one")], "fv-chips")
    '<div class="fv-chips"><button type="button" data-pick="a&amp;b">one</button></div>'
    """
    inside = "".join(f'<button type="button" data-pick="{escape(pick)}">{html}</button>' for pick, html in buttons)
    return f'<div class="{kind}">{inside}</div>'


def thumbnails(images: Sequence[np.ndarray]) -> str:
    """Small images as buttons; the number of the image is picked."""
    faces = [f'<img alt="example {n + 1}" src="{data_address(pixels)}">' for n, pixels in enumerate(images)]
    return pick_buttons([(str(n), face) for n, face in enumerate(faces)], "fv-thumbs")


def chips(texts: Iterable[str]) -> str:
    """Texts as buttons."""
    return pick_buttons([(text, escape(text)) for text in texts], "fv-chips")


def word_buttons(words: Sequence[str]) -> str:
    """The words of a text as buttons, after one for all of them; see `picked_number`.

    >>> word_buttons(["red"]).count("<button")
    2
    """
    return pick_buttons([(ALL, "all words"), *((str(t), escape(word)) for t, word in enumerate(words))], "fv-chips")


def picked_number(pick: Any, count: int) -> int | None:
    """The number from 0 to `count` - 1 that was picked; None for ALL, and for anything else that a page may be sent.

    >>> picked_number("1", 2), picked_number("2", 2), picked_number(ALL, 2)
    (1, None, None)
    """
    is_number = isinstance(pick, str) and pick.isdecimal() and len(pick) < 9  # int() refuses thousands of digits
    return int(pick) if is_number and int(pick) < count else None


def chosen_image(pixels: np.ndarray) -> str:
    """The chosen image."""
    return f'<div class="fv-chosen"><img alt="the chosen image" src="{data_address(pixels)}"></div>'


def error_html(error: Exception | str) -> str:
    """An error message for the visitor.

    >>> error_html("a < b")
    '<p class="fv-error" role="alert">a &lt; b</p>'
    """
    return f'<p class="fv-error" role="alert">{escape(str(error))}</p>'


def drop_html() -> str:
    """A drop area for an image."""
    return (
        f'<label class="fv-drop">or upload an image (at most {MAX_FILE / 1e6:.0f} MB): '
        '<input type="file" accept="image/*" aria-label="image"></label>'
    )


def paint_js(side: int) -> str:
    """A painter of scores on a grid of side x side cells; its value is the list of scores as JSON."""
    return PAINT.replace("__SIDE__", str(side))


def read_scores(text: Any, side: int) -> list[float]:
    """The scores of the painter, clamped to [-9, 9]; zeros if it sent anything else than a list of finite numbers.

    >>> read_scores("[1, 2, 3, 4]", 2), read_scores("nonsense", 1)
    ([1.0, 2.0, 3.0, 4.0], [0.0])
    """
    try:
        scores = [float(score) for score in json.loads(text)]
    except (TypeError, ValueError, OverflowError, RecursionError):
        scores = []
    known = len(scores) == side * side and all(map(math.isfinite, scores))
    return [min(9.0, max(-9.0, score)) for score in scores] if known else [0.0] * (side * side)


def on_event(gr: Any, field: str, work: Callable[[Any], Any]) -> Callable[..., Any]:
    """A listener without inputs that calls `work` with one field of the event."""

    def listener(event: Any) -> Any:
        return work(getattr(event, field, None))

    return _annotated(gr, listener)


def on_event_with(gr: Any, field: str, work: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A listener with one input that calls `work` with the input and one field of the event."""

    def listener(value: Any, event: Any) -> Any:
        return work(value, getattr(event, field, None))

    return _annotated(gr, listener)


def _annotated(gr: Any, listener: Callable[..., Any]) -> Callable[..., Any]:
    """Annotate the event of a listener: gradio passes it by its annotation, and cannot resolve one that is a string."""
    listener.__annotations__ = {"event": gr.EventData}
    return listener


def knob_sliders(gr: Any) -> list[Any]:
    """One slider per knob, in the order of KNOBS."""
    return [gr.Slider(k.low, k.high, value=k.value, step=k.step, label=k.label) for k in KNOBS.values()]


def knob_values(values: Sequence[float]) -> Mapping[str, float]:
    """The values of the sliders, by name."""
    return dict(zip(KNOBS, values, strict=True))
