"""The widgets of the pages, built on gradio's HTML component: buttons, the chosen image, a painter of scores.

They communicate by events (`select`, `upload`, `change`). No file is stored on the server: an uploaded image is part of
the message of its event, as a data URL.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from foveate.apps.report.page import html_figure
from foveate.apps.studio.panels import data_address
from foveate.errors import FoveateError
from foveate.watch import Look
from foveate.watch.faithful import faithfulness

STATIC = Path(__file__).parent / "static"
BELIEVE = (
    "Parts of the image are blurred, what the map shows first, and masked from attention; each time the score of what "
    "the model said is measured. This takes some seconds."
)


@lru_cache(maxsize=32)
def read_asset(name: str) -> str:
    """The text of a file of the page.

    >>> read_asset("studio.css").startswith("/* The studio")
    True
    """
    return (STATIC / name).read_text(encoding="utf-8")


def script(name: str, **parts: object) -> str:
    """A script with its parts filled in: `__SIDE__` stands for the part `side`.

    >>> "const SIDE = 14;" in script("paint", side=14)
    True
    """
    text = read_asset(f"{name}.js")
    for part, value in parts.items():
        text = text.replace(f"__{part.upper()}__", str(value))
    return text


PICK = script("pick")
SLIDERS = script("knobs", sliders=script("sliders"))
THUMB = 136  # pixels: twice what is shown, for fine screens
ALL = "all"  # picked instead of the position of a word


def pick_buttons(buttons: Iterable[tuple[str, str]], kind: str, chosen: str | None = None, before: str = "") -> str:
    """Buttons, from pairs of the value that is picked and the HTML inside; `before` is HTML in front of them.

    >>> pick_buttons([("a&b", "one")], "fv-chips")
    '<div class="fv-chips"><button type="button" data-pick="a&amp;b" aria-pressed="false">one</button></div>'
    """
    inside = "".join(
        f'<button type="button" data-pick="{escape(pick)}" aria-pressed="{str(pick == chosen).lower()}">{html}</button>'
        for pick, html in buttons
    )
    return f'<div class="{kind}">{before}{inside}</div>'


def thumbnails(images: Sequence[np.ndarray], before: str = "") -> str:
    """Small images as buttons; the number of the image is picked."""
    faces = [f'<img alt="example {n + 1}" src="{data_address(_thumb(pixels))}">' for n, pixels in enumerate(images)]
    return pick_buttons([(str(n), face) for n, face in enumerate(faces)], "fv-thumbs", before=before)


def chips(texts: Iterable[str], chosen: str | None = None) -> str:
    """Texts as buttons."""
    return pick_buttons([(text, escape(text)) for text in texts], "fv-chips", chosen)


def word_buttons(words: Sequence[str], chosen: str = ALL) -> str:
    """The words of a text as buttons, after one for all of them; see `picked_number`.

    >>> word_buttons(["red"]).count("<button")
    2
    """
    each = [(str(t), escape(word)) for t, word in enumerate(words)]
    return pick_buttons([(ALL, "all words"), *each], "fv-chips", chosen)


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


def build_painter(gr: Any, page: str, value: str, side: int) -> Any:
    """Add a painter of scores on side x side cells; its value is the list of scores as JSON."""
    modes = pick_modes((("raise", "Raise"), ("lower", "Lower"), ("clear", "Clear")))
    canvas = (
        '<div class="fv-paint"><canvas width="336" height="336" tabindex="0" role="application" aria-label="scores to '
        f'paint: arrow keys move, space raises, shift and space lower"></canvas>{modes}</div>'
    )
    return gr.HTML(value, html_template=canvas, js_on_load=script("paint", side=side), elem_id=f"{page}-paint")


def pick_modes(modes: Iterable[tuple[str, str]]) -> str:
    """Buttons for what a brush does; the first is chosen."""
    inside = "".join(
        f'<button type="button" class="fv-button" data-mode="{mode}" aria-pressed="{str(n == 0).lower()}">'
        f"{label}</button>"
        for n, (mode, label) in enumerate(modes)
    )
    return f'<div class="fv-chips">{inside}</div>'


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


def on_event_with(gr: Any, field: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """A listener that calls `work` with its inputs and one field of the event."""

    def listener(event: Any, *values: Any) -> Any:
        return work(*values, getattr(event, field, None))

    return _annotated(gr, listener)


def _annotated(gr: Any, listener: Callable[..., Any]) -> Callable[..., Any]:
    """Annotate the event of a listener: gradio passes it by its annotation, and cannot resolve one that is a string."""
    listener.__annotations__ = {"event": gr.EventData}
    return listener


def read_number(text: Any, default: float, low: float, high: float) -> float:
    """A number within bounds; the default for anything else.

    >>> read_number("7", 1.0, 0.0, 4.0), read_number("nan", 1.0, 0.0, 4.0)
    (4.0, 1.0)
    """
    try:
        value = float(text)
    except (TypeError, ValueError):
        return default
    return min(high, max(low, value)) if math.isfinite(value) else default


def pack_scores(scores: Sequence[float]) -> str:
    """Scores in a link: hundredths, separated by dots; runs of zeros are left empty.

    >>> pack_scores([0.0, 1.5, -0.25])
    '.150.-25'
    """
    return ".".join("" if score == 0 else str(round(100 * score)) for score in scores)


def unpack_scores(text: str, side: int) -> str | None:
    """The scores of a link as JSON for the painter, None if there are none.

    >>> unpack_scores(".150.-25.", 2)
    '[0.0, 1.5, -0.25, 0.0]'
    """
    try:
        scores = [int(part or 0) / 100 for part in text.split(".")]
    except ValueError:
        return None
    return json.dumps(read_scores(json.dumps(scores), side)) if len(scores) == side * side else None


def _thumb(pixels: np.ndarray) -> np.ndarray:
    """The middle of an image as a small square."""
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.fit(Image.fromarray(pixels), (THUMB, THUMB)))


def build_believe(gr: Any, page: str, view: Any, look_of: Callable[[Any], tuple[Look, Any] | None]) -> None:
    """A button that measures whether the model uses what its map shows, as one sentence and one curve.

    Args:
        gr: gradio.
        page: its name, for the ids of the components.
        view: the state of the page.
        look_of: from a view to a look and the boxes of the true region, or None where nothing was asked yet.
    """
    with gr.Accordion("Should I believe this map?", open=False, elem_id=f"{page}-believe"):
        gr.HTML(f'<p class="fv-note">{BELIEVE}</p>')
        button = gr.Button("Measure", elem_id=f"{page}-measure", min_width=90)
        shown = gr.HTML(elem_id=f"{page}-faithful")

    def on_measure(seen: Any) -> str:
        try:
            asked = look_of(seen)
            return "" if asked is None else believe_html(*asked)
        except FoveateError as error:
            return error_html(error)

    button.click(on_measure, [view], [shown], api_visibility="private")
    # What was measured belongs to one view.
    view.change(lambda: "", None, [shown], api_visibility="private", show_progress="hidden")


def believe_html(seen: Look, truth: Sequence[Sequence[float]] = ()) -> str:
    """What it costs to remove what a map shows: a sentence and a curve."""
    found = faithfulness(seen, truth=truth or None, steps=5, draws=2, batch_size=16, show=False)
    sentence = found.sentence()
    return (
        f'<p class="fv-answer">{escape(sentence)}</p><div class="fv-wide">{html_figure(found.plot(), sentence)}</div>'
    )
