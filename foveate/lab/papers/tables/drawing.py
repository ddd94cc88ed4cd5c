"""Figures as the papers draw them: mechanisms side by side, captions word by word, steps over words and image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from foveate.attention import Attended
from foveate.ops.density import Density
from foveate.ops.divergence import js_divergence
from foveate.plot.canvas import draw_image, heat_scale, make_panels, read_image, set_title
from foveate.plot.figures import Drawing, draw_panel, prepare_drawing
from foveate.plot.heat import ExampleIndex, select_example, summarise, truth_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FUNCTION_WORDS = frozenset(
    (
        "a",
        "an",
        "and",
        "are",
        "at",
        "by",
        "from",
        "in",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "that",
        "the",
        "there",
        "to",
    )
)
INK, FONT = "#1b1f24", 9.0
FAINTEST = 0.12  # brightness of an image, and darkness of a word, that gets no attention
CELL, GAP, TEXT, LETTER = 2.6, 0.2, 0.19, 0.0755  # inches: a panel, between panels, a line, a letter
GREENS = (0.0, 0.42, 0.16)


@dataclass(frozen=True, eq=False)
class Shown:
    """One panel: a title, and the attention under it; None for the image alone."""

    title: str
    attended: Attended | None


@dataclass(frozen=True, eq=False)
class AttentionStep:
    """One step of attention over an image, over words, or over both.

    Attributes:
        image: of batch size one; None where only words are attended to.
        words: a weight for every word; empty where only the image is attended to.
    """

    image: Attended | None
    words: tuple[float, ...] = ()


def draw_maps(
    image: np.ndarray,
    panels: Sequence[Shown],
    *,
    columns: int,
    truth: torch.Tensor | None = None,
    boxes: torch.Tensor | None = None,
    head: str = "",
) -> Figure:
    """Mechanisms side by side, with the human attention map or true region last if there is one.

    Below each panel is what `fv.plot.show` says, with the Jensen-Shannon divergence from the truth in bits.

    Args:
        image: pixels.
        panels: in the order of the paper.
        columns: panels per row.
        truth: (H, W), booleans for a region, otherwise a distribution.
        boxes: (N, 4) of regions, for attention without a grid.
        head: above the figure, such as the question.
    """
    pixels = read_image("reproduce", image)
    shown = [None if one.attended is None else _prepared(one.attended, boxes) for one in panels]
    figure, axes = make_panels(len(panels) + (truth is not None), columns, pixels)
    scale = heat_scale(max([drawing.peak for drawing in shown if drawing is not None] or [1.0]))
    for place, panel, drawing in zip(axes, panels, shown, strict=False):
        if drawing is None:
            draw_image(place, pixels, pale=False)
            set_title(place, panel.title)
        else:
            draw_panel(place, pixels, drawing, scale)
            _mark_means(place, drawing.one.density)
            set_title(place, panel.title, summarise(drawing.one, truth))
    if truth is not None:
        known = Attended(torch.zeros(1, 1), truth_map(truth, *truth.shape).reshape(1, -1), grid=tuple(truth.shape))
        draw_panel(axes[-1], pixels, _prepared(known), scale)
        set_title(axes[-1], "true region" if truth.dtype == torch.bool else "human attention")
    return _headed(figure, head)


def divergence(attended: Attended, truth: torch.Tensor) -> float:
    """Jensen-Shannon divergence in bits between an attention map and a region or human map (H, W)."""
    return float(js_divergence(attended.map(*truth.shape)[0].float(), truth_map(truth, *truth.shape)))


def _mark_means(axes: Axes, density: Density | None) -> None:
    """Black dots at the means, as in Farinhas et al. 2021, figure 1."""
    if density is None:
        return
    components = getattr(density, "components", density)
    means = components.mean.reshape(-1, components.mean.shape[-1])
    weights = getattr(density, "weights", torch.ones(len(means)))
    alive = means[weights.reshape(-1) > 0.01]
    axes.plot(alive[:, 0].numpy(), alive[:, 1].numpy(), "o", color="black", markersize=4, zorder=9)


def draw_captions(image: np.ndarray, captions: Mapping[str, tuple[Sequence[str], Attended]], *, most: int) -> Figure:
    """One row per mechanism, one panel per word: the image in grey under green, the darker the more attention.

    As Martins et al. 2020 shade: white, that is no green, for zero attention.

    Args:
        image: pixels.
        captions: by mechanism, the words and the attention with one query per word.
        most: panels per row; of longer captions the last words that name something.
    """
    pixels = read_image("reproduce", image)
    rows = {name: (list(words), seen, _chosen_words(words, most)) for name, (words, seen) in captions.items()}
    columns = max(len(places) for _, _, places in rows.values())
    figure, axes = make_panels(len(rows) * columns, columns, pixels)
    for row, (name, (words, seen, places)) in enumerate(rows.items()):
        maps = seen.map()[0, : len(words)]
        top = float(maps.max())
        for column in range(columns):
            panel = axes[row * columns + column]
            if column >= len(places):
                panel.remove()
                continue
            draw_image(panel, pixels, pale=True)
            shade = torch.zeros(*maps.shape[-2:], 4)
            shade[..., :3] = torch.tensor(GREENS)
            shade[..., 3] = 0.85 * (maps[places[column]] / top).sqrt()
            panel.imshow(shade.numpy(), extent=(0, 1, 1, 0), interpolation="nearest", zorder=2)
            set_title(panel, words[places[column]], f"{name}: {' '.join(words)}" if column == 0 else "")
            panel.xaxis.label.set_horizontalalignment("left")
            panel.xaxis.label.set_x(0.0)
    return figure


def _chosen_words(words: Sequence[str], most: int) -> list[int]:
    """Positions of at most `most` words: of longer captions, those that name something."""
    if len(words) <= most:
        return list(range(len(words)))
    naming = [place for place, word in enumerate(words) if word not in FUNCTION_WORDS]
    return (naming or list(range(len(words))))[-most:]


def draw_words(
    image: np.ndarray,
    words: Sequence[str],
    variants: Mapping[str, Attended],
    places: Sequence[int],
    boxes: torch.Tensor | None = None,
) -> Figure:
    """One row per query word, one column per variant of a model, the image first (Chen et al. 2021, figure 3).

    Args:
        image: pixels.
        words: of the sentence.
        variants: by name, attention with one query per word.
        places: the query words.
        boxes: (N, 4) of regions, for attention without a grid.
    """
    pixels = read_image("reproduce", image)
    drawings = {name: [_prepared(seen, boxes, (0, place)) for place in places] for name, seen in variants.items()}
    columns = len(variants) + 1
    figure, axes = make_panels(len(places) * columns, columns, pixels)
    scale = heat_scale(max(one.peak for row in drawings.values() for one in row))
    for row, place in enumerate(places):
        draw_image(axes[row * columns], pixels, pale=False)
        set_title(axes[row * columns], f"“{words[place]}”")
        for column, (name, own) in enumerate(drawings.items(), start=1):
            draw_panel(axes[row * columns + column], pixels, own[row], scale)
            set_title(axes[row * columns + column], name)
    return _headed(figure, " ".join(words))


def _prepared(seen: Attended, boxes: torch.Tensor | None = None, index: ExampleIndex = 0) -> Drawing:
    own = None if seen.grid is not None else boxes
    return prepare_drawing("reproduce", select_example("reproduce", seen, index), None, own)


def draw_steps(
    rows: Sequence[tuple[np.ndarray | None, Sequence[str], Sequence[AttentionStep], str]], *, head: str = ""
) -> Figure:
    """One row per example: the image and its words, then every step (Nam et al. 2017, figures 5 to 7).

    The brightness of the image and the darkness of the words are their attention.

    Args:
        rows: image or None, words, steps, and the line below: the answer, or whether a result is right. A line that
            begins with (+) or (-) frames the image in green or red.
        head: above the figure.
    """
    from matplotlib.figure import Figure

    columns = 1 + max(len(steps) for _, _, steps, _ in rows)
    photographs = [None if image is None else read_image("reproduce", image) for image, *_ in rows]
    sides = [0.0 if one is None else CELL * min(1.2, one.shape[0] / one.shape[1]) for one in photographs]
    lines = [_wrapped(words) for _, words, _, _ in rows]
    heights = [side + TEXT * (len(own) + 1.8) for side, own in zip(sides, lines, strict=True)]
    size = ((CELL + GAP) * columns + GAP, sum(heights) + (0.45 if head else GAP))
    figure, top = Figure(figsize=size, facecolor="white"), size[1] - (0.45 if head else GAP)
    for (_, words, steps, below), pixels, side, wrapped, height in zip(
        rows, photographs, sides, lines, heights, strict=True
    ):
        for column, step in enumerate([AttentionStep(None, (1.0,) * len(words)), *steps]):
            left = GAP + column * (CELL + GAP)
            if pixels is not None:
                place = (left / size[0], (top - side) / size[1], CELL / size[0], side / size[1])
                _draw_lit(figure.add_axes(place), pixels, step, below)
            _write_words(figure, wrapped, step.words, left, top - side - 0.6 * TEXT)
            name = below if column == 0 else f"step {column}"
            under = top - side - TEXT * (len(wrapped) + 0.7)
            figure.text(left / size[0], under / size[1], name, fontsize=FONT - 1, color="#6b7280", va="top")
        top -= height
    return _headed(figure, head)


def _wrapped(words: Sequence[str]) -> list[list[str]]:
    """Words in lines as wide as a panel."""
    lines: list[list[str]] = []
    for word in words:
        if not lines or LETTER * len(" ".join([*lines[-1], word])) > CELL:
            lines.append([])
        lines[-1].append(word)
    return lines


def _draw_lit(axes: Axes, pixels: np.ndarray, step: AttentionStep, below: str) -> None:
    draw_image(axes, _lit(pixels, step.image), pale=False)
    frame = {"(+)": "#2e9e4f", "(-)": "#c8372d"}.get(below[:3])
    for side in axes.spines.values():
        if frame is not None:
            side.set(color=frame, linewidth=2.5)


def _lit(pixels: np.ndarray, attended: Attended | None) -> np.ndarray:
    """The image, as bright as its attention."""
    if attended is None:
        return pixels
    cells = attended.map()[0].float()
    light = functional.interpolate(cells[None, None], pixels.shape[:2], mode="bilinear", align_corners=False)[0, 0]
    light = FAINTEST + (1 - FAINTEST) * light / light.max().clamp(min=1e-12)
    lit: np.ndarray = pixels * light.numpy()[..., None]
    return lit


def _write_words(
    figure: Figure, lines: Sequence[Sequence[str]], weights: Sequence[float], left: float, top: float
) -> None:
    """Words in lines, as dark as their weights; none where there are no weights."""
    width, height = figure.get_size_inches()
    largest, known = max(weights, default=1.0) or 1.0, iter(weights)
    for number, line in enumerate(lines):
        at = left
        for word, weight in zip(line, known, strict=False):
            dark = 1 - (FAINTEST + (1 - FAINTEST) * weight / largest)
            place = at / width, (top - TEXT * (number + 0.7)) / height
            figure.text(*place, word, fontsize=FONT, family="monospace", color=(dark,) * 3, parse_math=False)
            at += LETTER * (len(word) + 1)


def _headed(figure: Figure, head: str) -> Figure:
    if head:
        figure.suptitle(head, fontsize=FONT + 1, color=INK, x=0.01, ha="left", parse_math=False)
    return figure
