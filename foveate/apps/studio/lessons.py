"""The parts of the page Explain: the same painted scores, from softmax to a mixture, each with a small task.

Every part is a function from scores and the values of its sliders to HTML, computed by the library itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from foveate.apps.studio.attention_maps import SIDE, Knob, attend
from foveate.apps.studio.panels import SIDE as SIZE
from foveate.apps.studio.panels import colour_bar, draw_heat, draw_lines, draw_panels, panel, scale_end, svg_layer
from foveate.attention import Attended, mechanism
from foveate.ops import GaussianBasis, cell_centres, entmax, fit_mixture, select_mixture, softmax, solve_tv2d, tvmax
from foveate.ops.mixture import Mixture
from foveate.ops.ridge import ridge_coefficients
from foveate.plot.heat import heat, select_example

WIDTH, HEIGHT = 640, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 12, 14, 30


class Axes:
    """Places on a chart, from the ranges of what is drawn.

    Args:
        x, y: least and greatest value; an empty range is widened.

    >>> Axes((0, 1), (0, 2)).at(0, 0)
    '64.0 190.0'
    """

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.x0, self.x1 = x[0], x[1] if x[1] > x[0] else x[0] + 1
        self.y0, self.y1 = y[0], y[1] if y[1] > y[0] else y[0] + 1

    def across(self, x: float) -> float:
        """From the left, in units of the drawing."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (x - self.x0) / (self.x1 - self.x0)

    def down(self, y: float) -> float:
        """From the top."""
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - self.y0) / (self.y1 - self.y0)

    def at(self, x: float, y: float) -> str:
        """Both, as in a path."""
        return f"{self.across(x):.1f} {self.down(y):.1f}"

    def bars(self, heights: Sequence[float], kinds: Sequence[str]) -> str:
        """One bar per height at 0, 1, ..., from the lowest value up, each of its own kind."""
        wide = (WIDTH - LEFT - RIGHT) / max(1, len(heights))
        return "".join(
            f'<rect class="{kind}" x="{LEFT + n * wide:.1f}" width="{max(0.6, wide - min(2, 0.2 * wide)):.1f}" '
            f'y="{self.down(height):.1f}" height="{max(0.0, HEIGHT - BOTTOM - self.down(height)):.1f}"/>'
            for n, (height, kind) in enumerate(zip(heights, kinds, strict=True))
        )

    def line(self, xs: Sequence[float], ys: Sequence[float], kind: str) -> str:
        """A curve."""
        path = "L".join(self.at(x, y) for x, y in zip(xs, ys, strict=True))
        return f'<path class="{kind}" d="M{path}"/>'

    def dots(self, xs: Sequence[float], ys: Sequence[float], kind: str, radius: float = 4) -> str:
        """Points."""
        return "".join(
            f'<circle class="{kind}" cx="{self.across(x):.1f}" cy="{self.down(y):.1f}" r="{radius}"/>'
            for x, y in zip(xs, ys, strict=True)
        )

    def level(self, y: float, text: str) -> str:
        """A horizontal line with a label."""
        place = self.down(y)
        return (
            f'<line class="fv-level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{place:.1f}" y2="{place:.1f}"/>'
            f'<text class="fv-level-text" x="{WIDTH - RIGHT}" y="{place - 6:.1f}" text-anchor="end">'
            f"{escape(text)}</text>"
        )


def chart(title: str, inside: str, axes: Axes, *, below: str = "", is_counted: bool = False) -> str:
    """A chart with its title, the ends of its vertical axis, and what the horizontal one means.

    Args:
        title: above; also what a screen reader says.
        inside: drawn by the axes.
        axes: of the chart.
        below: the meaning of the horizontal axis.
        is_counted: the horizontal axis has whole numbers, which are bars with their own labels.
    """
    ends = "".join(
        f'<text x="{LEFT - 8}" y="{axes.down(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>' for y in (axes.y0, axes.y1)
    )
    floor = HEIGHT - BOTTOM
    base = f'<line class="fv-axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{floor}" y2="{floor}"/>'
    place = HEIGHT - (4 if is_counted else 8)
    note = (
        f'<text x="{LEFT if not is_counted else WIDTH - RIGHT}" y="{place}" {"text-anchor=end" if is_counted else ""}>'
    )
    return (
        f'<figure class="fv-chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">{base}{inside}{ends}'
        f"{note}{escape(below)}</text></svg></figure>"
    )


