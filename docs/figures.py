"""Draw every figure of the documentation from generated images and saved benchmark results, deterministically.

python docs/figures.py [name ...]
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from PIL import Image
from torch import Tensor

import foveate as fv
from foveate import plot
from foveate.lab.data.image_sources import example_photos
from foveate.lab.data.samples import Dataset, Question
from foveate.lab.data.scenes import make_scenes
from foveate.ops import cell_centres
from foveate.ops.boxes import Box

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUT = Path(__file__).resolve().parent / "images"
RESULTS = OUT.parent.parent / "benchmarks" / "results"
DPI = 110


def ellipse(long: float, short: float, degrees: float) -> Tensor:
    """Covariance with standard deviations `long` and `short`, the long axis rotated by `degrees`, y down."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rotation = torch.tensor([[c, -s], [s, c]])
    return rotation @ torch.diag(torch.tensor([long**2, short**2])) @ rotation.T


def from_moments(mean: Tensor, covariance: Tensor) -> dict[str, fv.ops.Density]:
    """One density of every family with the same mean and covariance, by title."""
    from foveate.ops.radial import scale_of_covariance

    return {
        "Gaussian": fv.Gaussian(mean, covariance),
        "beta-Gaussian, alpha 1.25": fv.BetaGaussian(mean, scale_of_covariance(covariance, 4), 1.25),
        "beta-Gaussian, alpha 1.5": fv.BetaGaussian(mean, scale_of_covariance(covariance, 2), 1.5),
        "truncated paraboloid": fv.TruncatedParaboloid(mean, scale_of_covariance(covariance, 1)),
    }


def blobs(*centres: tuple[float, float], noise: float = 0.0, seed: int = 0, grid: tuple[int, int] = (14, 14)) -> Tensor:
    """Weights (1, N) of equal round blobs, with noise in log space."""
    positions = cell_centres(*grid)
    distance2 = (positions - torch.tensor(centres)[:, None]).square().sum(-1)
    mass = torch.exp(-distance2 / (2 * 0.07**2)).sum(0)
    rough = torch.randn(len(positions), generator=torch.Generator().manual_seed(seed))
    weights = mass * torch.exp(noise * rough)
    return (weights / weights.sum())[None]


def density_families() -> Figure:
    return plot.compare(None, from_moments(torch.tensor([0.5, 0.5]), ellipse(0.17, 0.08, -25)))


def density_line() -> Figure:
    return plot.profiles(from_moments(torch.tensor([0.5]), torch.tensor([[0.12**2]])))


def density_mixture() -> Figure:
    means = torch.tensor([[0.3, 0.35], [0.68, 0.66]])
    covariances = torch.stack([ellipse(0.14, 0.06, -35), ellipse(0.08, 0.08, 0)])
    weights = torch.tensor([0.6, 0.4])
    kinds = from_moments(means, covariances)
    kept = ("Gaussian", "beta-Gaussian, alpha 1.5", "truncated paraboloid")
    return plot.compare(None, {f"mixture: {name}": fv.Mixture(kinds[name], weights) for name in kept})


def density_choice() -> Figure:
    places = ((0.27, 0.3), (0.72, 0.38), (0.42, 0.76))
    positions = cell_centres(14, 14)
    drawn: dict[str, fv.Attended | fv.ops.Density] = {}
    for count in (1, 2, 3):
        weights = blobs(*places[:count], noise=0.5, seed=count)
        drawn[f"weights, {count} planted"] = fv.Attended(torch.zeros(1, 0), weights, grid=(14, 14))
    for count in (1, 2, 3):
        fit = fv.select_mixture(blobs(*places[:count], noise=0.5, seed=count), positions)
        drawn[f"chosen, {count} planted"] = fit
    return plot.compare(None, drawn, columns=3, style=None)


def density_floor() -> Figure:
    positions, weights = cell_centres(14, 14), blobs((0.35, 0.6), noise=0.5, seed=1)
    return plot.compare(
        None,
        {
            "weights, 1 planted": fv.Attended(torch.zeros(1, 0), weights, grid=(14, 14)),
            'floor="cell"': fv.select_mixture(weights, positions),
            "floor=1e-6": fv.select_mixture(weights, positions, floor=1e-6),
        },
        top=60,
    )


