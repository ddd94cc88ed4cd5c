"""The page Search: its components and events; `hits` finds what they show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from foveate.apps.studio import hits, picker, widgets
from foveate.apps.studio.catalogue import PHOTOGRAPHS, SCENES, RunCatalogue
from foveate.apps.studio.hits import Hit
from foveate.apps.studio.picker import ChosenImage, OwnImages
from foveate.apps.studio.share import build_restore, share_html
from foveate.errors import FoveateError

RECIPE = "matching-scan-scenes"
WAITING = '<p class="fv-note">Searching …</p>'
OWN_NOTE = "The link is in your clipboard; your own images are not part of it, it searches the example photographs."
PRIVATE = {"api_visibility": "private"}
HIDDEN = {"show_progress": "hidden", **PRIVATE}


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events; the first search runs when the page is first seen."""
    if picker.is_without_runs(gr, catalogue, hits.TASK, RECIPE):
        return
    place, first = hits.default_place(catalogue)
    known = hits.queries_for(place)
    found, own = gr.State((), time_to_live=3600), gr.State(hits.NO_IMAGES, time_to_live=3600)
    start = gr.HTML(js_on_load=widgets.script("visible", page="search"), elem_id="search-start")
    with gr.Row(elem_classes="fv-question"):
        text = gr.Textbox(known[0], label="Describe the image to find", elem_id="search-text", max_lines=2, scale=4)
        button = gr.Button("Search", variant="primary", elem_id="search-button", scale=1, min_width=90)
    queries = gr.HTML(widgets.chips(known, known[0]), js_on_load=widgets.PICK, elem_id="search-queries")
    folder = picker.build_field(gr, "search")
    words = gr.HTML(js_on_load=widgets.PICK, elem_id="search-words")
    panels, bar = gr.HTML(WAITING, elem_id="search-hits"), gr.HTML(elem_id="search-share")
    with gr.Accordion("Run and images to search", open=False, elem_id="search-controls"):
        run = gr.Dropdown(list(catalogue.runs(hits.TASK)), value=first, label="Run that compares")
        where = gr.Dropdown(hits.places(catalogue), value=place, label="Search in", elem_id="search-where")
        gr.HTML(
            '<p class="fv-note">foveate index RUN IMAGES RUNS/NAME writes an index of your own images; below the '
            "directory of the runs it is offered here.</p>"
        )
    with gr.Accordion("The other way: captions that fit an image", open=False, elem_id="search-reverse"):
        _build_describe(gr, catalogue, run)
    events, inputs, shown = SearchEvents(gr, catalogue), [run, where, own], [found, words, panels, bar, queries, text]
    for event in (button.click, text.submit, run.input):
        event(events.on_find, [*inputs, text], shown, **PRIVATE)
    where.input(events.on_place, [where, run, own, text], [run, *shown], **PRIVATE)
    on_folder = widgets.on_event_with(gr, "images", events.on_folder)
    folder.upload(on_folder, [run, text], [folder, own, where, run, *shown], **PRIVATE)
    queries.select(widgets.on_event_with(gr, "pick", events.on_find), inputs, shown, **PRIVATE)
    start.apply(events.on_find, [*inputs, text], shown, **HIDDEN)
    on_word = widgets.on_event_with(gr, "pick", events.on_word)
    words.select(on_word, [found, run, where, text], [words, panels, bar], **HIDDEN)
    build_restore(gr, "search", events.on_restore, [run, where, *shown])


@dataclass(frozen=True)
class SearchEvents:
    """The events of the page: every one searches and shows the images; picking a word only draws its maps.

    Attributes:
        gr: gradio.
        catalogue: of the runs and indexes.
    """

    gr: Any
    catalogue: RunCatalogue

    def on_find(self, name: str, place: str, images: OwnImages, query: str, pick: str = widgets.ALL) -> tuple[Any, ...]:
        """Search, and show what was found: the state, words, panels, bar, queries and text of the page."""
        try:
            found = hits.find(self.catalogue, name, place, query, lambda done, what: None, images)
            return self._show(found, name, place, query, pick)
        except FoveateError as error:
            return (), "", widgets.error_html(error), "", self.gr.skip(), self.gr.skip()

    def on_place(self, place: str, name: str, images: OwnImages, query: str) -> tuple[Any, ...]:
        """Other images: by a run for their kind, and a text that suits them."""
        if place in hits.CODE:
            name = hits.run_for(self.catalogue, SCENES if place == hits.SCENES else PHOTOGRAPHS)
            query = next(iter(hits.queries_for(place)), query)
        return name, *self.on_find(name, place, images, query)

    def on_folder(self, name: str, query: str, content: Any) -> tuple[Any, ...]:
        """Search images of the visitor."""
        try:
            images = picker.read_images(content)
        except FoveateError as error:
            return str(error), *[self.gr.skip()] * 9
        return "", images, hits.OWN, *self.on_place(hits.OWN, name, images, query)

    def on_word(self, found: tuple[Hit, ...], name: str, place: str, query: str, pick: Any) -> tuple[Any, ...]:
        """Draw the maps of one word, or of all."""
        known = found[0].words if found else ()
        chosen = widgets.ALL if widgets.picked_number(pick, len(known)) is None else str(pick)
        return self._show(found, name, place, query, chosen)[1:4]

    def on_restore(self, fields: dict[str, str]) -> tuple[Any, ...]:
        """The view of a link."""
        usual, first = hits.default_place(self.catalogue)
        name, place = fields.get("run", ""), fields.get("in", usual)
        name, place = name if name in self.catalogue.runs(hits.TASK) else first, usual if place == hits.OWN else place
        query, pick = fields.get("text", hits.queries_for(usual)[0]), fields.get("word", widgets.ALL)
        return name, place, *self.on_find(name, place, hits.NO_IMAGES, query, pick)

    def _show(self, found: tuple[Hit, ...], name: str, place: str, query: str, pick: str) -> tuple[Any, ...]:
        link = {"text": query, "run": name, "in": place, "word": pick}
        code = hits.code_of(self.catalogue, name, place, query, bool(found and found[0].words))
        shared = share_html(link, code, note=OWN_NOTE if place == hits.OWN else "")
        chips = widgets.chips(hits.queries_for(place), query)
        return found, hits.words_of(found, pick), hits.draw(found, pick), shared, chips, query


def _build_describe(gr: Any, catalogue: RunCatalogue, run: Any) -> None:
    """From an image to captions."""
    strip = picker.build_strip(gr, "search", "")
    captions = gr.HTML(elem_id="search-captions")

    def on_describe(choose: Callable[[Any], ChosenImage], name: str, content: Any) -> tuple[Any, Any]:
        try:
            image = choose(content)
            return picker.strip_value(image.mark), hits.describe(catalogue, name, image.pixels)
        except FoveateError as error:
            return picker.strip_value("", error), gr.skip()

    def uploaded(address: Any) -> ChosenImage:
        return ChosenImage(picker.read_upload(address))

    for event, field, choose in ((strip.select, "pick", picker.choose_example), (strip.upload, "address", uploaded)):
        event(widgets.on_event_with(gr, field, partial(on_describe, choose)), run, [strip, captions], **PRIVATE)
