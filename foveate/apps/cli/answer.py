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


def answer(
    run: str,
    image: Path,
    question: str,
    changes: tuple[str, ...] = (),
    *,
    top: Count = 5,
    plot: FigureFile | None = None,
) -> Answer:
    """Answer a question about an image.

    Args:
        run: directory of a run, or name of an embedded one.
        image: the image file.
        question: in plain words.
        changes: fields of the recipe to change, as field=value; mechanism=multimodal attends with mixtures in a model
            that was trained with another mechanism.
        top: number of answers to show.
        plot: PNG file for the image with the attention over it; for a model that attends in several steps (r-DAN), the
            image as bright and the words as dark as their attention in every step.
    """
    predictor = hub.load_for("answer", run, "answer", "foveate train vqa-mcan-scenes", changes=changes)
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
    """Write the image, and beside it the image under the attention, or every step with its words, to a PNG file."""
    from foveate.plot import show

    if len(found.steps) > 1:
        from foveate.lab.papers.drawing import draw_steps
        from foveate.lab.papers.figures import answer_steps

        save_figure(draw_steps([answer_steps(decode_image(image), found)], head=question), out)
        return

    title = f"{question}  {found.text} ({found.confidence:.2f})"
    save_figure(show(decode_image(image), found.attention, title=title), out)