STEPS, MOST = 12, 5  # EM steps and components that the sliders reach
SHOWN = 98  # sorted cells that are drawn: the upper half
FINE = 200  # points of a curve
CLOSE = 0.15  # mean distance at which the value function follows the cells
STILL = 1e-3  # change of the log-likelihood below which EM has converged


@dataclass(frozen=True)
class Lesson:
    """One part of the page.

    Attributes:
        title, text: what it is about, in plain words; `text` is HTML.
        task: what to find.
        knobs: its sliders by name.
        draw: from scores (N,) and the values of the sliders to HTML and whether the task is done.
    """

    title: str
    text: str
    task: str
    knobs: Mapping[str, Knob]
    draw: Callable[[Tensor, Mapping[str, float]], tuple[str, bool]]


def _knob(label: str, about: str, low: float, high: float, step: float, value: float) -> Knob:
    return Knob(label, about, low, high, step, value, {})


def draw_threshold(scores: Tensor, knobs: Mapping[str, float]) -> tuple[str, bool]:
    """Sorted scores with the threshold below which entmax gives nothing, and the weights of the same cells."""
    alpha = knobs["alpha"]
    weights = softmax(scores) if alpha == 1 else entmax(scores, alpha=alpha)
    order = scores.argsort(descending=True)
    high, kept = scores[order][:SHOWN], weights[order][:SHOWN]
    count = int((weights > 0).sum())
    kinds = ["fv-on" if weight > 0 else "fv-off" for weight in kept.tolist()]
    axes = Axes((0, SHOWN), (min(0.0, float(scores.min())), float(high.max())))
    if alpha == 1:
        level, said = "", "softmax has no threshold: every cell keeps some weight"
    else:  # entmax: p = [(alpha - 1) z - tau]^(1 / (alpha - 1)), so the largest weight reveals the threshold
        tau = float(high[0]) - float(kept[0]) ** (alpha - 1) / (alpha - 1)
        level, said = (
            axes.level(max(tau, axes.y0), f"threshold τ = {tau:.2f}"),
            f"below {tau:.2f} a score earns nothing",
        )
    top = chart("Scores, highest first", axes.bars(high.tolist(), kinds) + level, axes, below="cells of the map →")
    across = Axes((0, SHOWN), (0, float(kept.max())))
    bottom = chart("Their weights", across.bars(kept.tolist(), kinds), across, below="the same cells →")
    seen = Attended(scores.new_zeros(1, 1), weights[None], grid=(SIDE, SIDE))
    facts = f"{count} of {scores.numel()} cells keep weight; {said}."
    return _lesson_html(_map("the weights on the map", seen), top + bottom, facts), count < 30


def draw_fusing(scores: Tensor, knobs: Mapping[str, float]) -> tuple[str, bool]:
    """The groups of cells that total variation fuses, and the weights that TVmax makes of them."""
    smoothness = knobs["smoothness"]
    grid = scores.reshape(SIDE, SIDE)
    solved = solve_tv2d(grid, smoothness)
    groups = solved.groups.reshape(SIDE, SIDE)
    weights = tvmax(grid, smoothness=smoothness)
    ties = svg_layer(f'<path class="fv-tie" d="{_group_edges(groups)}"/>')
    values = solved.value.reshape(SIDE, SIDE)
    lifted = (values - values.min()) / (values.max() - values.min()).clamp_min(1e-9)
    fused = panel(
        "scores after fusing", draw_heat(_enlarge(lifted), 1.0, is_grid=False) + ties, [f"{_count(groups)} groups"]
    )
    seen = Attended(scores.new_zeros(1, 1), weights.reshape(1, -1), grid=(SIDE, SIDE))
    patches = find_patches(weights > 0)
    before = find_patches(tvmax(grid, smoothness=0.0) > 0)
    made = f"{len(patches)} patch{'' if len(patches) == 1 else 'es'}"
    facts = f"{_count(groups)} groups of cells share one score; the weights make {made}."
    # fused: a single patch that holds cells of several former ones, and is not the whole map
    done = len(patches) == 1 and sum(bool(patches[0] & one) for one in before) > 1 and not bool((weights > 0).all())
    return _lesson_html(fused, _map("the weights of TVmax", seen), facts, "fv-even"), done


