"""`foveate answer`: ask a run about a picture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import tyro

from foveate import hub
from foveate.cli.tables import print_table
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
    from matplotlib.figure import Figure

    from foveate.data.pictures import read_picture

    pixels = read_picture(image)
    figure = Figure(figsize=(8, 4), layout="constrained")
    plain, seen = figure.subplots(1, 2)
    plain.imshow(pixels)
    plain.set_title(question, fontsize=9, wrap=True)
    seen.imshow(pixels)
    heat = found.attention.map(56, 56)[0].numpy()
    seen.imshow(heat, extent=(-0.5, pixels.shape[1] - 0.5, pixels.shape[0] - 0.5, -0.5), alpha=0.6, cmap="inferno")
    seen.set_title(f"{found.text} ({found.confidence:.2f})", fontsize=9)
    for axes in (plain, seen):
        axes.set_axis_off()
    figure.savefig(out, dpi=120)
