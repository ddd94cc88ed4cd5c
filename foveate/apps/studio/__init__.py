"""The studio: a web page to ask, caption, search and play with mechanisms; gradio is imported when it is built."""

from foveate.studio.catalogue import RunCatalogue
from foveate.tasks import TASKS
from foveate.tasks.presentation import Page

# The pages of the tasks come first; each task keeps its own in its package.
PAGES: dict[str, Page] = {kind.page.title: kind.page for kind in TASKS.values() if kind.page is not None}
PAGES["Compare"] = Page(
    "Compare",
    "Two mechanisms or two runs on the same image, with a slider between them.",
    "foveate.studio.compare_page:build",
)
PAGES["Models"] = Page(
    "Models",
    "Where any Hugging Face model looks: word by word, layer by layer, head by head.",
    "foveate.studio.models_page:build",
)
PAGES["Explain"] = Page(
    "Explain",
    "From softmax to multimodal attention in ten minutes, by moving things.",
    "foveate.studio.explain_page:build",
)
PAGES["Play"] = Page(
    "Play", "No model: what each mechanism makes of scores that you paint.", "foveate.studio.play_page:build"
)
PAGES["Results"] = Page("Results", "Reports and metrics of runs.", "foveate.studio.results:build")

__all__ = ["PAGES", "RunCatalogue"]
