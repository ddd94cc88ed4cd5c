"""`foveate search`: what a text describes, or what describes a picture."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from foveate import hub
from foveate.attention import Attended
from foveate.cli.index import load_embedder
from foveate.cli.tables import print_table
from foveate.data.files import PICTURE_SUFFIXES
from foveate.data.pictures import read_picture
from foveate.errors import DataError
from foveate.search import Found, Index, search_by_image, search_by_text
from foveate.search.find import Matcher

COLUMNS = 5


def search(
    index: Path,
    query: str,
    *,
    top: int = 10,
    rerank: str | None = None,
    first: int = 100,
    run: str | None = None,
    plot: Path | None = None,
) -> list[Found]:
    """Search an index by a text or by a picture.

    An index of pictures gives the pictures that a text describes, or pictures like a picture; one of texts gives the
    texts that describe a picture, or texts like a text.

    Args:
        index: folder that foveate index made.
        query: a text in plain words, or the path of a picture.
        top: how many to show.
        rerank: run that looks at the first again, picture and text together (SCAN, BFAN).
        first: how many it looks at.
        run: where the run of the index lies now; where it lay when absent.
        plot: PNG for the pictures, with the attention of the words over them when the re-ranking run tells it.
    """
    opened = Index(index)
    image = _picture(query)
    if plot is not None and image is None and opened.description.kind == "texts":
        raise DataError(f"search: expected pictures to draw, got a text and an index of texts; leave out --plot {plot}")
    embedder, _, weights = load_embedder("search", run or opened.description.run)
    if weights != opened.description.weights:
        raise DataError(
            f"search: expected the run with weights {opened.description.weights} that made {index}, got "
            f"{run or opened.description.run} with {weights}; give it with --run, or index again"
        )
    ask = search_by_text if image is None else search_by_image
    matcher = None if rerank is None else _matcher(rerank)
    found = ask(opened, query if image is None else image, embedder, top=top, reranker=matcher, first=first)
    heads = ("", "score", "nearness", opened.description.kind.removesuffix("s"))
    rows = [(str(n), f"{one.score:.4g}", f"{one.nearness:.4g}", one.name) for n, one in enumerate(found, 1)]
    print_table(query, heads, rows)
    if plot is not None and found:
        draw(query, found, image if opened.description.kind == "texts" else None, plot)
    return found


def draw(query: str, found: Sequence[Found], image: str | None, out: Path) -> None:
    """Write the pictures that were found, or the one that was asked with, under the attention of each text."""
    from foveate.plot.canvas import add_scale, heat_scale, lay_picture, make_panels, read_image, set_title
    from foveate.plot.layers import draw_heat
    from foveate.plot.looks import heat

    pixels = [read_image("search", read_picture(image or one.name)) for one in found]
    looks = [None if one.attention is None else _over_words(one.attention) for one in found]
    maps = [None if look is None or look.grid is None else heat(look, False) for look in looks]
    figure, panels = make_panels(len(found), COLUMNS, pixels[0])
    scale = heat_scale(max((float(shown.max()) for shown in maps if shown is not None), default=1.0))
    for axes, one, picture, shown in zip(panels, found, pixels, maps, strict=True):
        lay_picture(axes, picture, pale=shown is not None)
        if shown is not None:
            draw_heat(axes, shown, scale, cells=False, edge=False)
        set_title(axes, one.name if image else Path(one.name).name, f"score {one.score:.4g}")
    if any(shown is not None for shown in maps):
        add_scale(figure, panels, scale)
    figure.suptitle(query if image is None else Path(query).name, parse_math=False)
    figure.savefig(out, dpi=120)


def _over_words(seen: Attended) -> Attended:
    """Attention of all words together: the mean over those that look somewhere."""
    if seen.weights.ndim == 2:
        return seen
    words = (seen.weights.sum(-1, keepdim=True) > 0).sum(1).clamp(min=1)
    return replace(seen, weights=seen.weights.sum(1) / words, context=seen.context.sum(1) / words, density=None)


def _picture(query: str) -> str | None:
    """The path when the query is a picture; DataError when it looks like one that is not there."""
    if os.path.isfile(query):  # a text may be too long for a path, which Path.is_file does not forgive
        return query
    if Path(query).suffix.lower() in PICTURE_SUFFIXES:
        raise DataError(f"search: expected a text or a picture that is there, got {query!r}; check the path")
    return None


def _matcher(run: str) -> Matcher:
    predictor: Any = hub.load(run)
    if not hasattr(predictor, "match"):
        raise DataError(
            f"search: expected a run that matches pictures with texts, got {run!r} of {type(predictor.task).__name__}; "
            "train one of image-text matching by SCAN or BFAN"
        )
    return cast(Matcher, predictor)