def draw_gaussian(scores: Tensor, knobs: Mapping[str, float]) -> tuple[str, bool]:
    """The Gaussian of the scores, and along its row the basis functions and the value function."""
    grid = scores.reshape(SIDE, SIDE)
    whole = attend(scores, (SIDE, SIDE), ["continuous-softmax"], {})["continuous-softmax"]
    row = min(SIDE - 1, max(0, int(float(whole.density.mean[0, 1]) * SIDE))) if whole.density is not None else 0
    values = (grid[row] - grid.min()) / (grid.max() - grid.min()).clamp_min(1e-9)
    line = mechanism("continuous-softmax").eval()(grid[row][None], values[None, :, None], grid=(SIDE,))
    count = int(knobs["count"])
    away, curve, bumps = _value_function(values, count)
    points = torch.linspace(0, 1, FINE)
    density = line.density.pdf(points[:, None]).reshape(-1)
    axes, xs = Axes((0, 1), (0.0, 1.15)), points.tolist()
    drawn = "".join(axes.line(xs, (0.35 * bump).tolist(), "fv-bump") for bump in bumps)
    drawn += axes.line([0.0, *xs, 1.0], [0.0, *(density / density.max()).tolist(), 0.0], "fv-area")
    drawn += axes.line(xs, curve.clamp(-0.1, 1.15).tolist(), "fv-curve")
    drawn += axes.dots([(n + 0.5) / SIDE for n in range(SIDE)], values.tolist(), "fv-dot")
    mean = float((density * curve).sum() / density.sum())
    drawing = chart("One row: values of the cells (dots), value function, Gaussian (filled)", drawn, axes,
                    below="from the left edge of the image to the right →")  # fmt: skip
    facts = (
        f"{count} basis functions; the value function is {away:.2f} away from the cells on average. What is read: "
        f"the mean of the curve under the Gaussian, {mean:.2f}."
    )
    first = next(n for n in range(1, SIDE + 7) if _value_function(values, n)[0] < CLOSE or n == SIDE + 6)
    return _lesson_html(_map("one Gaussian for the map", whole), drawing, facts), count == first


def draw_steps(scores: Tensor, knobs: Mapping[str, float]) -> tuple[str, bool]:
    """A mixture after some steps of expectation-maximisation, and how the likelihood rose."""
    weights, background = softmax(scores), bool(knobs["background"])
    K, step = int(knobs["components"]), int(knobs["step"])
    fits = [fit_steps(weights, K, n, background) for n in range(1, STEPS + 1)]
    likelihood = [float(one.log_likelihood) for one in fits if one.log_likelihood is not None]
    axes = Axes((1, STEPS), (min(likelihood), max(likelihood)))
    drawn = axes.line(range(1, STEPS + 1), likelihood, "fv-curve") + axes.dots(
        [step], [likelihood[step - 1]], "fv-now", 6
    )
    curve = chart(f"Log-likelihood after each step, K = {K}", drawn, axes, below=f"step 1 to {STEPS} →")
    now = fits[step - 1]
    seen = Attended(scores.new_zeros(1, 1), weights[None], now.map_tensors(lambda part: part[None]), (SIDE, SIDE))
    gain = likelihood[step - 1] - likelihood[max(0, step - 2)]
    shares = ", ".join(f"{100 * w:.0f} %" for w in sorted(now.weights.tolist(), reverse=True) if w > 0)
    haze = 0.0 if now.background is None else float(now.background)
    first = f"Step 1 has the log-likelihood {likelihood[0]:.3f}"
    facts = f"{first if step == 1 else f'Step {step} gained {gain:.4f}'}. Components: {shares}" + (
        f"; background {100 * haze:.0f} %." if background else "."
    )
    done = step > 1 and K > 1 and gain < STILL
    return _lesson_html(_map(f"after step {step}", seen), curve, facts), done


