"""`foveate answer`: the answer of a run to a question about an image."""

from __future__ import annotations

import sys
from pathlib import Path

from foveate.apps.cli.terminal import Count, FigureFile, print_table, save_figure
from foveate.io import decode_image
from foveate.lab import hub
from foveate.lab.tasks.vqa.predictor import Answer

# What the numbers are: of independent scores several may be high, and they are no parts of a whole.
SCORES = {"independent": "score, each on its own", "shares": "score, all add up to 1"}


def answer(run: str, image: Path, question: str, *, top: Count = 5, plot: FigureFile | None = None) -> Answer:
    """Answer a question about an image.

    Args:
        run: directory of a run, or name of an embedded one.
        image: the image file.
        question: in plain words.
        top: number of answers to show.
        plot: PNG file for the image with the attention over it.
    """
    predictor = hub.load_for("answer", run, "answer", "foveate train vqa-mcan-scenes")
    found: Answer = predictor.answer(image, question, top=top)
    print_table(question, ("answer", SCORES[found.scores_are]), [(text, f"{value:.3f}") for text, value in found.best])
    if found.warning:
        print(found.warning, file=sys.stderr)
    if found.unknown:
        print(f"words that the model does not know: {', '.join(found.unknown)}", file=sys.stderr)
    if plot is not None:
        draw(image, question, found, plot)
    return found


def draw(image: Path, question: str, found: Answer, out: Path) -> None:
    """Write the image, and beside it the image under the attention, to a PNG file."""
    from foveate.plot import show

    title = f"{question}  {found.text} ({found.confidence:.2f})"
    save_figure(show(decode_image(image), found.attention, title=title), out)