def length() -> Figure:
    """Time and memory of forward and backward by the number of tokens, from the saved benchmark results."""
    from matplotlib.figure import Figure

    rows = json.loads((RESULTS / "length.json").read_text(encoding="utf-8"))["growth"]
    figure = Figure(figsize=(7, 3), layout="constrained")
    panels = dict(zip(("s", "MB"), figure.subplots(1, 2), strict=True))
    looks = {"softmax": ("o", "#0072b2"), "streamed": ("s", "#d55e00"), "dense path": ("^", "#666666")}
    names = {"softmax": "softmax, torch", "streamed": "1.5-entmax", "dense path": "1.5-entmax, all scores at once"}
    for row in (row for row in rows if row["support"] == "2 %"):
        points = [(int(key[4:]), value) for key, value in row.items() if key.startswith("N") and value == value]
        mark, colour = looks[row["way"]]
        panels[row["unit"]].plot(*zip(*points, strict=True), marker=mark, color=colour, label=names[row["way"]])
    for unit, title in (("s", "seconds"), ("MB", "MB with inputs and outputs")):
        panels[unit].set(xscale="log", yscale="log", xlabel="tokens", title=title)
        panels[unit].set_xticks([1024, 4096, 16384], ["1 024", "4 096", "16 384"])
        panels[unit].minorticks_off()
    figure.legend(
        *panels["s"].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=8
    )
    return figure


def density_cost() -> Figure:
    """Time by N, J, K and EM iterations, forward and backward, from the saved benchmark results."""
    from matplotlib.figure import Figure

    rows = json.loads((RESULTS / "continuous.json").read_text(encoding="utf-8"))["growth"]
    mixed = json.loads((RESULTS / "mixtures.json").read_text(encoding="utf-8"))["growth"]
    figure = Figure(figsize=(7, 4.6), layout="constrained")
    panels = figure.subplots(2, 2).flat
    for axes, (letter, fixed, count) in zip(panels, (("N", "J", 100), ("J", "N", 196)), strict=False):
        kept = sorted((row for row in rows if row[fixed] == count), key=lambda row: row[letter])
        for name, mark, colour in (("softmax", "o", "#0072b2"), ("sparsemax", "s", "#d55e00")):
            cost = [row[f"{name} both us"] for row in kept]
            axes.plot([row[letter] for row in kept], cost, mark + "-", color=colour, label=f"continuous {name}", ms=4)
        axes.set_xlabel(f"{'locations N' if letter == 'N' else 'basis functions J'} ({fixed} = {count})", fontsize=8)
    for axes, (against, letter, label) in zip(
        figure.axes[2:],
        (
            ("components", "K", "components K (N = 196, 10 iterations)"),
            ("iterations", "iterations", "iterations (K = 4)"),
        ),
        strict=True,
    ):
        kept = [row for row in mixed if row["against"] == against]
        at, cost = [row[letter] for row in kept], [row["best us"] for row in kept]
        axes.plot(at, cost, "^-", color="#009e73", label="weighted EM", ms=4)
        axes.set_xlabel(label, fontsize=8)
    grown = [row for row in mixed if row["against"] == "N"]
    at, cost = [row["N"] for row in grown], [row["best us"] for row in grown]
    figure.axes[0].plot(at, cost, "^-", color="#009e73", label="weighted EM, K = 4", ms=4)
    for axes in figure.axes:
        axes.set(ylim=(0, None))
        axes.set_ylabel("µs per example", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    return figure


@lru_cache(maxsize=1)
def example_question() -> tuple[np.ndarray, Question, Dataset]:
    """A generated image and a question about two objects that are far apart."""
    data = make_scenes(split="val", count=60)
    pairs = [q for q in data.questions if "two-distant" in q.tags and len(q.boxes) == 2 and len(q.text) < 60]
    question = max(pairs, key=lambda q: min((b.x1 - b.x0) * (b.y1 - b.y0) for b in q.boxes))
    return data.image(question).pixels(), question, data


def scores_at(*boxes: Box, strength: float = 6.0, noise: float = 0.4, seed: int = 0) -> Tensor:
    """Scores (1, 196) that are high inside the boxes, with noise, as a trained model might compute them."""
    positions = cell_centres(14, 14)
    scores = noise * torch.randn(196, generator=torch.Generator().manual_seed(seed))
    for x0, y0, x1, y1 in boxes:
        away = (positions - torch.tensor([(x0 + x1) / 2, (y0 + y1) / 2])) / torch.tensor([x1 - x0, y1 - y0])
        scores = torch.maximum(scores, strength * torch.exp(-5 * away.square().sum(-1).square()) + 0.5 * scores)
    return scores[None]


def attend(name: str, scores: Tensor, **options: float) -> fv.Attended:
    return fv.mechanism(name, **options).eval()(scores, torch.zeros(1, 196, 1), grid=(14, 14))


def plot_show() -> Figure:
    image, question, _ = example_question()
    attended = attend("multimodal", scores_at(*question.boxes))
    return plot.show(image, attended, truth=question.region(), title=question.text)


def plot_compare() -> Figure:
    image, question, _ = example_question()
    scores = scores_at(*question.boxes)
    names = ("softmax", "sparsemax", "continuous-softmax", "continuous-sparsemax", "multimodal", "multimodal-sparse")
    attended = {name: attend(name, scores) for name in names}
    attended["multimodal-sparse"] = attend("multimodal-sparse", scores, family="truncated-paraboloid")
    return plot.compare(image, attended, truth=question.region())


def plot_cells() -> Figure:
    image, question, _ = example_question()
    scores = scores_at(*question.boxes)
    attended = {name: attend(name, scores) for name in ("softmax", "sparsemax")}
    attended["tvmax"] = attend("tvmax", scores, smoothness=0.5)
    return plot.compare(image, attended, style="cells")


def plot_human() -> Figure:
    image, question, _ = example_question()
    human_map = blobs(*(((b.x0 + b.x1) / 2, (b.y0 + b.y1) / 2) for b in question.boxes), grid=(28, 28)).reshape(28, 28)
    return plot.show(image, attend("softmax", scores_at(*question.boxes)), truth=human_map, title="softmax")


def plot_strip() -> Figure:
    image, question, data = example_question()
    caption = next(c for c in data.captions if c.image_id == question.image_id and len(c.tokens) <= 12)
    rows = []
    for t, _ in enumerate(caption.tokens):
        boxes = [box for phrase in caption.phrases if phrase.start <= t < phrase.stop for box in phrase.boxes]
        rows.append(scores_at(*boxes, seed=t))
    attended = attend("softmax", torch.stack(rows, dim=1))
    return plot.strip(image, caption.tokens, attended, columns=5)


def plot_words() -> Figure:
    _, question, _ = example_question()
    tokens = question.text.rstrip("?").split()
    scores = torch.tensor([[3.0 if len(token) > 4 else 0.5 for token in tokens]])
    weights = fv.softmax(scores + 0.5 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(1)))
    return plot.words(tokens, fv.Attended(torch.zeros(1, 0), weights), title="attention over the question")


