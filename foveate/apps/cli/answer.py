"""`foveate answer` and `foveate caption`: what a run says about one image, or about many, with tables and sheets."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from foveate.apps.cli.terminal import Between, Count, FigureFile, OutFile, print_table, save_figure
from foveate.errors import DataError
from foveate.io import ProgressBar, atomic_write, decode_image
from foveate.lab import hub
from foveate.lab.tasks.captioning.predictor import GeneratedCaption
from foveate.lab.tasks.vqa.predictor import Answer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What the numbers are: of independent scores several may be high, and they are no parts of a whole.
SCORES = {"independent": "score, each on its own", "shares": "score, all add up to 1"}
MAX_BEAMS = 1000  # hypotheses at the same time, each with the state of the decoder
MOST_DRAWN, COLUMNS, CELL = 60, 3, 480  # images on a sheet, of this width in pixels
TABLES = (".csv", ".jsonl", ".html")


def answer(
    run: str,
    image: Path,
    question: str,
    changes: tuple[str, ...] = (),
    *,
    also: tuple[Path, ...] = (),
    top: Count = 5,
    plot: FigureFile | None = None,
    out: OutFile | None = None,
) -> Answer | list[dict[str, Any]]:
    """Answer a question about an image, or about every image of a directory.

    Args:
        run: directory of a run, or name of an embedded one.
        image: the image file, or a directory of images.
        question: in plain words.
        changes: fields of the recipe to change, as field=value; mechanism=multimodal attends with mixtures in a model
            that was trained with another mechanism.
        also: further images and directories.
        top: number of answers to show.
        plot: PNG file for the image with the attention over it; of several images one sheet.
        out: CSV, JSONL or HTML file with one row per image.
    """
    check_table("answer", out)
    predictor = hub.load_for("answer", run, "answer", "foveate train vqa-mcan-scenes", changes=changes)
    images = [image, *also]

    def ask(path: Path) -> Answer:
        found: Answer = predictor.answer(path, question, top=top)
        return found

    def row(found: Answer) -> dict[str, Any]:
        return {"question": question, "answer": found.text, "confidence": round(found.confidence, 4)}

    def figure(path: Path, found: Answer) -> Figure:
        return answer_figure(path, question, found)

    if is_many(images) or out is not None:
        return say_many("answer", find_images("answer", images), ask, row, figure, out, plot)
    found = ask(image)
    print_table(question, ("answer", SCORES[found.scores_are]), [(text, f"{value:.3f}") for text, value in found.best])
    if found.warning:
        print(found.warning, file=sys.stderr)
    if found.unknown:
        print(f"words that the model does not know: {', '.join(found.unknown)}", file=sys.stderr)
    if plot is not None:
        save_figure(figure(image, found), plot)
    return found


def caption(
    run: str,
    image: Path,
    changes: tuple[str, ...] = (),
    *,
    also: tuple[Path, ...] = (),
    beams: Annotated[int, Between(1, MAX_BEAMS)] | None = None,
    length_penalty: float | None = None,
    no_repeat: Count | None = None,
    samples: Annotated[int, Between(0, MAX_BEAMS)] = 0,
    temperature: float = 1.0,
    seed: int = 0,
    plot: FigureFile | None = None,
    out: OutFile | None = None,
) -> GeneratedCaption | list[dict[str, Any]]:
    """Describe an image in a sentence, or every image of a directory.

    Args:
        run: directory of a run, or name of an embedded one.
        image: the image file, or a directory of images.
        changes: fields of the recipe to change, as field=value; mechanism=tvmax attends with TVmax in a model that was
            trained with another mechanism.
        also: further images and directories.
        beams: size of the beam search, 1 is greedy; by default that of the run.
        length_penalty: 0 ranks sentences by probability, 1 by the mean over words; by default that of the run.
        no_repeat: never repeat a sequence of this many words.
        samples: also sample this many captions at random, of a single image.
        temperature: sampling temperature; values below 1 favour likely words.
        seed: seed of the samples.
        plot: PNG file with one panel per word, each under the attention for that word; of several images one sheet.
        out: CSV, JSONL or HTML file with one row per image.
    """
    check_table("caption", out)
    predictor = hub.load_for("caption", run, "caption", "foveate train captioning-lstm-scenes", changes=changes)
    images = [image, *also]

    def write(path: Path) -> GeneratedCaption:
        found: GeneratedCaption = predictor.caption(
            path, beams=beams, length_penalty=length_penalty, no_repeat=no_repeat
        )
        return found

    def row(found: GeneratedCaption) -> dict[str, Any]:
        return {"caption": found.text, "log-probability": round(found.best[0][1], 4)}

    def overview(path: Path, found: GeneratedCaption) -> Figure:
        from foveate.plot import show

        seen = found.attention.mean_over_queries() if found.words else found.attention
        return show(decode_image(path), seen, title=found.text)

    if is_many(images) or out is not None:
        return say_many("caption", find_images("caption", images), write, row, overview, out, plot)
    found = write(image)
    print(found.text)
    if found.warning:
        print(found.warning, file=sys.stderr)
    _show(str(image), list(found.best))
    if samples:
        _show("samples", predictor.sample(image, samples, temperature=temperature, seed=seed))
    if plot is not None:
        draw_words(image, found, plot)
    return found


def answer_figure(image: Path, question: str, found: Answer) -> Figure:
    """The image, and beside it the image under the attention; or every step of a model that takes several (r-DAN)."""
    from foveate.plot import show

    if len(found.steps) > 1:
        from foveate.lab.papers.tables.drawing import draw_steps
        from foveate.lab.papers.tables.paper_figures import answer_steps

        return draw_steps([answer_steps(decode_image(image), found)], head=question)
    return show(decode_image(image), found.attention, title=f"{question}  {found.text} ({found.confidence:.2f})")


def draw_words(image: Path, found: GeneratedCaption, out: Path) -> None:
    """Write one panel per word, each under the attention for that word, to a PNG file."""
    from foveate.plot import strip

    if not found.words:
        raise DataError(f"caption: expected words to draw, got an empty caption for {image}; train the run further")
    save_figure(strip(decode_image(image), found.words, found.attention, original=True), out)


def _show(title: str, captions: list[tuple[str, float]]) -> None:
    print_table(title, ("caption", "probability"), [(text, f"{math.exp(value):.2g}") for text, value in captions])


def is_many(images: Sequence[Path]) -> bool:
    """Whether these stand for more than one image file."""
    return len(images) > 1 or images[0].is_dir()


def find_images(where: str, images: Iterable[Path]) -> list[Path]:
    """The image files, those in directories sorted; raises DataError if a path does not exist, or holds no image."""
    from foveate.lab.search import list_images

    found: list[Path] = []
    for path in images:
        if not path.exists():
            raise DataError(f"{where}: expected an image or a directory, got {path}, which does not exist")
        found += map(Path, list_images(path)) if path.is_dir() else [path]
    return found


def check_table(where: str, out: Path | None) -> None:
    """Raises DataError if the rows of images cannot be written as the file says."""
    if out is not None and out.suffix.lower() not in TABLES:
        raise DataError(f"{where}: expected --out ending in {', '.join(TABLES)}, got {out}; use for instance out.csv")


def say_many(
    where: str,
    images: Sequence[Path],
    say: Callable[[Path], Any],
    row: Callable[[Any], dict[str, Any]],
    figure: Callable[[Path, Any], Figure],
    out: Path | None,
    plot: Path | None,
) -> list[dict[str, Any]]:
    """What a run says about every image, as rows; an image that cannot be read has a row that says so.

    Args:
        where: the command.
        images: the files.
        say: what the run says about one.
        row: that as columns.
        figure: that as a figure.
        out: CSV, JSONL or HTML file of the rows.
        plot: PNG file of the first images, each under its attention.
    """
    rows: list[dict[str, Any]] = []
    drawn: list[tuple[dict[str, Any], Figure]] = []
    draws = plot is not None or (out is not None and out.suffix.lower() == ".html")
    with ProgressBar(where, len(images), unit="image", show=True) as bar:
        for path in images:
            try:
                found = say(path)
                rows.append({"image": str(path), **row(found), "warning": found.warning or ""})
                if draws and len(drawn) < MOST_DRAWN:
                    drawn.append((rows[-1], figure(path, found)))
            except DataError as error:
                rows.append({"image": str(path), "warning": str(error)})
            bar.update()
    if all(len(each) == 2 for each in rows):
        raise DataError(f"{where}: expected an image that can be read, got none; the first: {rows[0]['warning']}")
    print_table(
        f"{len(rows)} images", ("image", where, "warning"),
        [(each["image"], str(each.get(where, "")), each["warning"]) for each in rows],
    )  # fmt: skip
    if plot is not None:
        with atomic_write(plot) as temporary:
            sheet([one for _, one in drawn]).save(temporary, format="PNG")
    if out is not None:
        write_rows(out, rows, drawn)
        print(f"{len(rows)} rows in {out}")
    return rows


def write_rows(out: Path, rows: Sequence[dict[str, Any]], drawn: Sequence[tuple[dict[str, Any], Figure]]) -> None:
    """Write rows as CSV, JSONL or a page, by the suffix."""
    kind = out.suffix.lower()
    heads = list(dict.fromkeys(name for row in rows for name in row))
    if kind == ".csv":
        text = io.StringIO()
        table = csv.DictWriter(text, heads, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        content = text.getvalue()
    elif kind == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        content = html_rows(out.stem, heads, rows, drawn)
    with atomic_write(out) as temporary:
        temporary.write_text(content, encoding="utf-8")


def html_rows(
    title: str, heads: Sequence[str], rows: Sequence[dict[str, Any]], drawn: Sequence[tuple[dict[str, Any], Figure]]
) -> str:
    """One self-contained page: a table to sort, and the images under their attention."""
    from foveate.apps.report.page import html_cell, html_page, html_sheet, html_table, html_text

    def parts() -> Iterator[str]:
        yield html_text("h1", title)
        cells = [[html_cell("td", str(row.get(head, ""))) for head in heads] for row in rows]
        yield html_table([html_cell("th", head) for head in heads], cells)
        for row, figure in drawn:
            yield html_text("h3", Path(row["image"]).name)
            yield html_sheet(figure, row["image"])

    return html_page(title, parts())


def sheet(figures: Sequence[Figure]) -> Any:
    """Figures as one image, in rows of COLUMNS."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    cells = []
    for figure in figures:
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        one = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        cells.append(one.resize((CELL, max(1, round(one.height * CELL / one.width)))))
    rows = [cells[start : start + COLUMNS] for start in range(0, len(cells), COLUMNS)]
    made = Image.new("RGB", (CELL * min(COLUMNS, len(cells)), sum(max(c.height for c in row) for row in rows)), "white")
    top = 0
    for row in rows:
        for place, cell in enumerate(row):
            made.paste(cell, (place * CELL, top))
        top += max(cell.height for cell in row)
    return made
