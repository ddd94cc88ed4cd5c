"""The page Search: images that a text describes, with the attention of its words, and captions that fit an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from foveate.apps.studio import catalogue as catalogues
from foveate.apps.studio import picker, widgets
from foveate.apps.studio.assets import script
from foveate.apps.studio.catalogue import PHOTOGRAPHS, RunCatalogue
from foveate.apps.studio.code import index_code, search_code
from foveate.apps.studio.limits import MAX_PIXELS, MAX_SIDE, read_question, read_upload
from foveate.apps.studio.own_images import OwnImages, build_field, read_images
from foveate.apps.studio.panels import draw_panels
from foveate.apps.studio.picker import ChosenImage, choose_example
from foveate.apps.studio.share import build_restore, share_html
from foveate.attention import Attended
from foveate.errors import DataError, FoveateError
from foveate.io import open_image
from foveate.lab.data.examples import example_photos
from foveate.lab.data.samples import Dataset, ImageRecord
from foveate.lab.data.scenes import make_scenes
from foveate.lab.search import VectorIndex, open_index, search_by_text
from foveate.lab.search.find import Embedder, Matcher
from foveate.plot.heat import select_example
from foveate.registry import lookup

TASK, RECIPE = "matching", "matching-scan-scenes"
QUICK = "photos-search"
SCENES, PHOTOS, OWN = "Scenes, 120 images", "example photographs", "your own images"
GALLERY, BATCH = 120, 20
TOP, FIRST = 6, 50
SCENE_QUERIES = ("a large red circle", "a blue star", "two green shapes", "a purple square above a star")
# What to search for, by the photograph that it describes.
PHOTO_QUERIES = {
    "chelsea": "a close up of a cat",
    "motorcycle_left": "a motorcycle",
    "coffee": "a cup of coffee on a table",
    "flower": "an orange flower",
    "grace_hopper": "a woman in uniform",
    "china": "a building and trees",
}
WAITING = '<p class="fv-note">Searching …</p>'
# How the code of a view gets its images.
CODE = {
    SCENES: "from foveate.lab.data.scenes import make_scenes\n\n"
    'images = [image.pixels() for image in make_scenes(split="test", count=120).images]',
    PHOTOS: "from foveate.lab.data.examples import example_photos\n\nimages = list(example_photos().values())",
    OWN: 'from foveate.lab.search import list_images\n\nimages = list_images("images")  # your own images',
}
OWN_NOTE = "The link is in your clipboard; your own images are not part of it, it searches the example photographs."
NO_IMAGES = OwnImages()
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Hit:
    """An image that was found, and the attention of the words of the text, one query per word, if the run has it."""

    title: str
    pixels: np.ndarray
    words: tuple[str, ...] = ()
    attention: Attended | None = None


@lru_cache(maxsize=1)
def gallery() -> Dataset:
    """Images to search in, which no run has been trained on."""
    return make_scenes(split="test", count=GALLERY)


def queries_for(where: str) -> tuple[str, ...]:
    """What to search for in a place, so that there is something to find; nothing is known of other places."""
    if where == SCENES:
        return SCENE_QUERIES
    known = example_photos()
    return tuple(text for name, text in PHOTO_QUERIES.items() if name in known) if where == PHOTOS else ()


def find(
    catalogue: RunCatalogue,
    run: str,
    where: str,
    text: Any,
    progress: Progress,
    own: OwnImages = NO_IMAGES,
) -> tuple[Hit, ...]:
    """The images that a text describes, best first.

    Args:
        catalogue: of the runs and indexes.
        run: of the task matching.
        where: SCENES, PHOTOS, OWN, or an index of the catalogue, whose nearest images by the run that embedded it are
            re-ranked.
        text: in plain words; raises DataError if it is empty or too long.
        progress: called with the completed fraction and the present step.
        own: the images of OWN.
    """
    asked = read_question(text, "text")
    predictor = catalogue.predictor(run)
    if where in CODE:
        images, key = gallery_images(where, own)
        names, scores = _find_gallery(catalogue, run, (images, key), asked, progress)
    else:
        names, scores = _find_index(catalogue, run, where, asked)
    hits = []
    for place, (name, score) in enumerate(zip(names, scores, strict=True)):
        progress(place / len(names), "computing attention")
        pixels = _pixels(name)
        hits.append(_with_attention(predictor, Hit(f"{place + 1}. similarity {score:.2f}", pixels), asked))
    return tuple(hits)


def default_place(catalogue: RunCatalogue) -> tuple[str, str]:
    """Where the page searches at first, and by which run: photographs, if there is a run for them."""
    run = _run_for(catalogue, PHOTOGRAPHS)
    return (PHOTOS if catalogue.domain(run) == PHOTOGRAPHS else SCENES), run


def _run_for(catalogue: RunCatalogue, domain: str) -> str:
    """The run that searches at first: for photographs one with a vector per image, which needs no further package."""
    return QUICK if domain == PHOTOGRAPHS and QUICK in catalogue.runs(TASK) else str(catalogue.first_run(TASK, domain))


def places(catalogue: RunCatalogue) -> list[str]:
    """Where one can search."""
    return [*CODE, *catalogue.indexes()]


def describe(catalogue: RunCatalogue, run: str, pixels: np.ndarray) -> str:
    """The captions of Scenes that fit an image best, as HTML."""
    texts = list(dict.fromkeys(caption.text for caption in gallery().captions))
    predictor: Any = catalogue.predictor(run)
    embedded = catalogue.cached(("captions", run), lambda: predictor.encode_text(texts))
    scores = predictor.match([pixels], embedded)[0]
    best = scores.topk(min(TOP, len(texts)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    listed = "".join(f"<tr><td>{escape(texts[n])}</td><td>{value:.2f}</td></tr>" for n, value in rows)
    return (
        '<table class="fv-table"><thead><tr><th scope="col">Caption</th><th scope="col">Similarity</th></tr></thead>'
        f"<tbody>{listed}</tbody></table>"
    )


def draw(hits: Sequence[Hit], pick: Any = widgets.ALL) -> str:
    """The images that were found, each beside the attention of all words, or of the one that was picked."""
    parts = []
    for hit in hits:
        attended = {} if hit.attention is None else {"where the words look": _attention_of(hit, hit.attention, pick)}
        size = "pair" if attended else "one"
        shown = draw_panels(hit.pixels, attended, size=size, with_image=True, with_scale=False)
        parts.append(f'<div class="fv-hit"><h2>{escape(hit.title)}</h2>{shown}</div>')
    return f'<div class="fv-hits">{"".join(parts)}</div>'


def words_of(hits: Sequence[Hit], pick: str = widgets.ALL) -> str:
    """The words of the text as buttons; nothing for a run whose words do not look."""
    if not hits or not hits[0].words:
        return ""
    label = '<p class="fv-label">Where the words look: all together, or one of them</p>'
    return label + widgets.word_buttons(hits[0].words, pick)


def gallery_images(where: str, own: OwnImages) -> tuple[list[Any], str]:
    """The images of a place, and what they are called in the cache; raises DataError if it has none."""
    if where == OWN and not own.addresses:
        raise DataError("search: expected images of yours, got none; drop a folder on the page")
    images: dict[str, Callable[[], list[Any]]] = {
        SCENES: lambda: list(gallery().images),
        PHOTOS: lambda: list(example_photos().values()),
        OWN: lambda: list(own.addresses),
    }
    return images[where](), f"gallery {where} {own.key if where == OWN else ''}"


def _find_gallery(
    catalogue: RunCatalogue, run: str, place: tuple[list[Any], str], text: str, progress: Progress
) -> tuple[list[Any], list[float]]:
    """Score every image of a gallery with the text; the embeddings of the images are cached."""
    predictor: Any = catalogue.predictor(run)
    images, key = place

    def embed() -> Any:
        from foveate.lab.models.fragments import join_fragments

        parts = []
        for start in range(0, len(images), BATCH):
            progress(start / len(images), "embedding images")
            parts.append(predictor.encode_image([_pixels(one) for one in images[start : start + BATCH]]))
        return join_fragments(parts)

    scores = predictor.match(catalogue.cached((key, run), embed), [text])[:, 0]
    best = scores.topk(min(TOP, len(images)))
    return [images[n] for n in best.indices.tolist()], best.values.tolist()


def _find_index(catalogue: RunCatalogue, run: str, where: str, text: str) -> tuple[list[Any], list[float]]:
    """The nearest images in an index, by the run that embedded it, re-ranked by the chosen run."""
    index = open_index(lookup("index", where, catalogue.indexes()), verify=catalogue.verify)
    own, embedders = index.description.run, embedders_of(catalogue, index)
    if index.description.kind != "images" or not embedders:
        raise DataError(
            f"search: expected an index of images by a run of this studio, got one of {index.description.kind} "
            f"by {own or 'an unknown run'}; build one with foveate index"
        )
    embedder, reranker = cast(Embedder, catalogue.predictor(embedders[0])), cast(Matcher, catalogue.predictor(run))
    found = search_by_text(index, text, embedder, top=TOP, reranker=reranker, first=FIRST)
    return [one.name for one in found], [one.score for one in found]


def embedders_of(catalogue: RunCatalogue, index: VectorIndex) -> list[str]:
    """The names of the runs that embedded an index, as far as the catalogue has them."""
    made = Path(index.description.run).resolve()
    return [name for name, path in catalogue.runs(TASK).items() if path.resolve() == made]


def code_of(catalogue: RunCatalogue, run: str, where: str, text: str, has_words: bool) -> str:
    """The Python that searches."""
    name = catalogue.code_name(run)
    if where in CODE:
        return search_code(name, text, CODE[where], has_words)
    directory = lookup("index", where, catalogue.indexes())
    made = embedders_of(catalogue, open_index(directory, verify=False))
    return index_code(name, text, str(directory), catalogue.code_name(made[0]) if made else name)


def _pixels(image: Any) -> np.ndarray:
    """The pixels of an image of Scenes, of a data URL, or of a file."""
    if isinstance(image, ImageRecord):
        return image.pixels()
    if isinstance(image, str) and image.startswith("data:"):
        return read_upload(image)
    opened = open_image(image, max_pixels=MAX_PIXELS)
    opened.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(opened)


def _with_attention(predictor: Any, hit: Hit, text: str) -> Hit:
    if not predictor.words_attend:
        return hit
    seen = predictor.look(hit.pixels, text)
    return replace(hit, words=tuple(seen.words), attention=seen.attention)


def _attention_of(hit: Hit, attention: Attended, pick: Any) -> Attended:
    """The attention of the word that was picked, or the mean over all words."""
    picked = widgets.picked_number(pick, len(hit.words))
    return attention.mean_over_queries() if picked is None else select_example("search", attention, (0, picked))


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events; the first search runs when the page is first seen."""
    if picker.is_without_runs(gr, catalogue, TASK, RECIPE):
        return
    runs = list(catalogue.runs(TASK))
    place, first = default_place(catalogue)
    found, own = gr.State((), time_to_live=3600), gr.State(NO_IMAGES, time_to_live=3600)
    start = gr.HTML(js_on_load=script("visible", page="search"), elem_id="search-start")  # above all: seen at once
    with gr.Row(elem_classes="fv-question"):
        text = gr.Textbox(
            queries_for(place)[0], label="Describe the image to find", elem_id="search-text", max_lines=2, scale=4
        )
        button = gr.Button("Search", variant="primary", elem_id="search-button", scale=1, min_width=90)
    queries = gr.HTML(
        widgets.chips(queries_for(place), queries_for(place)[0]), js_on_load=widgets.PICK, elem_id="search-queries"
    )
    folder = build_field(gr, "search")
    words = gr.HTML(js_on_load=widgets.PICK, elem_id="search-words")
    panels = gr.HTML(WAITING, elem_id="search-hits")
    bar = gr.HTML(elem_id="search-share")
    with gr.Accordion("Run and images to search", open=False, elem_id="search-controls"):
        run = gr.Dropdown(runs, value=first, label="Run that compares")
        where = gr.Dropdown(places(catalogue), value=place, label="Search in", elem_id="search-where")
        gr.HTML(
            '<p class="fv-note">foveate index RUN IMAGES RUNS/NAME writes an index of your own images; below the '
            "directory of the runs it is offered here.</p>"
        )
    with gr.Accordion("The other way: captions that fit an image", open=False, elem_id="search-reverse"):
        _build_describe(gr, catalogue, run)
    _connect_find(gr, catalogue, [found, words, panels, bar, queries, text], (run, where, own), (button, start, folder))


