"""`foveate look`: where any model looks in an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import FigureFile, OutFile, print_table, save_figure
from foveate.io import write_json
from foveate.watch import NEUTRAL, Look, describe
from foveate.watch import look as look_at


def look(
    model: str,
    image: Path,
    text: str = "",
    *,
    plot: FigureFile | None = None,
    out: OutFile | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    relative: bool = False,
    remove_sinks: bool = False,
    fit: str | None = None,
    max_new_tokens: int = 32,
) -> dict[str, Any]:
    """Show where a Hugging Face model looks in an image, word by word.

    Args:
        model: directory of a model, or its name on the Hub.
        image: the image file.
        text: a question, or a text to compare the image with; vision models need none.
        plot: PNG file for one image per word under its attention.
        out: JSON file for what each word looks at.
        layers: numbers of the layers to use; by default all that attend to the image.
        heads: numbers of the heads to average; by default all.
        relative: divide by the attention for a neutral prompt.
        remove_sinks: remove the locations that attract attention for a neutral prompt too.
        fit: a continuous mechanism that summarises each map as ellipses, such as multimodal.
        max_new_tokens: length of the generated text.
    """
    seen = look_at(
        model,
        image,
        text,
        layers=layers,
        heads="mean" if heads is None else heads,
        relative_to=NEUTRAL if relative else None,
        remove_sinks=remove_sinks,
        max_new_tokens=max_new_tokens,
    )
    rows = describe_words(seen, fit or "multimodal")
    print_table(seen.text or model, ("word", "looks at"), [(row["word"], row["looks at"]) for row in rows])
    if plot is not None:
        save_figure(seen.plot(fit), plot)
    found = {"model": model, "text": seen.text, "words": rows}
    if out is not None:
        write_json(out, found)
    return found


def describe_words(seen: Look, mechanism: str) -> list[dict[str, str]]:
    """What each word looks at, in ellipses."""
    return [
        {"word": word.text or "image", "looks at": str(describe(word.attention.fit(mechanism)))} for word in seen.words
    ]
