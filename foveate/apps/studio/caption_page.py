"""The page Caption: a caption of an image, and where the model looked for each of its words."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from foveate.apps.studio import picker, widgets
from foveate.apps.studio.catalogue import RunCatalogue
from foveate.apps.studio.panels import draw_panels, draw_strip, scale_end
from foveate.apps.studio.picker import ChosenImage, choose_example, read_upload
from foveate.apps.studio.share import IMAGE_NOTE, build_restore, caption_code, share_html
from foveate.attention import Attended
from foveate.errors import FoveateError
from foveate.plot.heat import heat, select_example

TASK, RECIPE = "captioning", "captioning-lstm-scenes"
FIRST, BEAMS, MAX_BEAMS = "3", 3, 8


@dataclass(frozen=True, eq=False)
class CaptionView:
    """What one visitor sees.

    Attributes:
        image: that was chosen.
        run: that writes.
        beams: its beam width.
        words: of the caption.
        attention: one query per word.
        others: the other captions of the beam with their log-probabilities.
        score: the log-probability of the caption.
        warning: if the image is unlike those that the run was trained on, else empty.
    """

    image: ChosenImage
    run: str
    beams: int
    words: tuple[str, ...]
    attention: Attended
    text: str
    score: float
    others: tuple[tuple[str, float], ...]
    warning: str = ""


def write(catalogue: RunCatalogue, run: str, image: ChosenImage, beams: float) -> CaptionView:
    """Caption an image; raises UnknownName for a run that is not offered."""
    width = min(MAX_BEAMS, max(1, int(beams)))
    found = catalogue.predictor(run).caption(image.pixels, beams=width)
    best = tuple(found.best)
    said = found.warning or ""
    return CaptionView(image, run, width, found.words, found.attention, found.text, best[0][1], best[1:], said)


def run_for(catalogue: RunCatalogue, image: ChosenImage, run: str | None = None) -> str:
    """The run that suits an image: the present one if it does, otherwise the embedded one that does."""
    if run is not None and catalogue.domain(run) == image.domain:
        return run
    return str(catalogue.first_run(TASK, image.domain))


def caption_html(view: CaptionView, catalogue: RunCatalogue) -> str:
    """The caption with its score, the other captions of the beam, and a warning for a run out of its domain."""
    domain, warning = catalogue.domain(view.run), view.warning[:1].upper() + view.warning[1:] + "." * bool(view.warning)
    if view.image.domain != domain:
        warning = f"{view.run} was trained on {domain}, not on {view.image.domain}: do not trust this caption."
    note = f'<p class="fv-note">{escape(warning)}</p>' if warning else ""
    rows = [(view.text, view.score), *view.others]
    listed = "".join(f"<tr><td>{escape(text)}</td><td>{value:.2f}</td></tr>" for text, value in rows)
    table = (
        '<div class="fv-wide"><table class="fv-table"><thead><tr><th scope="col">Captions of the beam</th>'
        f'<th scope="col">Log-probability</th></tr></thead><tbody>{listed}</tbody></table></div>'
    )
    writer = escape(f"{view.run}, trained on {catalogue.trained_on(view.run)}, writes")
    return f'<p class="fv-label">{writer}</p><p class="fv-answer fv-text">{escape(view.text)}</p>{note}{table}'


def picked_word(view: CaptionView, pick: Any = None) -> int:
    """The number of the word that was picked; the last one, which is often what the caption is about, if none was."""
    picked = widgets.picked_number(pick, len(view.words))
    return len(view.words) - 1 if picked is None else picked


def strip_of_words(view: CaptionView, pick: Any = None) -> str:
    """The words in order, each below its map; a button picks one."""
    return draw_strip(view.image.pixels, _by_word(view), picked_word(view, pick)) if view.words else ""


def map_of_word(view: CaptionView, pick: Any = None) -> str:
    """A large map of the word that was picked, in the colours of all of them."""
    if not view.words:
        return ""
    each = _by_word(view)
    title = list(each)[picked_word(view, pick)]
    top = scale_end(heat(select_example("caption", one), cells=False) for one in each.values())
    return draw_panels(view.image.pixels, {title: each[title]}, size="single", top=top)


def _by_word(view: CaptionView) -> dict[str, Attended]:
    return {f"{t + 1}. {word}": select_example("caption", view.attention, (0, t)) for t, word in enumerate(view.words)}


def share(catalogue: RunCatalogue, view: CaptionView, pick: Any = None) -> str:
    """The bar that shares the view."""
    word = str(picked_word(view, pick))
    link = {"example": view.image.mark, "run": view.run, "beams": str(view.beams), "word": word}
    code = caption_code(view.image, catalogue.code_name(view.run), view.beams)
    return share_html(link, code, note=IMAGE_NOTE if view.image.example is None else "")


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events; the page opens with a finished example."""
    if picker.is_without_runs(gr, catalogue, TASK, RECIPE):
        return
    image = choose_example(FIRST)
    first = write(catalogue, run_for(catalogue, image), image, BEAMS)
    view = gr.State(first, time_to_live=3600)
    strip = picker.build_strip(gr, "caption", image.mark)
    with gr.Row(elem_classes="fv-row"):
        with gr.Column(scale=1, min_width=220, elem_classes="fv-narrow"):
            shown = gr.HTML(widgets.chosen_image(image.pixels), elem_id="caption-image")
        with gr.Column(scale=4, min_width=320):
            text = gr.HTML(caption_html(first, catalogue), elem_id="caption-text")
    gr.HTML('<p class="fv-label">Where it looked for each word: click one, or move with the arrow keys</p>')
    words = gr.HTML(strip_of_words(first), js_on_load=widgets.PICK, elem_id="caption-words")
    panels = gr.HTML(map_of_word(first), elem_id="caption-maps")
    bar = gr.HTML(share(catalogue, first), elem_id="caption-share")
    with gr.Accordion("Run and beam width", open=False, elem_id="caption-controls"):
        run = gr.Dropdown(catalogue.choices(TASK), value=first.run, label="Run that writes")
        beams = gr.Slider(1, MAX_BEAMS, value=BEAMS, step=1, label="Beam width: captions kept while writing")
    _connect(gr, catalogue, [view, strip, shown, text, words, panels, bar, run], beams)


