"""The studio: a web page to ask, to play and to look at results; gradio is imported when it is built."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from foveate.studio import ask, caption, play, results, search
from foveate.studio.shelf import Shelf


class Page(NamedTuple):
    """A row of the table of pages: what it is for, and the function that lays it out with gradio."""

    about: str
    build: Callable[[Any, Shelf], None]


PAGES: Mapping[str, Page] = {
    "Ask": Page("Ask about a picture, and see where several attentions look on the same scores.", ask.build),
    "Caption": Page("A picture in words, and for every word where the model looked.", caption.build),
    "Search": Page("Pictures that a text describes, with maps; captions that fit a picture.", search.build),
    "Play": Page("No model: what each mechanism makes of scores that you paint.", play.build),
    "Results": Page("Reports and numbers of runs.", results.build),
}

__all__ = ["PAGES", "Page", "Shelf"]