def draw_choice(scores: Tensor, knobs: Mapping[str, float]) -> tuple[str, bool]:
    """The criterion for every number of components, and the mixture that it chooses."""
    weights, background = softmax(scores), bool(knobs["background"])
    found = select_mixture(weights, cell_centres(SIDE, SIDE), MOST, float(knobs["penalty"]), background=background)
    criterion = [] if found.criterion is None else found.criterion.tolist()
    chosen = int(found.components_used)
    low, high = min(criterion, default=0.0), max(criterion, default=1.0)
    axes = Axes((0, MOST), (low - 0.15 * (high - low + 1e-6), high))
    bars = axes.bars(criterion, ["fv-on" if k + 1 == chosen else "fv-off" for k in range(len(criterion))])
    labels = "".join(
        f'<text x="{axes.across(k + 0.5):.0f}" y="208" text-anchor="middle">K = {k + 1}</text>' for k in range(MOST)
    )
    table = chart("Criterion for each K: the lowest wins", bars + labels, axes, is_counted=True)
    seen = Attended(scores.new_zeros(1, 1), weights[None], found.map_tensors(lambda part: part[None]), (SIDE, SIDE))
    return _lesson_html(_map("the mixture it chooses", seen), table, f"K = {chosen} is chosen."), chosen == 1


def draw_together(scores: Tensor, knobs: Mapping[str, Mapping[str, float]]) -> str:
    """The mechanisms of all parts on the same scores, with the options of the parts."""
    options = {
        "alpha": max(1.05, knobs["threshold"]["alpha"]),
        "smoothness": knobs["fusing"]["smoothness"],
        "penalty": knobs["choice"]["penalty"],
    }
    names = ("softmax", "entmax", "sparsemax", "tvmax", "continuous-softmax", "multimodal")
    return draw_panels(None, attend(scores, (SIDE, SIDE), names, options), size="small")


def fit_steps(weights: Tensor, components: int, iterations: int, background: bool) -> Mixture:
    """A mixture after some steps of EM from a fixed start."""
    return fit_mixture(weights, cell_centres(SIDE, SIDE), components, iterations, start="spread", background=background)


def find_patches(support: Tensor) -> list[set[tuple[int, int]]]:
    """The patches of a support (H, W), as sets of cells: those that touch along an edge belong together.

    >>> len(find_patches(torch.tensor([[True, False, True], [True, False, True]])))
    2
    """
    left = {(i, j) for i, j in support.nonzero().tolist()}
    patches = []
    while left:
        near = [left.pop()]
        patch = set(near)
        while near:
            i, j = near.pop()
            around = {(i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)} & left
            left -= around
            patch |= around
            near += around
        patches.append(patch)
    return patches


def _value_function(values: Tensor, count: int) -> tuple[float, Tensor, Tensor]:
    """Mean distance from the cells, the value function and its basis functions at FINE points of a row."""
    variance = (0.7 / count) ** 2
    basis = GaussianBasis.grid(count, dim=1, variance=variance)
    coefficients = ridge_coefficients(values[None, :, None], basis, grid=(len(values),), penalty=0.01)[0, :, 0]
    centres = (torch.arange(len(values)) + 0.5)[:, None] / len(values)
    points = torch.linspace(0, 1, FINE)[:, None]
    away = float((basis(centres) @ coefficients - values).abs().mean())
    bumps = basis(points)
    return away, bumps @ coefficients, (bumps / bumps.amax().clamp_min(1e-9)).T


