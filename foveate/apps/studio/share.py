"""Sharing a view: a link that restores it, an image, and the Python code that makes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any
from urllib.parse import parse_qsl, urlencode

from foveate.apps.studio.attention_maps import KNOBS
from foveate.apps.studio.cards import MapChoice
from foveate.apps.studio.widgets import on_event, script

MAX_LINK = 8000  # characters
IMAGE_NOTE = "The link is in your clipboard; your own image is not part of it, it opens with the first example."


def share_html(link: Mapping[str, str], code: str, *, note: str = "", images: bool = True) -> str:
    """The bar below a view: copy the link, save the maps, copy the code.

    Args:
        link: what restores the view, see `read_link`.
        code: Python that makes the view.
        note: what to say instead once the link is copied.
        images: whether there are maps to save.
    """
    saves = [("png", "Save as PNG"), ("svg", "Save as SVG")] if images else []
    buttons = "".join(
        f'<button type="button" class="fv-button" data-share="{kind}">{label}</button>'
        for kind, label in (("link", "Copy link"), *saves, ("code", "Copy the Python"))
    )
    return (
        f'<div class="fv-share" data-link="{escape(urlencode(link))}" data-note="{escape(note)}">{buttons}'
        f'<span role="status"></span><pre tabindex="0" aria-label="Python code" hidden>{escape(code)}</pre></div>'
    )


def read_link(text: Any) -> dict[str, str]:
    """The fields of a link, empty for anything else.

    >>> read_link("example=2&question=What+is+red%3F")
    {'example': '2', 'question': 'What is red?'}
    """
    if not isinstance(text, str) or len(text) > MAX_LINK:
        return {}
    try:
        return dict(parse_qsl(text, max_num_fields=20))
    except ValueError:
        return {}


def choice_fields(choice: MapChoice) -> dict[str, str]:
    """The mechanisms and options of a view as fields of a link.

    >>> choice_fields(MapChoice(("tvmax",), {"smoothness": 0.2}))
    {'maps': 'tvmax', 'smoothness': '0.2'}
    """
    return {"maps": ",".join(choice.names), **{name: f"{value:g}" for name, value in choice.knobs.items()}}


def read_choice(fields: Mapping[str, str], default: Sequence[str]) -> MapChoice:
    """The mechanisms and options of a link; the default ones where it has none.

    >>> read_choice({"maps": "tvmax,nonsense", "alpha": "1.2"}, ["softmax"]).names
    ('tvmax',)
    """
    names = [name for name in fields.get("maps", "").split(",") if name]
    known = MapChoice(
        tuple(names or default), {name: knob.clamp(_number(fields.get(name))) for name, knob in KNOBS.items()}
    )
    return MapChoice.from_json(known.to_json())


def build_restore(gr: Any, page: str, restore: Callable[[dict[str, str]], Any], outputs: Sequence[Any]) -> None:
    """Call `restore` with the fields of the link that the page was opened with, if it is one of this page."""
    component = gr.HTML(js_on_load=script("restore", page=page), elem_id=f"{page}-restore", visible=True)
    component.apply(
        on_event(gr, "link", lambda text: restore(read_link(text))),
        None,
        list(outputs),
        show_progress="hidden",
        api_visibility="private",
    )


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
