"""`foveate check`: whether a directory of your own can be used, and what is in it."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from foveate.apps.cli.terminal import FigureFile, print_table, save_figure
from foveate.errors import DataError
from foveate.lab.data.folder_check import FolderReport, check_folder
from foveate.lab.data.folder_files import ALL
from foveate.lab.data.samples import Dataset, ImageRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_REPORTED = 20
COLUMNS, LINE = 4, 42  # images per row, characters per line of a caption
NEXT = {
    "captions": ("foveate train captioning-folder --data {root}", "foveate train matching-folder --data {root}"),
    "questions": ("foveate train vqa-folder --data {root}",),
}


def check(
    data: Path, *, plot: FigureFile | None = None, samples: int = 8, allow_outside: bool = False, split_seed: int = 0
) -> FolderReport:
    """Check a directory of images and annotations: every record is read and every image opened.

    Problems are listed with file and line, and the command then fails. It also counts images and annotations.

    Args:
        data: the directory; see docs/own-data.md for its format.
        plot: PNG file with a few images and their annotations.
        samples: images in the plot.
        allow_outside: read images outside the directory too.
        split_seed: seed of the division into splits, if the data has none.
    """
    report = check_folder(data, allow_outside=allow_outside, split_seed=split_seed, progress=True)
    names = list(dict.fromkeys(name for counts in report.counts.values() for name in counts))
    rows = [(split, *(str(counts.get(name, 0)) for name in names)) for split, counts in report.counts.items()]
    print_table(str(data), ("split", *names), rows)
    _list("note", report.notes)
    _list("problem", report.problems)
    if plot is not None and report.data:
        save_figure(draw(next(iter(report.data.values())), samples), plot)
    if report.problems:
        raise DataError(
            f"check: expected data without mistakes in {data}, got {len(report.problems)}; correct what is listed above"
        )
    _suggest(report, data)
    return report


def draw(data: Dataset, count: int) -> Figure:
    """A figure of some images, spread over the data, with their captions, questions and boxes."""
    from matplotlib.patches import Rectangle

    from foveate.plot.canvas import draw_image, make_panels, read_image, set_title

    step = max(1, len(data) // max(1, count))
    images = list(data.images[::step][:count])
    pixels = [read_image("check", image.pixels()) for image in images]
    figure, panels = make_panels(len(images), COLUMNS, pixels[0])
    for axes, image, panel in zip(panels, images, pixels, strict=True):
        draw_image(axes, panel, pale=False)
        for thing in data.objects_of(image.id):
            x0, y0, x1, y1 = thing.box
            axes.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, fill=False, edgecolor="#d1495b", linewidth=1.2))
        set_title(axes, str(image.id), fill(_describe(data, image), LINE))
    return figure


def _describe(data: Dataset, image: ImageRecord) -> str:
    """The first annotation of an image in a line."""
    captions, questions = data.captions_of(image.id), data.questions_of(image.id)
    if captions:
        return captions[0].text[:120]
    if questions:
        return f"{questions[0].text[:80]} {questions[0].answer or ', '.join(questions[0].answers[:1])}"
    return ", ".join(dict.fromkeys(thing.name for thing in data.objects_of(image.id)))[:120] or "no annotation"


def _list(kind: str, lines: list[str]) -> None:
    for line in lines[:MAX_REPORTED]:
        print(f"{kind}: {line}")
    if len(lines) > MAX_REPORTED:
        print(f"and {len(lines) - MAX_REPORTED} more {kind}s")


def _suggest(report: FolderReport, root: Path) -> None:
    whole = report.counts.get("train") or report.counts.get(ALL) or {}
    for name, commands in NEXT.items():
        if whole.get(name):
            print("\n".join(f"  {command.format(root=root)}" for command in commands))
