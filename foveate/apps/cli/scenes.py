"""`foveate scenes`: generate the embedded dataset, summarise and show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import wrap
from time import perf_counter

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

from foveate.apps.cli.terminal import DPI, Count, Directory, FigureFile, save_figure
from foveate.lab.data.samples import Caption, Dataset, Question
from foveate.lab.data.scenes import SPLITS, make_scenes
from foveate.ops.boxes import Box

ZOOM = 2
MARGIN = 10
TEXT = 13
INK = (30, 30, 30)
BOXES = ((200, 30, 30), (20, 90, 200), (20, 130, 60))


def scenes(
    out: Directory | None = None,
    *,
    show: FigureFile | None = None,
    size: str = "scenes",
    count: Count | None = None,
    seed: int = 0,
) -> list[str]:
    """Generate scenes, print a summary, and store or show them.

    Args:
        out: directory for the images, one .npy file per split, to pass to other commands as `--data`. Without it the
            images are rendered but not stored.
        show: PNG file for a contact sheet of the validation split with question, answer, region and caption.
        size: "scenes" or "scenes-large".
        count: images per split, instead of the numbers of `size`.
        seed: each seed yields different images.
    """
    start, lines = perf_counter(), []
    for split in SPLITS:
        data = make_scenes(size, split, count=count, seed=seed, root=out)
        if out is None:
            for image in data.images:
                image.pixels()
        lines.append(summary(data))
        print(lines[-1])
    print(f"generated in {perf_counter() - start:.1f} s" + (f", images in {out}" if out else ""))
    if show is not None:
        sheet = contact_sheet(make_scenes(size, "val", count=min(12, len(data)), seed=seed))
        figure = Figure(figsize=(sheet.width / DPI, sheet.height / DPI))
        figure.figimage(np.asarray(sheet))
        save_figure(figure, show)
        print(f"contact sheet in {show}")
    return lines


def summary(data: Dataset) -> str:
    """Return one line with the number of images, questions by answer type and tag, captions, and the fingerprint.

    >>> summary(make_scenes(split="val", count=1))  # doctest: +ELLIPSIS
    'scenes val: 1 images, 8 questions (yes/no 3, number 1, other 4; small ..., two-distant ...), 5 captions, ...'
    """
    types = Counter(question.answer_type for question in data.questions)
    tags = Counter(tag for question in data.questions for tag in question.tags)
    by_type = ", ".join(f"{name} {types[name]}" for name in ("yes/no", "number", "other"))
    by_tag = ", ".join(f"{name} {tags[name]}" for name in ("small", "two-distant"))
    return (
        f"{data.name} {data.split}: {len(data)} images, {len(data.questions)} questions ({by_type}; {by_tag}), "
        f"{len(data.captions)} captions, fingerprint {data.fingerprint()}"
    )


def contact_sheet(data: Dataset, columns: int = 3) -> Image.Image:
    """Draw one panel per image: left the boxes of a caption, right the region of a question, both written below.

    The panels cycle through the kinds of questions, so that a dozen of them shows every kind.
    """
    shown: Counter[str | None] = Counter()
    panels = []
    for position, image in enumerate(data.images):
        question = min(data.questions_of(image.id), key=lambda q: shown[q.question_type])
        shown[question.question_type] += 1
        captions = data.captions_of(image.id)
        panels.append(_panel(image.pixels(), question, captions[position % len(captions)]))
    width, height = panels[0].size if panels else (1, 1)
    rows = -(-len(panels) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), "white")
    for position, panel in enumerate(panels):
        sheet.paste(panel, (position % columns * width, position // columns * height))
    return sheet


def _panel(pixels: np.ndarray, question: Question, caption: Caption) -> Image.Image:
    side = pixels.shape[0] * ZOOM
    panel = Image.new("RGB", (2 * side + 3 * MARGIN, side + 2 * MARGIN + 6 * (TEXT + 4)), "white")
    panel.paste(_with_boxes(pixels, caption), (MARGIN, MARGIN))
    panel.paste(_with_region(pixels, question), (side + 2 * MARGIN, MARGIN))
    pen = ImageDraw.Draw(panel)
    top = side + MARGIN + 6
    for line in wrap(question.text, 62):
        pen.text((MARGIN, top), line, fill=INK, font=ImageFont.load_default(TEXT))
        top += TEXT + 4
    notes = ", ".join([str(question.question_type), *sorted(question.tags)])
    pen.text((MARGIN, top), f"{question.answer}   [{notes}]", fill=(20, 110, 50), font=ImageFont.load_default(TEXT))
    _write_caption(pen, caption, (MARGIN, top + TEXT + 8), panel.width - 2 * MARGIN)
    return panel


def _write_caption(pen: ImageDraw.ImageDraw, caption: Caption, at: tuple[int, int], width: int) -> None:
    """Write the words of a caption, those of a phrase in the colour of its boxes."""
    font = ImageFont.load_default(TEXT)
    left, top = at
    for position, word in enumerate(caption.tokens):
        inside = [n for n, phrase in enumerate(caption.phrases) if phrase.start <= position < phrase.stop]
        linked = bool(inside) and bool(caption.phrases[inside[0]].boxes)
        step = int(pen.textlength(word + " ", font=font)) + 1
        if left + step > at[0] + width:
            left, top = at[0], top + TEXT + 4
        pen.text((left, top), word, fill=BOXES[inside[0] % len(BOXES)] if linked else INK, font=font)
        left += step


def _zoomed(pixels: np.ndarray) -> Image.Image:
    return Image.fromarray(pixels.repeat(ZOOM, axis=0).repeat(ZOOM, axis=1))


def _with_boxes(pixels: np.ndarray, caption: Caption) -> Image.Image:
    image = _zoomed(pixels)
    for n, phrase in enumerate(caption.phrases):
        _draw_boxes(image, phrase.boxes, BOXES[n % len(BOXES)])
    return image


def _draw_boxes(image: Image.Image, boxes: Sequence[Box], colour: tuple[int, int, int]) -> None:
    pen = ImageDraw.Draw(image)
    for box in boxes:
        x0, y0, x1, y1 = (round(edge * side) for edge, side in zip(box, image.size * 2, strict=True))
        pen.rectangle((x0 - 3, y0 - 3, x1 + 2, y1 + 2), outline="white", width=4)
        pen.rectangle((x0 - 2, y0 - 2, x1 + 1, y1 + 1), outline=colour, width=2)


def _with_region(pixels: np.ndarray, question: Question) -> Image.Image:
    """Draw the image in faint grey except for the region of the question."""
    if question.region is None:
        return _zoomed(pixels)
    grey = pixels.mean(axis=2, keepdims=True) * 0.35 + 140
    return _zoomed(np.where(question.region()[..., None], pixels, grey).astype(np.uint8))
