"""`foveate answer`: ask a run about a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from foveate import hub
from foveate.cli.tables import print_table
from foveate.data.pictures import read_picture
from foveate.errors import DataError
from foveate.tasks.vqa_predictor import Answer, VQAPredictor

WORDS = "words that the model has never seen"


def answer(
    run: Annotated[str, tyro.conf.Positional],
    image: Annotated[Path, tyro.conf.Positional],
    question: Annotated[str, tyro.conf.Positional],
    *,
    top: int = 5,
    plot: Path | None = None,
) -> Answer:
    """Answer a question about a picture.

    Args:
        run: folder of a run, or the name of an embedded one.
        image: the picture.
        question: in plain words.
        top: how many answers to show.
        plot: PNG for the picture with the attention over it.
    """
    predictor = hub.load(run)
    if not isinstance(predictor, VQAPredictor):
        raise DataError(
            f"answer: expected a run of visual question answering, got {run!r} of {type(predictor.task).__name__}; "
            "train one with foveate train vqa-mcan-scenes"
        )
    found = predictor.answer(image, question, top=top)
    print_table(question, ("answer", "confidence"), [(text, f"{value:.3f}") for text, value in found.best])
    if found.unknown:
        print(f"{WORDS}: {', '.join(found.unknown)}", file=sys.stderr)
    if plot is not None:
        draw(image, question, found, plot)
    return found


def draw(image: Path, question: str, found: Answer, out: Path) -> None:
    """Write the picture, and beside it the picture under the attention, to a PNG."""
    from foveate.plot import show

    title = f"{question}  {found.text} ({found.confidence:.2f})"
    show(read_picture(image), found.attention, title=title).savefig(out, dpi=120)
