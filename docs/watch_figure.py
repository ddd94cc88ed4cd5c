"""Draw the figure of the page on watching from an embedded run and a made image: python docs/watch_figure.py"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import foveate as fv
from foveate.lab.data import DATASETS, Dataset, Question
from foveate.watch import describe

OUT = Path(__file__).parent / "images" / "watch.png"


def is_answered(run: Any, data: Dataset, question: Question) -> bool:
    """True for a question that needs two objects and is answered correctly."""
    two = len(question.boxes) == 2 and question.region is not None
    return two and run.answer(data.image(question).pixels(), question.text).text == question.answer


def main() -> None:
    """Watch a run answer a question that needs two objects, and draw what it attends to."""
    run: Any = fv.load("scenes-vqa")
    data = DATASETS["scenes"].read(None, "val", count=30)
    question = next(one for one in data.questions if is_answered(run, data, one))
    pixels = data.image(question).pixels()
    with fv.watch(run.model) as seen:
        answer = run.answer(pixels, question.text)
    head = next(row for row in seen if row.name == "flat_image.attend")
    first = next(row for row in seen if row.name == "decoder.0.attend")
    watched = head.attended(grid=(7, 7))
    fitted = watched.fit("multimodal")
    assert question.region is not None
    figure = fv.plot.compare(
        pixels,
        {
            "first layer, mean over queries": first.attended(grid=(7, 7)).mean_over_queries(),
            f"pooling: {answer.text}": watched,
            "as ellipses": fitted,
        },
        truth=question.region(),
        columns=5,
    )
    figure.suptitle(question.text)
    figure.savefig(OUT, dpi=110)
    print(question.text, "->", answer.text, "|", describe(fitted))


if __name__ == "__main__":
    main()
