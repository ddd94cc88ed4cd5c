"""`foveate caption`: let a run describe a picture."""

from __future__ import annotations

import math
from pathlib import Path

from foveate import hub
from foveate.cli.tables import print_table
from foveate.data.pictures import read_picture
from foveate.errors import DataError
from foveate.tasks.captioning_predictor import Caption, CaptionPredictor


def caption(
    run: str,
    image: Path,
    *,
    beams: int | None = None,
    length_penalty: float | None = None,
    no_repeat: int | None = None,
    samples: int = 0,
    temperature: float = 1.0,
    seed: int = 0,
    plot: Path | None = None,
) -> Caption:
    """Describe a picture in a sentence.

    Args:
        run: folder of a run, or the name of an embedded one.
        image: the picture.
        beams: sentences kept by the search, 1 is greedy; as the run was measured when absent.
        length_penalty: 0 ranks sentences by probability, 1 by the mean over words; that of the run when absent.
        no_repeat: never write the same so many words in a row twice.
        samples: also draw so many captions at random.
        temperature: of the draws, below 1 keeps to likely words.
        seed: of the draws.
        plot: PNG for one picture a word with the attention of that word.
    """
    predictor = hub.load(run)
    if not isinstance(predictor, CaptionPredictor):
        raise DataError(
            f"caption: expected a run of captioning, got {run!r} of {type(predictor.task).__name__}; "
            "train one with foveate train captioning-lstm-scenes"
        )
    found = predictor.caption(image, beams=beams, length_penalty=length_penalty, no_repeat=no_repeat)
    print(found.text)
    _show(str(image), "caption", list(found.best))
    if samples:
        _show("drawn", "caption", predictor.sample(image, samples, temperature=temperature, seed=seed))
    if plot is not None:
        draw(image, found, plot)
    return found


def draw(image: Path, found: Caption, out: Path) -> None:
    """Write one picture a word, each under the attention of that word, to a PNG."""
    from foveate.plot import strip

    if not found.words:
        raise DataError(f"caption: expected words to draw, got an empty caption for {image}; train the run further")
    strip(read_picture(image), found.words, found.attention).savefig(out, dpi=120)


def _show(title: str, column: str, captions: list[tuple[str, float]]) -> None:
    print_table(title, (column, "probability"), [(text, f"{math.exp(value):.2g}") for text, value in captions])
