"""Search, apart from its page: images that a text describes, where its words look, and captions that fit an image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np

from foveate.apps.studio import widgets
from foveate.apps.studio.catalogue import PHOTOGRAPHS, RunCatalogue
from foveate.apps.studio.panels import draw_panels
from foveate.apps.studio.picker import (
    MAX_PIXELS,
    MAX_SIDE,
    OwnImages,
    read_question,
    read_upload,
)
from foveate.apps.studio.share import index_code, search_code
from foveate.attention import Attended
from foveate.errors import DataError
from foveate.io import open_image
from foveate.lab.data.image_sources import example_photos
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
# How the code of a view gets its images.
CODE = {
    SCENES: "from foveate.lab.data.scenes import make_scenes\n\n"
    'images = [image.pixels() for image in make_scenes(split="test", count=120).images]',
    PHOTOS: "from foveate.lab.data.image_sources import example_photos\n\nimages = list(example_photos().values())",
    OWN: 'from foveate.lab.search import list_images\n\nimages = list_images("images")  # your own images',
}
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
    run = run_for(catalogue, PHOTOGRAPHS)
    return (PHOTOS if catalogue.domain(run) == PHOTOGRAPHS else SCENES), run


def run_for(catalogue: RunCatalogue, domain: str) -> str:
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
