"""Draw the packages of foveate and the imports between them, as docs/images/rooms.png.

    python docs/rooms.py

An arrow is drawn for every import between packages that does not follow from a longer path of imports.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

HERE = Path(__file__).parent
ROOT = HERE.parent / "foveate"
OUT = HERE / "images" / "rooms.png"
COMMON = ("errors", "registry", "checks", "io", "features")
ABOUT = {
    "ops": "the mathematics,\npure functions",
    "attention": "mechanisms over\nscores and values",
    "data": "samples, formats,\nfeature store",
    "losses": "training\nobjectives",
    "encoders": "images and text\nto vectors",
    "metrics": "evaluation",
    "plot": "where a model looks",
    "models": "MCAN, DAN, SCAN,\nBFAN, captioner",
    "tasks": "vqa, captioning,\nmatching",
    "search": "nearest neighbours,\nre-ranking",
    "train": "recipe, loop,\nruns",
    "recipes": "settings of\ntrainings",
    "hub": "load and\nshare runs",
    "report": "HTML report\nof runs",
    "watch": "any torch model",
    "hf": "Hugging Face models",
    "cli": "command line",
    "studio": "web page",
    "tables": "the papers' tables",
    "rating": "studies with\nhuman raters",
    "authors": "published\ncheckpoints",
    "export": "other runtimes",
}
WIDTH, HEIGHT, GAP = 1.7, 0.72, 0.55
# Columns that keep long arrows clear of other boxes; packages without one are centred in their row.
COLUMNS = {"cli": 2.5, "studio": 1.0, "report": 1.6, "hub": 1.6, "recipes": 3.0, "train": 2.0, "search": 0.0}
COLUMNS |= {"tasks": 2.0, "models": 1.0, "plot": 0.0, "attention": 0.0, "encoders": 1.0, "losses": 2.0, "metrics": 3.0}
COLUMNS |= {"rating": 0.5, "authors": 0.5, "hf": 3.2, "export": 4.0, "tables": 3.0}
INK, PAPER, LINE = "#10131a", "#f5f6f8", "#7d8794"


def imports() -> dict[str, set[str]]:
    """The packages that each package imports, without the common modules."""
    arrows: dict[str, set[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if room.startswith("__") or room in COMMON:
            continue
        found = arrows.setdefault(room, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module] if node.module != "foveate" else [f"foveate.{a.name}" for a in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            found |= {name.split(".")[1] for name in names if name.startswith("foveate.")}
    return {room: {t for t in found if t in arrows and t != room} for room, found in arrows.items()}


def reduce_arrows(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from a longer path."""

    def reached(room: str) -> set[str]:
        return arrows[room].union(*(reached(target) for target in arrows[room]))

    return {room: own - set().union(*(reached(target) for target in own)) for room, own in arrows.items()}


def levels(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """The length of the longest path down from each package."""

    def level(room: str) -> int:
        return 1 + max(map(level, arrows[room]), default=-1)

    return {room: level(room) for room in arrows}


def draw() -> Figure:
    arrows = imports()
    rows: dict[int, list[str]] = {}
    for room, level in levels(arrows).items():
        rows.setdefault(level, []).append(room)
    width = max(map(len, rows.values())) * (WIDTH + GAP)
    figure = Figure(figsize=(width, len(rows) * (HEIGHT + GAP) + 0.9), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    places = {}
    for level, names in rows.items():
        for position, name in enumerate(names):
            centred = width / (2 * (WIDTH + GAP)) - 0.5 + position - (len(names) - 1) / 2
            x = (COLUMNS.get(name, centred) + 0.5) * (WIDTH + GAP)
            places[name] = (x, 0.9 + level * (HEIGHT + GAP) + HEIGHT / 2)
    for room, targets in reduce_arrows(arrows).items():
        for target in targets:
            (x0, y0), (x1, y1) = places[room], places[target]
            start, stop = (x0, y0 - HEIGHT / 2), (x1, y1 + HEIGHT / 2)
            axes.add_patch(FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=9, color=LINE, linewidth=0.9))
    for name, (x, y) in places.items():
        _box(axes, x, y, WIDTH, name, ABOUT.get(name, ""))
    _box(axes, width / 2, 0.42, width - GAP, ", ".join(COMMON), "for all packages")
    axes.set(xlim=(0, width), ylim=(0, figure.get_figheight()))
    axes.axis("off")
    return figure


def _box(axes, x: float, y: float, width: float, title: str, about: str) -> None:
    corner = (x - width / 2, y - HEIGHT / 2)
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": PAPER, "edgecolor": LINE}
    axes.add_patch(FancyBboxPatch(corner, width, HEIGHT, **style))
    axes.text(x, y + 0.2, title, ha="center", va="center", fontsize=10, weight="bold", color=INK)
    axes.text(x, y - 0.12, about, ha="center", va="center", fontsize=7.5, color=INK)


if __name__ == "__main__":
    draw().savefig(OUT, dpi=110)
    print(OUT)
