"""`foveate caption`: describe an image in a sentence."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Annotated

from foveate.apps.cli.terminal import Between, Count, FigureFile, print_table, save_figure
from foveate.errors import DataError
from foveate.io import decode_image
from foveate.lab import hub
from foveate.lab.tasks.captioning.predictor import GeneratedCaption

MAX_BEAMS = 1000  # hypotheses at the same time, each with the state of the decoder


def caption(
    run: str,
    image: Path,
    changes: tuple[str, ...] = (),
    *,
    beams: Annotated[int, Between(1, MAX_BEAMS)] | None = None,
    length_penalty: float | None = None,
    no_repeat: Count | None = None,
    samples: Annotated[int, Between(0, MAX_BEAMS)] = 0,
    temperature: float = 1.0,
    seed: int = 0,
    plot: FigureFile | None = None,
) -> GeneratedCaption:
    """Describe an image in a sentence.

    Args:
        run: directory of a run, or name of an embedded one.
        image: the image file.
        changes: fields of the recipe to change, as field=value; mechanism=tvmax attends with TVmax in a model that
            was trained with another mechanism.
        beams: size of the beam search, 1 is greedy; by default that of the run.
        length_penalty: 0 ranks sentences by probability, 1 by the mean over words; by default that of the run.
        no_repeat: never repeat a sequence of this many words.
        samples: also sample this many captions at random.
        temperature: sampling temperature; values below 1 favour likely words.
        seed: seed of the samples.
        plot: PNG file with one panel per word, each under the attention for that word.
    """
    predictor = hub.load_for("caption", run, "caption", "foveate train captioning-lstm-scenes", changes=changes)
    found: GeneratedCaption = predictor.caption(image, beams=beams, length_penalty=length_penalty, no_repeat=no_repeat)
    print(found.text)
    if found.warning:
        print(found.warning, file=sys.stderr)
    _show(str(image), list(found.best))
    if samples:
        _show("samples", predictor.sample(image, samples, temperature=temperature, seed=seed))
    if plot is not None:
        draw(image, found, plot)
    return found


def draw(image: Path, found: GeneratedCaption, out: Path) -> None:
    """Write one panel per word, each under the attention for that word, to a PNG file."""
    from foveate.plot import strip

    if not found.words:
        raise DataError(f"caption: expected words to draw, got an empty caption for {image}; train the run further")
    save_figure(strip(decode_image(image), found.words, found.attention, original=True), out)


def _show(title: str, captions: list[tuple[str, float]]) -> None:
    print_table(title, ("caption", "probability"), [(text, f"{math.exp(value):.2g}") for text, value in captions])
