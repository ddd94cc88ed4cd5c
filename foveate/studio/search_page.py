"""The page Search: images that a text describes, with the attention of its words, and captions that fit an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from foveate.attention import Attended
from foveate.data.image_files import open_image
from foveate.data.samples import Dataset, ImageRecord
from foveate.data.scenes import make_scenes
from foveate.errors import DataError, FoveateError
from foveate.plot.heat import select_example
from foveate.registry import lookup
from foveate.search import Index, search_by_text
from foveate.search.find import Embedder, Matcher
from foveate.studio import picker, widgets
from foveate.studio.catalogue import RunCatalogue
from foveate.studio.limits import MAX_PIXELS, MAX_SIDE, read_question, read_upload
from foveate.studio.panels import draw_panels

TASK, RECIPE = "matching", "matching-scan-scenes"
SCENES = "Scenes, 120 images"
GALLERY, BATCH = 120, 20
TOP, FIRST = 6, 50
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


def find(catalogue: RunCatalogue, run: str, where: str, text: Any, progress: Progress) -> tuple[Hit, ...]:
    """The images that a text describes, best first.

    Args:
        catalogue: of the runs and indexes.
        run: of the task matching.
        where: SCENES, or an index of the catalogue, whose nearest images by the run that embedded it are re-ranked.
        text: in plain words; raises DataError if it is empty or too long.
        progress: called with the completed fraction and the present step.
    """
    asked = read_question(text, "text")
    predictor = catalogue.predictor(run)
    if where == SCENES:
        names, scores = _find_scenes(catalogue, run, asked, progress)
    else:
        names, scores = _find_index(catalogue, run, where, asked)
    hits = []
    for place, (name, score) in enumerate(zip(names, scores, strict=True)):
        progress(place / len(names), "computing attention")
        pixels = _pixels(name)
        hits.append(_with_attention(predictor, Hit(f"{place + 1}. score {score:.2f}", pixels), asked))
    return tuple(hits)


def describe(catalogue: RunCatalogue, run: str, pixels: np.ndarray) -> str:
    """The captions of Scenes that fit an image best, as HTML."""
    texts = list(dict.fromkeys(caption.text for caption in gallery().captions))
    predictor: Any = catalogue.predictor(run)
    embedded = catalogue.cached(("captions", run), lambda: predictor.embed_text(texts))
    scores = predictor.match([pixels], embedded)[0]
    best = scores.topk(min(TOP, len(texts)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return f"<ol>{''.join(f'<li>{escape(texts[n])} <small>({value:.2f})</small></li>' for n, value in rows)}</ol>"


def draw(hits: Sequence[Hit], pick: Any = widgets.ALL) -> str:
    """The images that were found, each beside the attention of all words, or of the one that was picked."""
    parts = []
    for hit in hits:
        attended = {} if hit.attention is None else {"attention": _attention_of(hit, hit.attention, pick)}
        parts.append(f"<div><h4>{escape(hit.title)}</h4>{draw_panels(hit.pixels, attended)}</div>")
    return f'<div class="fv-panels">{"".join(parts)}</div>'


def words_of(hits: Sequence[Hit]) -> str:
    """The words of the text as buttons."""
    return widgets.word_buttons(hits[0].words if hits else ())


def _find_scenes(catalogue: RunCatalogue, run: str, text: str, progress: Progress) -> tuple[list[Any], list[float]]:
    """Score every image of the gallery with the text; the embeddings of the images are cached."""
    predictor: Any = catalogue.predictor(run)
    images = gallery().images

    def embed() -> Any:
        from foveate.models.fragments import join_fragments

        parts = []
        for start in range(0, len(images), BATCH):
            progress(start / len(images), "embedding images")
            parts.append(predictor.embed_image([p.pixels() for p in images[start : start + BATCH]]))
        return join_fragments(parts)

    scores = predictor.match(catalogue.cached(("gallery", run), embed), [text])[:, 0]
    best = scores.topk(TOP)
    return [images[n] for n in best.indices.tolist()], best.values.tolist()


def _find_index(catalogue: RunCatalogue, run: str, where: str, text: str) -> tuple[list[Any], list[float]]:
    """The nearest images in an index, by the run that embedded it, re-ranked by the chosen run."""
    index = Index(lookup("index", where, catalogue.indexes()), verify=catalogue.verify)
    own = index.description.run
    embedders = [name for name, path in catalogue.runs(TASK).items() if path.resolve() == Path(own).resolve()]
    if index.description.kind != "images" or not embedders:
        raise DataError(
            f"search: expected an index of images by a run of this studio, got one of {index.description.kind} "
            f"by {own or 'an unknown run'}; build one with foveate index"
        )
    embedder, reranker = cast(Embedder, catalogue.predictor(embedders[0])), cast(Matcher, catalogue.predictor(run))
    found = search_by_text(index, text, embedder, top=TOP, reranker=reranker, first=FIRST)
    return [one.name for one in found], [one.score for one in found]


def _pixels(image: Any) -> np.ndarray:
    """The pixels of an image of Scenes, or of a file in an index."""
    if isinstance(image, ImageRecord):
        return image.pixels()
    opened = open_image(image, max_pixels=MAX_PIXELS)
    opened.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(opened)


def _with_attention(predictor: Any, hit: Hit, text: str) -> Hit:
    try:
        seen = predictor.look(hit.pixels, text)
    except FoveateError:
        raise
    except ValueError:  # a model in which images attend to words, not words to images
        return hit
    return replace(hit, words=tuple(seen.words), attention=seen.attention)


def _attention_of(hit: Hit, attention: Attended, pick: Any) -> Attended:
    """The attention of the word that was picked, or the mean over all words."""
    picked = widgets.picked_number(pick, len(hit.words))
    return attention.mean_over_queries() if picked is None else select_example("search", attention, (0, picked))


def build(gr: Any, catalogue: RunCatalogue) -> None:
    """Create the components of the page and connect their events."""
    if picker.is_without_runs(gr, catalogue, TASK, RECIPE):
        return
    runs = list(catalogue.runs(TASK))
    with gr.Row():
        run = gr.Dropdown(runs, value=runs[0], label="run")
        where = gr.Dropdown([SCENES, *catalogue.indexes()], value=SCENES, label="search in")
    with gr.Row():
        with gr.Column(scale=3):
            _build_find(gr, catalogue, run, where)
        with gr.Column(scale=1, min_width=300):
            _build_describe(gr, catalogue, run)


def _build_find(gr: Any, catalogue: RunCatalogue, run: Any, where: Any) -> None:
    """The left side: from a text to images."""
    found = gr.State((), time_to_live=3600)
    text = gr.Textbox("a large red circle", label="describe the image to find", elem_id="search-text", max_lines=2)
    button = gr.Button("Search", variant="primary", elem_id="search-button")
    words = gr.HTML(js_on_load=widgets.PICK, elem_id="search-words")
    panels = gr.HTML(elem_id="search-hits")

    def on_find(
        name: str,
        place: str,
        query: str,
        progress: Any = gr.Progress(),  # noqa: B008
    ) -> tuple[tuple[Hit, ...], str, str]:
        try:
            hits = find(catalogue, name, place, query, progress)
        except FoveateError as error:
            return (), "", widgets.error_html(error)
        return hits, words_of(hits), draw(hits)

    for event in (button.click, text.submit):
        event(on_find, [run, where, text], [found, words, panels], api_visibility="private")
    words.select(
        widgets.on_event_with(gr, "pick", draw), found, panels, show_progress="hidden", api_visibility="private"
    )


def _build_describe(gr: Any, catalogue: RunCatalogue, run: Any) -> None:
    """The right side: from an image to captions."""
    gr.HTML('<p class="fv-note">Or find the captions that fit an image:</p>')
    chooser = picker.lay_out(gr, "search")
    captions = gr.HTML(elem_id="search-captions")

    def on_describe(read: Callable[[Any], np.ndarray], name: str, content: Any) -> tuple[str, str]:
        try:
            pixels = read(content)
            return widgets.chosen_image(pixels), describe(catalogue, name, pixels)
        except FoveateError as error:
            return "", widgets.error_html(error)

    sources = (
        (chooser.thumbs.select, "pick", picker.example_pixels),
        (chooser.drop.upload, "address", read_upload),
    )
    for event, field, read in sources:
        event(
            widgets.on_event_with(gr, field, partial(on_describe, read)),
            run,
            [chooser.image, captions],
            api_visibility="private",
        )
