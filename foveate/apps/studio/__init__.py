"""The studio: a web page to ask, caption, search and play with mechanisms; gradio is imported when it is built."""

from dataclasses import dataclass

from foveate.apps.studio.catalogue import RunCatalogue


@dataclass(frozen=True)
class Page:
    """A page of the studio.

    Attributes:
        title: on its tab.
        about: one sentence below it.
        module: of this package, whose function `build` builds the page; imported when the studio starts.
    """

    title: str
    about: str
    module: str


_ALL = (
    Page("Ask", "Ask about an image, and see where several mechanisms look for the same scores.", "ask_page"),
    Page("Caption", "An image in words, and where the model looked for every word.", "caption_page"),
    Page("Search", "Images that a text describes, with attention maps; captions that fit an image.", "search_page"),
    Page("Compare", "Two mechanisms or two runs on the same image, with a slider between them.", "compare_page"),
    Page("Models", "Where any Hugging Face model looks: word by word, layer by layer, head by head.", "models_page"),
    Page("Explain", "From softmax to multimodal attention in ten minutes, by moving things.", "explain_page"),
    Page("Play", "No model: what each mechanism makes of scores that you paint.", "play_page"),
    Page("Results", "Reports and metrics of runs.", "results"),
)
PAGES: dict[str, Page] = {page.title: page for page in _ALL}

__all__ = ["PAGES", "Page", "RunCatalogue"]
