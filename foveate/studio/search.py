"""The page Search: pictures that a text describes, with where its words look, and texts that describe a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from foveate.attention import Attended
from foveate.data.pictures import open_picture
from foveate.data.samples import Dataset
from foveate.data.scenes import make_scenes
from foveate.errors import DataError, FoveateError
from foveate.plot.looks import pick as pick_one
from foveate.registry import lookup
from foveate.search import Index, search_by_text
from foveate.search.build import Embedder
from foveate.search.find import Matcher
from foveate.studio import picker, widgets
from foveate.studio.limits import MAX_PIXELS, MAX_SIDE, read_question, read_upload
from foveate.studio.panels import draw_panels
from foveate.studio.shelf import Shelf

TASK, RECIPE = "matching", "matching-scan-scenes"
SCENES = "Scenes, 120 pictures"
GALLERY, BATCH = 120, 20
TOP, FIRST = 6, 50
ALL = "all"
Tell = Callable[[float, str], None]


@dataclass(frozen=True)
class Hit:
    """A picture that was found, and where the words of the text look in it, one query a word, if the run can tell."""

    title: str
    pixels: np.ndarray
    words: tuple[str, ...] = ()
    attention: Attended | None = None


@lru_cache(maxsize=1)
def gallery() -> Dataset:
    """Pictures to be found, which no run has been trained on."""
    return make_scenes(split="test", count=GALLERY)


def find(shelf: Shelf, run: str, where: str, text: Any, tell: Tell) -> tuple[Hit, ...]:
    """The pictures that a text describes, the best first.

    Args:
        shelf: of the runs and indexes.
        run: of the task matching.
        where: SCENES, or an index of the shelf, in which the run looks at what is nearest by the run that made it.
        text: in plain words; none, and one that is too long, raise DataError.
        tell: told how far the work is, from 0 to 1, and what it is.
    """
    asked = read_question(text, "text")
    predictor = shelf.predictor(run)
    if where == SCENES:
        names, scores = _find_scenes(shelf, run, asked, tell)
    else:
        names, scores = _find_index(shelf, run, where, asked)
    hits = []
    for place, (name, score) in enumerate(zip(names, scores, strict=True)):
        tell(place / len(names), "looking")
        pixels = _pixels(name)
        hits.append(_with_looks(predictor, Hit(f"{place + 1}. score {score:.2f}", pixels), asked))
    return tuple(hits)


def describe(shelf: Shelf, run: str, pixels: np.ndarray) -> str:
    """The captions of Scenes that fit a picture best, as HTML."""
    texts = list(dict.fromkeys(caption.text for caption in gallery().captions))
    predictor: Any = shelf.predictor(run)
    read = shelf.kept(("captions", run), lambda: predictor.embed_text(texts))
    scores = predictor.match([pixels], read)[0]
    best = scores.topk(min(TOP, len(texts)))
    rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return f"<ol>{''.join(f'<li>{escape(texts[n])} <small>({value:.2f})</small></li>' for n, value in rows)}</ol>"


def draw(hits: Sequence[Hit], pick: Any = ALL) -> str:
    """The pictures that were found, each beside where all words look in it, or one that was picked."""
    parts = []
    for hit in hits:
        looks = {} if hit.attention is None else {"where it looks": _one_look(hit, pick)}
        parts.append(f"<div><h4>{escape(hit.title)}</h4>{draw_panels(hit.pixels, looks)}</div>")
    return f'<div class="fv-panels">{"".join(parts)}</div>'


def words_of(hits: Sequence[Hit]) -> str:
    """The words of the text, to pick."""
    words = hits[0].words if hits else ()
    return widgets.pickable([(ALL, "all words"), *((str(t), escape(w)) for t, w in enumerate(words))], "fv-chips")


def _find_scenes(shelf: Shelf, run: str, text: str, tell: Tell) -> tuple[list[Any], list[float]]:
    """Every picture is scored with the text; their embeddings are kept."""
    predictor: Any = shelf.predictor(run)
    pictures = gallery().pictures

    def embed() -> Any:
        from foveate.models.matching import join_fragments

        parts = []
        for start in range(0, len(pictures), BATCH):
            tell(start / len(pictures), "reading pictures")
            parts.append(predictor.embed_image([p.pixels() for p in pictures[start : start + BATCH]]))
        return join_fragments(parts)

    scores = predictor.match(shelf.kept(("gallery", run), embed), [text])[:, 0]
    best = scores.topk(TOP)
    return [pictures[n] for n in best.indices.tolist()], best.values.tolist()


def _find_index(shelf: Shelf, run: str, where: str, text: str) -> tuple[list[Any], list[float]]:
    """The nearest in an index, by the run that made it, scored again by the chosen one."""
    index = Index(lookup("index", where, shelf.indexes()))
    made_by = index.description.run
    makers = [name for name, folder in shelf.runs(TASK).items() if folder.resolve() == Path(made_by).resolve()]
    if index.description.kind != "images" or not makers:
        raise DataError(
            f"search: expected an index of pictures made by a run that is here, got one of {index.description.kind} "
            f"by {made_by or 'an unknown run'}; make one with foveate index"
        )
    embedder, reranker = cast(Embedder, shelf.predictor(makers[0])), cast(Matcher, shelf.predictor(run))
    found = search_by_text(index, text, embedder, top=TOP, reranker=reranker, first=FIRST)
    return [one.name for one in found], [one.score for one in found]


def _pixels(picture: Any) -> np.ndarray:
    """The pixels of a picture of Scenes, or of a file that an index names."""
    if not isinstance(picture, str):
        return picture.pixels()
    opened = open_picture(picture, max_pixels=MAX_PIXELS)
    opened.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(opened)


def _with_looks(predictor: Any, hit: Hit, text: str) -> Hit:
    try:
        seen = predictor.look(hit.pixels, text)
    except FoveateError:
        raise
    except ValueError:  # a model whose words do not look
        return hit
    return replace(hit, words=tuple(seen.words), attention=seen.attention)


def _one_look(hit: Hit, pick: Any) -> Attended:
    """Where one word looks, or all of them on the whole."""
    assert hit.attention is not None
    if isinstance(pick, str) and pick.isdecimal() and int(pick) < len(hit.words):
        return pick_one("search", hit.attention, (0, int(pick)))
    seen = hit.attention
    return Attended(seen.context.mean(1), seen.weights.mean(1), None, seen.grid, seen.mask)


def build(gr: Any, shelf: Shelf) -> None:
    """Lay the page out and wire it up."""
    if picker.no_run(gr, shelf, TASK, RECIPE):
        return
    runs = list(shelf.runs(TASK))
    with gr.Row():
        run = gr.Dropdown(runs, value=runs[0], label="run")
        where = gr.Dropdown([SCENES, *shelf.indexes()], value=SCENES, label="search in")
    with gr.Row():
        with gr.Column(scale=3):
            _build_find(gr, shelf, run, where)
        with gr.Column(scale=1, min_width=300):
            _build_describe(gr, shelf, run)


def _build_find(gr: Any, shelf: Shelf, run: Any, where: Any) -> None:
    """From a text to pictures."""
    found = gr.State((), time_to_live=3600)
    text = gr.Textbox("a large red circle", label="what is in the picture", elem_id="search-text", max_lines=2)
    button = gr.Button("Search", variant="primary", elem_id="search-button")
    words = gr.HTML(js_on_load=widgets.PICK, elem_id="search-words")
    panels = gr.HTML(elem_id="search-hits")

    def on_find(name: str, place: str, asked: str, progress: Any = gr.Progress()) -> tuple:  # noqa: B008
        try:
            hits = find(shelf, name, place, asked, progress)
        except FoveateError as error:
            return (), "", widgets.trouble(error)
        return hits, words_of(hits), draw(hits)

    for begin in (button.click, text.submit):
        begin(on_find, [run, where, text], [found, words, panels], api_visibility="private")
    words.select(
        widgets.on_event_with(gr, "pick", draw), found, panels, show_progress="hidden", api_visibility="private"
    )


def _build_describe(gr: Any, shelf: Shelf, run: Any) -> None:
    """From a picture to captions."""
    gr.HTML('<p class="fv-note">or: which captions fit a picture?</p>')
    chooser = picker.lay_out(gr, "search")
    captions = gr.HTML(elem_id="search-captions")

    def on_describe(read: Callable[[Any], np.ndarray], name: str, told: Any) -> tuple:
        try:
            pixels = read(told)
            return widgets.chosen(pixels), describe(shelf, name, pixels)
        except FoveateError as error:
            return "", widgets.trouble(error)

    sources = (
        (chooser.thumbs.select, "pick", picker.example_pixels),
        (chooser.drop.upload, "address", read_upload),
    )
    for begin, field, read in sources:
        begin(
            widgets.on_event_with(gr, field, partial(on_describe, read)),
            run,
            [chooser.picture, captions],
            api_visibility="private",
        )