def plot_boxes() -> Figure:
    image, question, data = example_question()
    objects = data.objects_of(question.image_id)
    scores = torch.tensor([[2.0 if each.id in question.objects else 0.0 for each in objects]])
    attended = fv.Attended(torch.zeros(1, 0), fv.softmax(scores + 0.3 * torch.randn(scores.shape)))
    boxes = [tuple(each.box) for each in objects]
    return plot.show(image, attended, boxes=boxes, truth=question.region(), title="attention over regions")


def showcase() -> Figure:
    """The figure of the first block of the README, by that block."""
    block = re.search(r"```python\n(.*?)```", (OUT.parent.parent / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    drawn: dict[str, Any] = {}
    exec(block[1].replace('.savefig("attention.png")', ""), drawn)
    figure: Figure = drawn["figure"]
    return figure


def look() -> Figure:
    """Where a real network looks in free photographs of scikit-image and scikit-learn."""
    from matplotlib.figure import Figure

    photos = example_photos()
    drawn = []
    for name in ("rocket", "china"):
        image = Image.open(photos[name]).convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        image = image.crop((left, top, left + side, top + side)).resize((448, 448))
        attention = fv.look("dinov2-small", image).words[0].attention
        canvas: Any = FigureCanvasAgg(
            plot.compare(image, {"DINOv2": attention, "its map as ellipses": attention.fit("multimodal")})
        )
        canvas.draw()
        drawn.append(np.asarray(canvas.buffer_rgba()))
    heights = [len(each) / each.shape[1] for each in drawn]
    figure = Figure(figsize=(9, 9 * sum(heights)))
    bottom = sum(heights)
    for each, height in zip(drawn, heights, strict=True):
        bottom -= height
        axes = figure.add_axes((0, bottom / sum(heights), 1, height / sum(heights)))
        axes.imshow(each, aspect="auto")
        axes.set_axis_off()
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "density-families": density_families,
    "density-line": density_line,
    "density-mixture": density_mixture,
    "density-choice": density_choice,
    "density-floor": density_floor,
    "density-cost": density_cost,
    "length": length,
    "plot-show": plot_show,
    "plot-compare": plot_compare,
    "plot-cells": plot_cells,
    "plot-human": plot_human,
    "plot-strip": plot_strip,
    "plot-words": plot_words,
    "plot-boxes": plot_boxes,
    "showcase": showcase,
    "look": look,
}


def main(names: list[str]) -> None:
    for name in names or FIGURES:
        torch.manual_seed(0)
        buffer = BytesIO()
        FIGURES[name]().savefig(buffer, dpi=DPI)
        # A palette makes the file three times smaller; one fitted to an image would be used up by its noise.
        palette = Image.Quantize.MEDIANCUT if name.startswith(("density", "length")) else Image.Quantize.FASTOCTREE
        Image.open(buffer).convert("RGB").quantize(256, palette).save(OUT / f"{name}.png", optimize=True)
        print(OUT / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
