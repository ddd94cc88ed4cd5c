"""`foveate look`: where any model looks in an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import FigureFile, OutFile, print_table, save_figure
from foveate.attention import Attended
from foveate.errors import WrongValue
from foveate.io import write_json
from foveate.watch import NEUTRAL, Look, describe
from foveate.watch import look as look_at


def look(
    model: str,
    image: Path,
    text: str = "",
    *,
    more: tuple[Path, ...] = (),
    frames: int | None = None,
    plot: FigureFile | None = None,
    animate: OutFile | None = None,
    out: OutFile | None = None,
    layers: tuple[int, ...] | None = None,
    heads: tuple[int, ...] | None = None,
    best: bool = False,
    method: str | None = None,
    relative: bool = False,
    remove_sinks: bool = False,
    fit: str | None = None,
    max_new_tokens: int = 32,
) -> dict[str, Any]:
    """Show where a Hugging Face model looks in an image, in several, or in a video, word by word.

    Args:
        model: dinov2-small, directory of a model, its name on the Hub, or a run of foveate.
        image: the image file; for a video a GIF or a directory of frames.
        text: a question, or a text to compare the image with; vision models need none.
        more: further image files, which the model sees together with the first where it can.
        frames: of a video, take so many, evenly spread; by default all, at most 64.
        plot: PNG file for each word's attention over the image, or that of each frame.
        animate: GIF, or HTML page with a slider, of the frames, or of the words about one image.
        out: JSON file for what each word looks at.
        layers: numbers of the layers to use, negative ones from the last; by default the last third for vision models,
            all that attend to the image for others.
        heads: numbers of the heads to average; by default all.
        best: use the heads that foveate evaluate-attention found to ground best.
        method: attention, rollout, gradient or relevance; by default what suits the model.
        relative: divide by the attention for a neutral prompt; for models that read a text.
        remove_sinks: remove the locations that attract attention for a neutral prompt too, or that of all queries.
        fit: a continuous mechanism that summarises each map as ellipses, such as multimodal.
        max_new_tokens: length of the generated text.
    """
    if best and layers is not None:
        raise WrongValue("look: expected --best without --layers, got both; leave one out")
    seen = look_at(
        model,
        [image, *more] if more else image,
        text,
        layers="best" if best else layers,
        heads=heads,
        method=method,
        frames=frames,
        relative_to=NEUTRAL if relative else None,
        remove_sinks=remove_sinks,
        max_new_tokens=max_new_tokens,
    )
    rows = describe_words(seen, fit or "multimodal")
    print_table(seen.text or model, ("word", "looks at"), [(row["word"], row["looks at"]) for row in rows])
    if animate is not None:
        seen.animate(animate)
    if plot is not None:
        save_figure(seen.plot(fit), plot)
    found = {"model": model, "text": seen.text, "words": rows}
    if out is not None:
        write_json(out, found)
    return found


def describe_words(seen: Look, mechanism: str) -> list[dict[str, str]]:
    """What each word looks at, in ellipses; of several images, how much attention each gets and where."""
    if seen.frames is None:
        return [{"word": word.text or "image", "looks at": in_words(word.attention, mechanism)} for word in seen.words]
    rows = []
    for word in seen.words:
        for name, share, one in zip(seen.frames.names, word.shares, word.frames, strict=True):
            where = f"{100 * share:.0f} % of the attention; {in_words(one, mechanism)}" if share > 0 else "nothing"
            rows.append({"word": f"{word.text}, {name}" if word.text else name, "looks at": where})
    return rows


def in_words(attended: Attended, mechanism: str) -> str:
    """The ellipses of a map, or its peak where no ellipse stands out from the rest."""
    found = describe(attended.fit(mechanism))
    if found.count:
        return str(found)
    weights, (H, W) = attended.map()[0], attended.map().shape[-2:]
    y, x = divmod(int(weights.argmax()), W)
    even = H * W if attended.mask is None else int(attended.mask.sum())
    peak = f"most at ({(x + 0.5) / W:.2f}, {(y + 0.5) / H:.2f}), {even * float(weights.max()):.1f} times an even share"
    return f"spread out; {peak}"