def _connect_find(
    gr: Any, catalogue: RunCatalogue, parts: list[Any], inputs: tuple[Any, Any, Any], starts: tuple[Any, Any, Any]
) -> None:
    """Every event searches and shows the images; picking a word only draws its maps."""
    found, words, panels, bar, queries, text = parts
    run, where, own = inputs
    button, start, folder = starts

    def show(hits: tuple[Hit, ...], name: str, place: str, query: str, pick: str = widgets.ALL) -> tuple[Any, ...]:
        link = {"text": query, "run": name, "in": place, "word": pick}
        code = code_of(catalogue, name, place, query, bool(hits and hits[0].words))
        shared = share_html(link, code, note=OWN_NOTE if place == OWN else "")
        return hits, words_of(hits, pick), draw(hits, pick), shared, widgets.chips(queries_for(place), query), query

    def on_find(name: str, place: str, images: OwnImages, query: str, pick: str = widgets.ALL) -> tuple[Any, ...]:
        try:
            hits = find(catalogue, name, place, query, lambda done, what: None, images)
            return show(hits, name, place, query, pick)
        except FoveateError as error:
            return (), "", widgets.error_html(error), "", gr.skip(), gr.skip()

    def on_place(place: str, name: str, images: OwnImages, query: str) -> tuple[Any, ...]:
        """Other images: by a run for their kind, and a text that suits them."""
        if place in CODE:
            name = _run_for(catalogue, catalogues.SCENES if place == SCENES else PHOTOGRAPHS)
            query = next(iter(queries_for(place)), query)
        return name, *on_find(name, place, images, query)

    def on_folder(name: str, query: str, content: Any) -> tuple[Any, ...]:
        try:
            images = read_images(content)
        except FoveateError as error:
            return str(error), *[gr.skip()] * (3 + len(parts))
        return "", images, OWN, *on_place(OWN, name, images, query)

    def on_word(hits: tuple[Hit, ...], name: str, place: str, query: str, pick: Any) -> tuple[Any, ...]:
        known = hits[0].words if hits else ()
        chosen = widgets.ALL if widgets.picked_number(pick, len(known)) is None else str(pick)
        return show(hits, name, place, query, chosen)[1:4]

    def on_restore(fields: dict[str, str]) -> tuple[Any, ...]:
        usual, first = default_place(catalogue)
        name, place = fields.get("run", ""), fields.get("in", usual)
        run_name, place = name if name in catalogue.runs(TASK) else first, usual if place == OWN else place
        query, pick = fields.get("text", queries_for(usual)[0]), fields.get("word", widgets.ALL)
        return run_name, place, *on_find(run_name, place, NO_IMAGES, query, pick)

    private = {"api_visibility": "private"}
    for event in (button.click, text.submit, run.input):
        event(on_find, [*inputs, text], parts, **private)
    where.input(on_place, [where, run, own, text], [run, *parts], **private)
    folder.upload(
        widgets.on_event_with(gr, "images", on_folder), [run, text], [folder, own, where, run, *parts], **private
    )
    queries.select(widgets.on_event_with(gr, "pick", on_find), inputs, parts, **private)
    start.apply(on_find, [*inputs, text], parts, show_progress="hidden", **private)
    words.select(
        widgets.on_event_with(gr, "pick", on_word),
        [found, run, where, text],
        [words, panels, bar],
        show_progress="hidden",
        **private,
    )
    build_restore(gr, "search", on_restore, [run, where, *parts])


def _build_describe(gr: Any, catalogue: RunCatalogue, run: Any) -> None:
    """From an image to captions."""
    strip = picker.build_strip(gr, "search", "")
    captions = gr.HTML(elem_id="search-captions")

    def on_describe(choose: Callable[[Any], ChosenImage], name: str, content: Any) -> tuple[Any, Any]:
        try:
            image = choose(content)
            return picker.strip_value(image.mark), describe(catalogue, name, image.pixels)
        except FoveateError as error:
            return picker.strip_value("", error), gr.skip()

    sources = (
        (strip.select, "pick", choose_example),
        (strip.upload, "address", lambda address: ChosenImage(read_upload(address))),
    )
    for event, field, choose in sources:
        event(
            widgets.on_event_with(gr, field, partial(on_describe, choose)),
            run,
            [strip, captions],
            api_visibility="private",
        )