def _connect(gr: Any, catalogue: RunCatalogue, parts: list[Any], beams: Any) -> None:
    """Every event makes a new view and shows all of it; picking a word only draws its large map."""
    view, strip, _, _, words, panels, bar, run = parts

    def show(seen: CaptionView, pick: Any = None) -> tuple[Any, ...]:
        return (
            seen,
            picker.strip_value(seen.image.mark),
            widgets.chosen_image(seen.image.pixels),
            caption_html(seen, catalogue),
            strip_of_words(seen, pick),
            map_of_word(seen, pick),
            share(catalogue, seen, pick),
            seen.run,
        )

    def on_image(choose: Any, seen: CaptionView, width: float, content: Any) -> tuple[Any, ...]:
        try:
            image = choose(content)
            return show(write(catalogue, run_for(catalogue, image, seen.run), image, width))
        except FoveateError as error:
            return (gr.skip(), picker.strip_value(seen.image.mark, error), *[gr.skip()] * 6)

    def on_turn(seen: CaptionView, width: float, name: str) -> tuple[Any, ...]:
        try:
            return show(write(catalogue, name, seen.image, width))
        except FoveateError as error:
            return (gr.skip(), picker.strip_value(seen.image.mark, error), *[gr.skip()] * 6)

    def on_word(seen: CaptionView, pick: Any) -> tuple[str, str]:
        return map_of_word(seen, pick), share(catalogue, seen, pick)  # the browser marks the word itself

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        try:
            image = choose_example(fields["example"] if fields.get("example", picker.OWN) != picker.OWN else FIRST)
            width = widgets.read_number(fields.get("beams"), BEAMS, 1, MAX_BEAMS)
            name = fields.get("run") or run_for(catalogue, image)
            return (width, *show(write(catalogue, name, image, width), fields.get("word")))
        except FoveateError as error:
            return (gr.skip(), gr.skip(), picker.strip_value(FIRST, error), *[gr.skip()] * 6)

    private = {"api_visibility": "private"}
    upload = widgets.on_event_with(gr, "address", lambda *a: on_image(lambda x: ChosenImage(read_upload(x)), *a))
    strip.select(
        widgets.on_event_with(gr, "pick", lambda *a: on_image(choose_example, *a)), [view, beams], parts, **private
    )
    strip.upload(upload, [view, beams], parts, **private)
    for event in (beams.release, run.input):
        event(on_turn, [view, beams, run], parts, **private)
    words.select(widgets.on_event_with(gr, "pick", on_word), view, [panels, bar], show_progress="hidden", **private)
    build_restore(gr, "caption", on_restore, [beams, *parts])
