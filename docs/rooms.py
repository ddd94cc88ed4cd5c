"""Draw the floors of foveate, their packages and the imports between them, as docs/images/rooms.png.

    python docs/rooms.py

An arrow is drawn for every import between packages that does not follow from a longer path of imports. A long arrow
passes between the boxes of the rows that it crosses, where the row leaves a gap for it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

HERE = Path(__file__).parent
ROOT = HERE.parent / "foveate"
OUT = HERE / "images" / "rooms.png"
SMALL = ("errors", "signals", "registry", "checks", "io")
# From the ground up: the title of a floor, and its packages.
FLOORS: dict[str, dict[str, str]] = {
    "the library: use attention, see it, measure it (torch, numpy, pillow, matplotlib)": {
        "ops": "the mathematics,\npure functions",
        "attention": "mechanisms over\nscores and values",
        "metrics": "of maps and means",
        "plot": "where a model looks",
        "watch": "any torch model",
        "hf": "Hugging Face models",
        "export": "other runtimes",
    },
    "the lab: trains and serves the systems of the papers (foveate[lab])": {
        "lab.features": "features of\na batch of images",
        "lab.losses": "training\nobjectives",
        "lab.data": "samples, formats,\nfeature store",
        "lab.metrics": "answers, captions,\nretrieval",
        "lab.encoders": "images and text\nto vectors",
        "lab.models": "MCAN, DAN, SCAN,\nBFAN, captioner",
        "lab.tasks": "vqa, captioning,\nmatching",
        "lab.search": "nearest neighbours,\nre-ranking",
        "lab.train": "recipe, loop,\nruns",
        "lab.recipes": "settings of\ntrainings",
        "lab.hub": "load and\nshare runs",
        "lab.papers": "tables, checkpoints,\nratings",
    },
    "the apps: what people start": {
        "apps.report": "HTML report\nof runs",
        "apps.studio": "web page",
        "apps.cli": "command line",
    },
}
# A part of a package that another one imports belongs to the lower of the two.
PARTS = {"lab.papers.paper_recipes": "lab.recipes"}
WIDTH, HEIGHT, LANE, GAP, ROW = 1.75, 0.74, 0.16, 0.3, 1.24
INK, PAPER, LINE, BANDS = "#10131a", "#ffffff", "#5d6875", ("#eef4ee", "#eef1f7", "#f7f1ea")
ROOMS = [room for rooms in FLOORS.values() for room in rooms]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS.values()) for room in rooms}


def room_of(module: str) -> str | None:
    """The package of a module such as "foveate.lab.data.files"; None for the small modules."""
    name = module.removeprefix("foveate.")
    for part, room in PARTS.items():
        if name.startswith(part):
            return room
    return next((room for room in ROOMS if name == room or name.startswith(f"{room}.")), None)


def imports() -> dict[str, set[str]]:
    """The packages that each package imports, without the small modules."""
    arrows: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in sorted(ROOT.rglob("*.py")):
        room = room_of(".".join(("foveate", *path.relative_to(ROOT).with_suffix("").parts)))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            else:
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found = {room_of(name) for name in names if name.startswith("foveate.")}
            if room is not None:
                arrows[room] |= {target for target in found if target not in (None, room)}
    return arrows


def reduce_arrows(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that do not follow from a longer path."""

    def reached(room: str) -> set[str]:
        return arrows[room].union(*(reached(target) for target in arrows[room]))

    return {room: own - set().union(*(reached(target) for target in own)) for room, own in arrows.items()}


def levels(arrows: Mapping[str, set[str]]) -> dict[str, int]:
    """The row of each package from the ground: above what it imports, and above all rows of lower floors."""
    found: dict[str, int] = {}
    base = 0
    for floor, rooms in enumerate(FLOORS.values()):
        for room in sorted(rooms, key=lambda one: len(_below(arrows, one))):
            found[room] = max([base, *(1 + found[t] for t in arrows[room] if FLOOR_OF[t] == floor)])
        base = 1 + max(found[room] for room in rooms)
    return found


def _below(arrows: Mapping[str, set[str]], room: str) -> set[str]:
    return arrows[room].union(*(_below(arrows, target) for target in arrows[room]))