def _group_edges(groups: Tensor) -> str:
    """The lines between neighbours of different groups."""
    step = SIZE / SIDE
    down = (groups[1:] != groups[:-1]).nonzero().tolist()
    across = (groups[:, 1:] != groups[:, :-1]).nonzero().tolist()
    lines = [f"M{step * j:.4g} {step * (i + 1):.4g}h{step:.4g}" for i, j in down]
    lines += [f"M{step * (j + 1):.4g} {step * i:.4g}v{step:.4g}" for i, j in across]
    return "".join(lines)


def _enlarge(values: Tensor) -> Tensor:
    """Cells as squares of several pixels, which a browser does not blur."""
    return values.repeat_interleave(18, 0).repeat_interleave(18, 1)


def _count(groups: Tensor) -> int:
    return len(groups.unique())


def _map(title: str, seen: Attended) -> str:
    seen = select_example("explain", seen)
    values = heat(seen, cells=False)
    top = scale_end([values])
    return panel(title, draw_heat(values, top, is_grid=seen.density is None) + draw_lines(seen), []) + colour_bar(top)


def _lesson_html(left: str, right: str, facts: str, kind: str = "") -> str:
    parts = f"<div>{left}</div><div>{right}</div>"
    return f'<div class="fv-lesson {kind}">{parts}</div><p class="fv-facts">{escape(facts)}</p>'


LESSONS: Mapping[str, Lesson] = {
    "threshold": Lesson(
        "1. From scores to weights",
        "Attention turns scores into weights that sum to one. <b>Softmax</b> gives every cell something. "
        "<b>Sparsemax</b> subtracts a threshold τ and cuts off what is below; <b>entmax</b> lies between, by alpha.",
        "Find an alpha at which fewer than 30 cells keep any attention.",
        {"alpha": _knob("alpha", "1 is softmax, 2 is sparsemax.", 1, 2, 0.05, 1.0)},
        draw_threshold,
    ),
    "fusing": Lesson(
        "2. Neighbours that agree",
        "An object covers many cells, so neighbours should agree. <b>TVmax</b> charges for every difference between "
        "neighbours: cells <b>fuse</b> into groups that share one score, then sparsemax cuts off the low ones.",
        "Find a smoothness at which the two stars fuse into one patch.",
        {"smoothness": _knob("smoothness", "The price of a difference between neighbours.", 0, 1, 0.01, 0.02)},
        draw_fusing,
    ),
    "gaussian": Lesson(
        "3. A density instead of cells",
        "<b>Continuous attention</b> puts a smooth density over the image: here one Gaussian with the mean and "
        "spread of the weights. To read under it, the values of the cells become a <b>value function</b>, a sum "
        "of basis functions.",
        "Find the smallest number of basis functions that keeps the value function within 0.15 of the cells.",
        {"count": _knob("basis functions", "How many bumps the value function is made of.", 1, SIDE + 6, 1, 12)},
        draw_gaussian,
    ),
    "steps": Lesson(
        "4. Several bumps, step by step",
        "One Gaussian cannot cover two objects. <b>Expectation-maximisation</b> fits a mixture: it shares every cell "
        "among the components, then moves each component to its cells. A <b>background</b> takes what is nowhere in "
        "particular.",
        "With K = 2 or more, find a step after which the log-likelihood has stopped rising (gain below 0.001).",
        {
            "step": _knob("step", "Steps of EM so far.", 1, STEPS, 1, 1),
            "components": _knob("components K", "Bumps of the mixture.", 1, MOST, 1, 2),
            "background": _knob("background", "0 without, 1 with a uniform background.", 0, 1, 1, 1),
        },
        draw_steps,
    ),
    "choice": Lesson(
        "5. How many bumps?",
        "More components always fit better, so each must pay: <b>multimodal</b> attention chooses the K with the "
        "lowest −2 · log-likelihood + penalty · K, for every image anew.",
        "Find a penalty at which a single component is chosen.",
        {
            "penalty": _knob("penalty", "What a further component must gain.", 0, 2, 0.05, 0.3),
            "background": _knob("background", "0 without, 1 with a uniform background.", 0, 1, 1, 1),
        },
        draw_choice,
    ),
}
