"""The page Models: where any Hugging Face model looks, word by word, layer by layer, head by head."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from foveate.apps.studio import picker, widgets
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.apps.studio.panels import draw_panels
from foveate.apps.studio.picker import ChosenImage, choose_example, read_question, read_upload
from foveate.apps.studio.share import IMAGE_NOTE, build_restore, models_code, share_html
from foveate.attention import Attended
from foveate.errors import DataError, FoveateError
from foveate.watch import FAMILIES, Look, describe, load_pretrained, look
from foveate.watch.prompts import reads_text
from foveate.watch.reductions import normalise, over_heads, over_layers

PROMPT = "What is in the image?"
DINO = "dinov2-small"  # a trained network that needs no download, with which the page opens
WORDS = 16  # generated at most
MAX_NAME = 300  # characters of the name of a model
PLACE = ("word", "layer", "head")  # of a link
EMPTY = (
    f'<p class="fv-note">Choose {DINO}, which needs the extra real and no download, or write the directory of a model '
    "or its name on the Hub, for instance Qwen/Qwen2.5-VL-3B-Instruct, google/siglip-base-patch16-224 or "
    f"facebook/dinov2-base, then press “Look”. {len(FAMILIES)} families are known, LLaVA, Qwen-VL, PaliGemma, SmolVLM, "
    "BLIP, CLIP, SigLIP and DINOv2 among them.</p>"
)
WAITING = '<p class="fv-note">Loading a vision network …</p>'


@dataclass(frozen=True, eq=False)
class ModelView:
    """What one visitor sees.

    Attributes:
        image: that was chosen.
        model: directory or name.
        prompt: that was sent.
        seen: where the model looked, None before the first time.
    """

    image: ChosenImage
    model: str = ""
    prompt: str = PROMPT
    seen: Look | None = None


def look_with(catalogue: RunCatalogue, view: ModelView, model: Any, prompt: Any) -> ModelView:
    """Run a model on the image of a view.

    Raises DataError for a model that cannot be loaded, that this server does not offer, or that cannot be asked.
    """
    name = model.strip() if isinstance(model, str) else ""
    if not name or len(name) > MAX_NAME:
        raise DataError("models: expected a directory or a name on the Hub, got none; write one")
    source = catalogue.model_source(name)
    text = read_question(prompt, "prompt") if isinstance(prompt, str) and prompt.strip() else ""
    network, processor = catalogue.cached(("model", source), lambda: load_pretrained(source))
    try:
        text = text if reads_text(network) else ""
        seen = look(network, view.image.pixels, text, processor=processor, max_new_tokens=WORDS)
    except ValueError as error:  # all errors of foveate are: a text is missing, the family is not known
        raise DataError(str(error)) from error
    return ModelView(view.image, name, text, seen)


def attention_of(seen: Look, word: int, layer: int, head: int) -> Attended:
    """The map of a word from one layer and head, counted from 1; 0 averages over all of them."""
    L, M = seen.layers.shape[:2]
    if layer == 0 and head == 0:
        return seen.words[word].attention
    rows = over_heads(seen.layers[:, :, word : word + 1].float(), "mean" if head == 0 else min(head, M) - 1)
    row = over_layers(list(rows), "mean" if layer == 0 else min(layer, L) - 1)
    return seen.layout.attended(normalise(row))


def maps(view: ModelView, word: int, layer: int, head: int) -> str:
    """The map of a word, the same as ellipses, and what they are in numbers."""
    if view.seen is None:
        return ""
    attended = attention_of(view.seen, word, layer, head)
    fitted = attended.fit("multimodal")
    drawn = draw_panels(view.image.pixels, {"attention": attended, "as ellipses": fitted}, with_image=True)
    rows = "".join(
        f"<tr><td>{100 * one.weight:.0f} %</td><td>{one.centre[0]:.2f}, {one.centre[1]:.2f}</td>"
        f"<td>{', '.join(f'{side:.2f}' for side in one.box)}</td></tr>"
        for one in describe(fitted).ellipses
    )
    heads = "".join(
        f'<th scope="col">{head}</th>' for head in ("Attention", "Centre x, y", "Box left, top, right, bottom")
    )
    table = f'<table class="fv-table"><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>'
    return f"{drawn}<div class='fv-wide'>{table}</div>" if rows else drawn


def words_html(view: ModelView, word: int) -> str:
    """What the model said, its words as buttons."""
    if view.seen is None:
        return EMPTY
    buttons = [(str(t), escape(one.text or "the whole image")) for t, one in enumerate(view.seen.words)]
    said = f'<p class="fv-answer fv-text">{escape(view.seen.text)}</p>' if view.seen.text else ""
    label = "Click a word, or move with the arrow keys" if said or view.prompt else "This network reads no text"
    return f'<p class="fv-label">{label}</p>{said}' + widgets.pick_buttons(buttons, "fv-chips", str(word))


def sliders_html(view: ModelView, place: tuple[int, int] = (0, 0)) -> str:
    """Sliders for the layer and the head; 0 means all."""
    L, M = (1, 1) if view.seen is None else view.seen.layers.shape[:2]
    rows = "".join(
        f'<label class="fv-knob"><span>{name}<output>{now}</output></span><input type="range" data-knob="{name}" '
        f'min="0" max="{most}" step="1" value="{now}"><p>0 averages over all {most}.</p></label>'
        for name, most, now in (("layer", L, place[0]), ("head", M, place[1]))
    )
    return f'<div class="fv-sliders">{rows}</div>'


def share(catalogue: RunCatalogue, view: ModelView, word: int = 0, place: tuple[int, int] = (0, 0)) -> str:
    """The bar that shares the view: which word, and which layer and head."""
    if view.seen is None:
        return ""
    chosen = {"word": str(word), "layer": str(place[0]), "head": str(place[1])}
    link = {"example": view.image.mark, "model": view.model, "prompt": view.prompt, **chosen}
    code = models_code(view.image, catalogue.model_source(view.model), view.prompt, WORDS)
    return share_html(link, code, note=IMAGE_NOTE if view.image.example is None else "")


def read_place(text: Any) -> tuple[int, int]:
    """Layer and head of the sliders.

    >>> read_place('{"layer": 2, "head": 1}'), read_place("nonsense")
    ((2, 1), (0, 0))
    """
    try:
        sent = dict(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        sent = {}
    layer, head = (int(widgets.read_number(sent.get(name), 0, 0, 999)) for name in ("layer", "head"))
    return layer, head


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    first = ModelView(choose_example(str(picker.ROCKET if len(picker.example_images()) > picker.ROCKET else 0)))
    offered = catalogue.models()
    view, word = gr.State(first, time_to_live=3600), gr.State(0)
    strip = picker.build_strip(gr, "models", first.image.mark)
    with gr.Row(elem_classes="fv-question"):
        model = gr.Dropdown(
            [DINO, *offered], value=DINO, label="Model: directory or name on the Hub",
            allow_custom_value=catalogue.any_model, elem_id="models-name", scale=3,
        )  # fmt: skip
        prompt = gr.Textbox(
            PROMPT, label="Prompt (vision models need none)", elem_id="models-prompt", max_lines=3, scale=3
        )
        button = gr.Button("Look", variant="primary", elem_id="models-button", scale=1, min_width=90)
    message = gr.HTML(elem_id="models-message")
    words = gr.HTML(WAITING, js_on_load=widgets.PICK, elem_id="models-words")
    panels = gr.HTML(elem_id="models-maps")
    place = gr.HTML('{"layer": 0, "head": 0}', html_template="<span></span>", js_on_load=widgets.SLIDERS,
                    elem_id="models-place")  # fmt: skip
    widgets.build_believe(gr, "models", view, lambda seen: None if seen.seen is None else (seen.seen, ()))
    bar = gr.HTML(elem_id="models-share")
    parts = [view, word, strip, message, words, panels, place, bar]
    start = gr.HTML(js_on_load=widgets.script("visible", page="models"), elem_id="models-start")
    _connect(gr, catalogue, parts, model, prompt, (button, start))


def _connect(
    gr: Any, catalogue: RunCatalogue, parts: list[Any], model: Any, prompt: Any, starts: tuple[Any, Any]
) -> None:
    """Looking fills the page; a word, a layer or a head only draws a map."""
    (view, word, strip, _, words, panels, place, bar), (button, start) = parts, starts

    def show(seen: ModelView, chosen: int = 0, at: tuple[int, int] = (0, 0)) -> tuple[Any, ...]:
        chosen = chosen if seen.seen is not None and chosen < len(seen.seen.words) else 0
        value = json.dumps({"layer": at[0], "head": at[1]})
        sliders = gr.HTML(value=value, html_template=sliders_html(seen, at))
        drawn = words_html(seen, chosen), maps(seen, chosen, *at)
        mark = picker.strip_value(seen.image.mark)
        return seen, chosen, mark, "", *drawn, sliders, share(catalogue, seen, chosen, at)

    def failed(seen: ModelView, error: object) -> tuple[Any, ...]:
        return seen, 0, gr.skip(), widgets.error_html(str(error)), "", "", gr.skip(), ""

    def on_look(seen: ModelView, name: Any, text: Any) -> tuple[Any, ...]:
        try:
            return show(look_with(catalogue, seen, name, text))
        except FoveateError as error:
            return failed(replace(seen, seen=None), error)

    def on_start(seen: ModelView, name: Any, text: Any) -> tuple[Any, ...]:
        try:
            return show(look_with(catalogue, seen, name, text))
        except FoveateError as error:
            return seen, 0, gr.skip(), "", EMPTY + widgets.error_html(str(error)), "", gr.skip(), ""

    def on_image(choose: Any, seen: ModelView, name: Any, text: Any, content: Any) -> tuple[Any, ...]:
        try:
            fresh = replace(seen, image=choose(content), seen=None)
        except FoveateError as error:
            return (gr.skip(), gr.skip(), picker.strip_value(seen.image.mark, error), *[gr.skip()] * 5)
        return on_look(fresh, name, text) if name else show(fresh)

    def on_word(seen: ModelView, before: int, places: str, pick: Any) -> tuple[Any, ...]:
        count = 0 if seen.seen is None else len(seen.seen.words)
        number = widgets.picked_number(pick, count)
        chosen, at = before if number is None else number, read_place(places)
        return chosen, words_html(seen, chosen), maps(seen, chosen, *at), share(catalogue, seen, chosen, at)

    def on_place(seen: ModelView, chosen: int, places: str) -> tuple[str, str]:
        at = read_place(places)
        return maps(seen, chosen, *at), share(catalogue, seen, chosen, at)

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        try:
            image = choose_example(fields.get("example", "0") if fields.get("example") != picker.OWN else "0")
        except FoveateError as error:
            return (gr.skip(), gr.skip(), *failed(ModelView(choose_example("0")), error))
        name, text = fields.get("model", ""), fields.get("prompt", "")
        word_number, layer, head = (int(widgets.read_number(fields.get(key), 0, 0, 999)) for key in PLACE)
        try:
            seen = look_with(catalogue, ModelView(image), name, text)
        except FoveateError as error:
            return (name, text, *failed(ModelView(image), error))
        return (name, text, *show(seen, word_number, (layer, head)))

    private = {"api_visibility": "private"}
    inputs = [view, model, prompt]
    upload = widgets.on_event_with(gr, "address", lambda *a: on_image(lambda x: ChosenImage(read_upload(x)), *a))
    picked = widgets.on_event_with(gr, "pick", lambda *a: on_image(choose_example, *a))
    strip.select(picked, inputs, parts, **private)
    strip.upload(upload, inputs, parts, **private)
    for event in (button.click, prompt.submit):
        event(on_look, inputs, parts, **private)
    quiet = {**private, "show_progress": "hidden"}
    start.apply(on_start, inputs, parts, **quiet)
    words.select(widgets.on_event_with(gr, "pick", on_word), [view, word, place], [word, words, panels, bar], **quiet)
    place.change(on_place, [view, word, place], [panels, bar], trigger_mode="always_last", **quiet)
    build_restore(gr, "models", on_restore, [model, prompt, *parts])
