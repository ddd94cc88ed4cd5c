"""Draw the figure of the page on believing maps, from Scenes and an embedded run: python docs/believe_figure.py"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import foveate as fv
from foveate.lab.data import DATASETS, Dataset, Question
from foveate.plot.canvas import heat_colours
from foveate.watch import Look
from foveate.watch.faithful import OWN, RANDOM, STYLES, TRUTH, Faithfulness, region_map

OUT = Path(__file__).parent / "images" / "believe.png"
QUESTIONS = 90


@dataclass
class Example:
    """A question, its map, and what removing parts of the image costs."""

    question: Question
    seen: Look
    found: Faithfulness
    mass: float

    @property
    def gain(self) -> float:
        """Bits that the map's fifth costs above a random fifth."""
        costs = self.found.costs()
        return float(costs[OWN][0] - costs[RANDOM][0])


def measure(run: Any, data: Dataset, question: Question) -> Example:
    """Look for the answer, and remove what was looked at."""
    seen = fv.look(run, data.image(question).pixels(), question.text)
    boxes = [tuple(box) for box in question.boxes]
    found = seen.faithfulness(truth=boxes, ways=("pixels",), draws=3, batch_size=64, show=False)
    weights = seen.words[0].attention.map(28, 28)[0].double()
    return Example(question, seen, found, float((weights * (region_map(boxes, 28, 28) > 0)).sum()))


def draw(map_axes: Axes, curve_axes: Axes, one: Example, title: str) -> None:
    """The map with the true region, and the curves."""
    pixels = one.seen.image
    H, W = pixels.shape[:2]
    grey = (0.35 + 0.65 * pixels.mean(-1, keepdims=True) / 255).repeat(3, -1)
    map_axes.imshow(grey)
    weights = one.seen.words[0].attention.map(H, W)[0].numpy()
    map_axes.imshow(weights, cmap=heat_colours(), alpha=(weights / weights.max()) ** 0.5 * 0.85)
    for x0, y0, x1, y1 in one.question.boxes:
        size = ((x1 - x0) * W, (y1 - y0) * H)
        map_axes.add_patch(Rectangle((x0 * W, y0 * H), *size, fill=False, edgecolor="#1d6b4f", linewidth=2.2))
    map_axes.set_axis_off()
    share = f"{100 * one.mass:.0f} % of the map in the true region (green)"
    map_axes.set_title(f"{title}\n{one.question.text} {one.seen.words[0].text}\n{share}", fontsize=9, loc="left")
    for kind, curve in one.found.curves["pixels"].items():
        if kind in (OWN, TRUTH, RANDOM):
            cost = (curve.scores[:, :1] - curve.scores).mean(0)
            curve_axes.plot(100 * curve.fractions, cost, label=kind, **STYLES[kind])
    curve_axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    curve_axes.set(xlabel="% of the image removed, the most weighted first", ylabel="cost in bits", xlim=(0, 100))
    curve_axes.spines[["top", "right"]].set_visible(False)
    curve_axes.legend(frameon=False, fontsize=8)


def main() -> None:
    """Find the clearest case of each kind among the first questions of the validation split, and draw both."""
    torch.set_num_threads(1)
    run: Any = fv.load("scenes-vqa")
    data = DATASETS["scenes"].read(None, "val", count=30)
    known = [one for one in data.questions if one.boxes][:QUESTIONS]
    found = [measure(run, data, one) for one in known]
    right = [one for one in found if one.mass > 0.5]
    wrong = [one for one in found if one.mass < 0.35]
    unfaithful, faithful = min(right, key=lambda one: abs(one.gain)), max(wrong, key=lambda one: one.gain)
    figure = Figure(figsize=(8.4, 6.4), layout="constrained")
    axes = figure.subplots(2, 2, width_ratios=(1, 1.5))
    draw(*axes[0], unfaithful, "Right but unfaithful")
    draw(*axes[1], faithful, "Faithful but wrong")
    figure.savefig(OUT, dpi=110)
    for one in (unfaithful, faithful):
        print(one.question.text, one.seen.words[0].text, one.question.answer, f"{one.mass:.2f} {one.gain:.2f}")
        print(one.found.sentence())


if __name__ == "__main__":
    main()