def lay_out(arrows: Mapping[str, set[str]]) -> tuple[dict[str, tuple[float, int]], list[list[str]]]:
    """The place (x, row) of every box and of the gaps that long arrows pass, and the arrows as lists of places."""
    level, paths = levels(arrows), []
    rows: dict[int, list[str]] = {}
    for room, row in level.items():
        rows.setdefault(row, []).append(room)
    for room, targets in reduce_arrows(arrows).items():
        for target in sorted(targets):
            lanes = [f"{room}>{target}@{row}" for row in range(level[room] - 1, level[target], -1)]
            for lane in lanes:
                rows[int(lane.rpartition("@")[2])].append(lane)
            paths.append([room, *lanes, target])
    beside: dict[str, list[str]] = {}
    for path in paths:
        for upper, lower in pairwise(path):
            beside.setdefault(upper, []).append(lower)
            beside.setdefault(lower, []).append(upper)
    x = {name: float(place) for names in rows.values() for place, name in enumerate(names)}
    for turn in range(60):  # every place moves to the middle of those it is joined to, and rows are spread again
        for row in sorted(rows, reverse=turn % 2 == 0):
            wanted = {
                name: sum(x[n] for n in beside.get(name, [name])) / len(beside.get(name, [name])) for name in rows[row]
            }
            x |= _spread(sorted(rows[row], key=lambda name: wanted[name]), wanted)
    left = min(value - _width(name) / 2 for name, value in x.items())
    return {name: (x[name] - left, row) for row, names in rows.items() for name in names}, paths


def _width(name: str) -> float:
    return LANE if "@" in name else WIDTH


def _spread(names: list[str], wanted: Mapping[str, float]) -> dict[str, float]:
    """Places in this order, near those that are wanted, that do not overlap."""
    found: list[float] = []
    for name in names:
        least = found[-1] + (_width(names[len(found) - 1]) + _width(name)) / 2 + GAP if found else -1e9
        found.append(max(least, wanted[name]))
    shift = sum(wanted[name] - place for name, place in zip(names, found, strict=True)) / len(names)
    return {name: place + shift for name, place in zip(names, found, strict=True)}


def draw() -> Figure:
    """The figure."""
    arrows = imports()
    places, paths = lay_out(arrows)
    width = max(x + _width(name) / 2 for name, (x, _) in places.items()) + 2 * GAP
    rows = 1 + max(row for _, row in places.values())
    figure = Figure(figsize=(width, rows * ROW + 1.1), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    bottom = 1.0

    def height_of(row: int) -> float:
        return bottom + row * ROW + ROW / 2 - 0.06

    for floor, (title, rooms) in enumerate(FLOORS.items()):
        own = [places[room][1] for room in rooms]
        y, tall = bottom + min(own) * ROW, (1 + max(own) - min(own)) * ROW
        axes.add_patch(Rectangle((0.08, y + 0.03), width - 0.16, tall - 0.06, facecolor=BANDS[floor], edgecolor="none"))
        axes.text(0.2, y + tall - 0.1, title, ha="left", va="top", fontsize=8.5, style="italic", color=INK)
    for path in paths:
        points = []
        for name in path:
            x, row = places[name]
            y = height_of(row)
            points += [(x + GAP, y + HEIGHT / 2), (x + GAP, y - HEIGHT / 2)]
        points = points[1:-1]  # from the lower edge of the first box to the upper edge of the last one
        axes.plot(*zip(*points[:-1], strict=True), color=LINE, linewidth=0.9, zorder=1)
        axes.add_patch(
            FancyArrowPatch(
                points[-2],
                points[-1],
                arrowstyle="-|>",
                mutation_scale=9,
                color=LINE,
                linewidth=0.9,
                shrinkA=0,
                shrinkB=0,
            )
        )
    abouts = {room: about for rooms in FLOORS.values() for room, about in rooms.items()}
    for name, (x, row) in places.items():
        if name in abouts:
            _box(axes, x + GAP, height_of(row), WIDTH, name, abouts[name])
    _box(axes, width / 2, 0.5, width - 0.4, "   ".join(SMALL), "small, for all packages")
    axes.set(xlim=(0, width), ylim=(0, figure.get_figheight()))
    axes.axis("off")
    return figure


def _box(axes: Any, x: float, y: float, width: float, title: str, about: str) -> None:
    corner = (x - width / 2, y - HEIGHT / 2)
    style = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": PAPER, "edgecolor": LINE, "zorder": 2}
    axes.add_patch(FancyBboxPatch(corner, width, HEIGHT, **style))
    axes.text(x, y + 0.2, title, ha="center", va="center", fontsize=10, weight="bold", color=INK, zorder=3)
    axes.text(x, y - 0.12, about, ha="center", va="center", fontsize=7.5, color=INK, zorder=3)


if __name__ == "__main__":
    draw().savefig(OUT, dpi=110)
    print(OUT)
