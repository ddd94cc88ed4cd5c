"""Is a model's attention where it should be? Over a dataset, beside baselines, head by head."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError, UnknownName
from foveate.metrics import Interval, attended_locations, attention_scores, bootstrap_interval, mass_inside, pointing
from foveate.metrics.maps import baseline_maps, spearman
from foveate.ops import js_divergence, resample_map
from foveate.ops.resample import to_distribution
from foveate.registry import lookup
from foveate.watch.cases import Case
from foveate.watch.faithful import OWN, Faithfulness, ask, faithfulness
from foveate.watch.interventions import intervene
from foveate.watch.layouts import WHOLE, Layout, Region
from foveate.watch.look_methods import Call, RunCall
from foveate.watch.looking import METHODS, NEUTRAL, Look, look
from foveate.watch.model_families import GENERATE, VISION, family_of
from foveate.watch.modules import attention_modules
from foveate.watch.prompts import reads_text
from foveate.watch.record import layer_number
from foveate.watch.reductions import normalise
from foveate.watch.relevance import RUN_METHODS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE = (14, 14)
PROMPT = "Where is {text}?"
RESAMPLES = 1000
MEASURES = ("pointing", "mass", "precision", "recall", "f1", "js", "auc")
LOWER_IS_BETTER = ("js",)


@dataclass(frozen=True, eq=False)
class Maps:
    """The attention of a model for one case.

    Attributes:
        total: (H, W) the map of all layers and heads together.
        heads: (L, M, H, W) the map of each head.
        names: of the L layers.
        region: left, top, right, bottom of what the model sees of the image, in fractions.
    """

    total: Tensor
    heads: Tensor
    names: tuple[str, ...]
    region: Region = WHOLE


MapSource = Callable[[np.ndarray, Case], Maps]


@dataclass(frozen=True, eq=False)
class AttentionEvaluation:
    """The scores of a model's attention over a dataset.

    Attributes:
        model: its name.
        data: name of the dataset.
        groups: the image of each of the B cases.
        total: (B, S) scores of the whole map; the columns are `MEASURES`.
        baselines: the same of each baseline.
        heads: (B, L, M, S) scores of each head.
        names: of the L layers.
    """

    model: str
    data: str
    groups: tuple[Any, ...]
    total: Tensor
    baselines: dict[str, Tensor]
    heads: Tensor
    names: tuple[str, ...]

    def summary(self) -> dict[str, dict[str, Interval]]:
        """Every measure of the model and of the baselines, with bootstrap intervals over images."""
        rows = {self.model: self.total, **self.baselines}
        return {
            name: {measure: _interval(scores[:, column], self.groups) for column, measure in enumerate(MEASURES)}
            for name, scores in rows.items()
        }

    def differences(self, baseline: str = "centre") -> dict[str, Interval]:
        """The model minus a baseline on the same cases, in every measure, with bootstrap intervals over images."""
        apart = self.total - self.baselines[lookup("baseline", baseline, {name: name for name in self.baselines})]
        return {measure: _interval(apart[:, column], self.groups) for column, measure in enumerate(MEASURES)}

    def best_heads(self, measure: str = "mass", count: int = 5) -> list[HeadScore]:
        """The heads that ground best: chosen on one half of the images, reported on the other.

        Args:
            measure: by which they are chosen.
            count: number of heads.
        """
        if measure not in MEASURES:
            raise UnknownName("measure", measure, MEASURES)
        column, chosen_on = MEASURES.index(measure), halves(self.groups)
        if bool(chosen_on.all()):
            raise DataError(
                f"evaluate-attention: expected at least two images to choose heads on one half, got {len(self.groups)} "
                "cases of one image; use more data"
            )
        flat = self.heads[..., column].flatten(1)
        rest = [group for group, first in zip(self.groups, chosen_on.tolist(), strict=True) if not first]
        heads = self.heads.shape[2]
        return [
            HeadScore(
                self.names[best // heads], best % heads, float(flat[chosen_on, best].mean()),
                {name: _interval(self.heads[~chosen_on].flatten(1, 2)[:, best, i], rest)
                 for i, name in enumerate(MEASURES)},
            )
            for best in best_columns(flat[chosen_on], measure, count)
        ]  # fmt: skip

    def to_json(self, measure: str = "mass") -> dict[str, Any]:
        """Everything as JSON values."""

        def row(scores: dict[str, Interval]) -> dict[str, list[float]]:
            return {name: [score.mean, score.low, score.high] for name, score in scores.items()}

        return {
            "model": self.model,
            "data": self.data,
            "cases": len(self.groups),
            "images": len(set(self.groups)),
            "summary": {name: row(scores) for name, scores in self.summary().items()},
            "minus": {name: row(self.differences(name)) for name in self.baselines},
            "heads": {
                "layers": list(self.names),
                "mean": {name: self.heads[..., i].mean(0).tolist() for i, name in enumerate(MEASURES)},
            },
            "best": [
                {"layer": one.layer, "head": one.head, "chosen with": one.chosen, "other half": row(one.other)}
                for one in (self.best_heads(measure) if len(set(self.groups)) > 1 else [])
            ],
        }


@dataclass(frozen=True)
class HeadScore:
    """A head that was chosen on one half of the images.

    Attributes:
        layer: name of its module.
        head: its number.
        chosen: its mean on the half on which it was chosen.
        other: every measure on the other half.
    """

    layer: str
    head: int
    chosen: float
    other: dict[str, Interval]


def evaluate_attention(
    model: str,
    data: str,
    source: MapSource,
    cases: Sequence[Case],
    progress: Callable[..., Iterable[Case]] = iter,
    *,
    baselines: Mapping[str, Tensor] | None = None,
) -> AttentionEvaluation:
    """Score the attention of a model on every case.

    Args:
        model, data: names to report.
        source: from the pixels of a case to the model's maps on the grid `SIZE`.
        cases: what to look at.
        progress: wraps the iteration, for instance `tqdm.tqdm`.
        baselines: further maps (1, H, W) that do not depend on the image, beside a uniform, a central and a random one,
            such as `mean_region` of the training set. Where a model sees a part of the image only, so do the
            baselines.
    """
    total, heads, names = [], [], list[tuple[str, ...]]()
    known = {**baseline_maps(*SIZE), **(baselines or {})}
    scored: dict[str, list[Tensor]] = {name: [] for name in known}
    for case in progress(cases):
        maps = source(case.image.pixels(), case)
        region, truth = case.region(*SIZE), case.truth(*SIZE)
        total.append(score_maps(maps.total[None], region, truth)[0])
        heads.append(score_maps(maps.heads.flatten(0, 1), region, truth).unflatten(0, maps.heads.shape[:2]))
        names.append(maps.names)
        for name, baseline in known.items():
            own = baseline if maps.region == WHOLE else _within(baseline, maps.region, is_cut=name in (baselines or {}))
            scored[name].append(score_maps(own, region, truth)[0])
    groups = tuple(case.image_id for case in cases)
    return AttentionEvaluation(
        model, data, groups, torch.stack(total), {name: torch.stack(rows) for name, rows in scored.items()},
        torch.stack(heads), names[0],
    )  # fmt: skip


def _within(baseline: Tensor, region: Region, *, is_cut: bool) -> Tensor:
    """A baseline (1, H, W) in the part of the image that a model sees: cut to it, or drawn into it."""
    H, W = baseline.shape[-2:]
    layout = Layout.regular(torch.arange(H * W), H, W, region)
    even = resample_map(layout.spread(torch.ones(1, H * W).double() / (H * W)), H, W)
    drawn = baseline * even if is_cut else resample_map(layout.spread(baseline.flatten(1)), H, W)
    return drawn / drawn.sum().clamp(min=1e-12)


def mean_region(cases: Iterable[Case]) -> Tensor:
    """The map (1, H, W) that knows where regions usually are and nothing of the image.

    Its weights are in proportion to the fraction of the cases whose region contains a cell: of all maps that ignore the
    image and the text it has the most mass inside and points best, on these cases.

    >>> from foveate.ops.boxes import Box
    >>> left, right = (Case(None, "", (Box(x, 0.0, x + 0.5, 1.0),)) for x in (0.0, 0.5))
    >>> mean_region([left, left, right])[0, 0, [0, -1]].mul(14 * 7 * 3).tolist()
    [2.0, 1.0]
    """
    mean = torch.stack([case.region(*SIZE).double() for case in cases]).mean(0)
    return (mean / mean.sum())[None]


def hub_source(model: nn.Module, processor: Any, prompt: str = PROMPT, **options: Any) -> MapSource:
    """Maps of a Hugging Face model.

    Args:
        model, processor: as in `fv.look`.
        prompt: wraps a phrase for models that generate; questions are asked as they are.
        options: of `fv.look`, such as `layers` or `relative_to`.
    """
    family, reads = family_of(model), reads_text(model)
    asks = family is not None and family.kind == GENERATE

    def maps(pixels: np.ndarray, case: Case) -> Maps:
        text = prompt.format(text=case.text) if asks and not case.is_question else case.text
        seen = look(model, pixels, text if reads else "", processor=processor, max_new_tokens=1, **options)
        rows = torch.stack([word.attention.map(*SIZE)[0] for word in seen.words]).mean(0)
        heads = normalise(seen.layout.spread(seen.layers.float()).flatten(-2)).unflatten(-1, seen.layout.grid).mean(2)
        return Maps(rows, resample_map(heads, *SIZE), seen.names, seen.layout.region)

    return maps


Looker = Callable[[np.ndarray, Case], Look]
FITS = ("multimodal", "continuous-softmax", "continuous-sparsemax")


@dataclass(frozen=True, eq=False)
class MethodComparison:
    """Methods of looking side by side: is the map right, does the model use what it shows, what does it cost?

    Attributes:
        groups: the image of each of the R words.
        truth: per method (R, S) scores against the true region; the columns are `MEASURES`.
        faithful: the costs of removing what each map shows; `faithful.OWN` is the first method.
        names: of the methods, the first one first.
        seconds: per method, processor time of one look, the median over cases.
        megabytes: per method, how far the peak of the process's memory rose above its start; NaN where unknown.
        failed: why a method could not be used, by its name.
    """

    groups: tuple[Any, ...]
    truth: dict[str, Tensor]
    faithful: Faithfulness
    names: tuple[str, ...]
    seconds: dict[str, float]
    megabytes: dict[str, float]
    failed: dict[str, str]

    def rows(self, fraction: float = 0.2) -> list[dict[str, Any]]:
        """One row per method and baseline: intervals of truth and of faithfulness, time and memory."""
        summary = self.faithful.summary(fraction)
        found = []
        for name in (*self.names, *(kind for kind in summary if kind not in self.names and kind != OWN)):
            kind = OWN if name == self.names[0] else name
            row: dict[str, Any] = {"method": name}
            for measure in ("pointing", "mass", "auc"):
                scores = self.truth.get(name)
                row[measure] = "" if scores is None else _interval(scores[:, MEASURES.index(measure)], self.groups)
            row |= summary[kind]
            row |= {"ms": 1000 * self.seconds.get(name, math.nan), "MB": self.megabytes.get(name, math.nan)}
            found.append(row)
        return found

    def agreement(self, measure: str = "mass") -> dict[str, float]:
        """Rank correlation over methods of the mean truth score with the mean of each faithfulness metric.

        "kept" is a cost for which less is better; its sign is turned.
        """
        rows = [row for row in self.rows() if row["method"] in self.names]
        right = torch.tensor([[[row[measure].mean for row in rows]]])
        columns = [name for name in rows[0] if "," in name and all(name in row for row in rows)]
        return {
            name: float(spearman(right, torch.tensor([[[_sign(name) * row[name].mean for row in rows]]])))
            for name in columns
        }


def _sign(column: str) -> int:
    return -1 if column.startswith("kept") else 1


def compare_methods(
    lookers: Mapping[str, Looker],
    cases: Sequence[Case],
    *,
    fits: Sequence[str] = FITS,
    ways: Sequence[str] = ("pixels", "tokens", "kept"),
    progress: Callable[..., Iterable[Case]] = iter,
    **options: Any,
) -> MethodComparison:
    """Score several methods of looking on the same cases, by truth and by faithfulness.

    Args:
        lookers: per method, from the pixels of a case to a look; the first is the default.
        cases: texts with known regions.
        fits: densities that the maps of the default are fitted by, each a further row.
        ways: as in `faithfulness`.
        progress: wraps the cases.
        options: of `faithfulness`.
    """
    first, failed = next(iter(lookers)), dict[str, str]()
    truth: dict[str, list[Tensor]] = {}
    clock: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    parts, names, groups = list[Faithfulness](), list[Any](), list[Any]()
    for case in progress(cases):
        pixels, maps = case.image.pixels(), dict[str, Tensor]()
        seen: Look | None = None
        for name, looker in lookers.items():
            if name in failed:
                continue
            with costs(clock.setdefault(name, []), memory, name):
                try:
                    found = looker(pixels, case)
                except ValueError as error:
                    failed[name] = str(error)
                    continue
            seen = seen or found
            maps[name] = _maps_like(found, seen)
        assert seen is not None
        maps |= {f"as {fit}": torch.cat([one.attention.fit(fit).map() for one in seen.words]) for fit in fits}
        part = faithfulness(
            seen, truth=_region_of(case), maps={k: v for k, v in maps.items() if k != first}, ways=ways, show=False,
            **options,
        )  # fmt: skip
        used = range(len(seen.words))
        if case.caption and isinstance(seen.source, RunCall):  # a network reads the phrase alone
            used = used[slice(*case.words)] or used
        part = part.of(list(used))
        for name, own in maps.items():
            fitted = torch.stack([to_distribution(one.double(), *SIZE) for one in own[list(used)]])
            truth.setdefault(name, []).append(score_maps(fitted, case.region(*SIZE), case.truth(*SIZE)))
        parts.append(part)
        names.append(case.image_id)
        groups += [case.image_id] * len(part.words)
    kept = [name for name in truth if len(truth[name]) == len(parts)]
    return MethodComparison(
        tuple(groups), {name: torch.cat(truth[name]) for name in kept}, Faithfulness.join(parts, names), tuple(kept),
        {name: float(np.median(times)) for name, times in clock.items() if times}, memory, failed,
    )  # fmt: skip


def _maps_like(found: Look, first: Look) -> Tensor:
    """(T, h, w) the maps of a look, one per word of the first; the mean for each where the words differ."""
    own = torch.cat([one.attention.map() for one in found.words])
    return own if len(own) == len(first.words) else own.mean(0, keepdim=True).expand(len(first.words), -1, -1)


def _region_of(case: Case) -> Tensor | list[tuple[float, ...]]:
    return [tuple(box) for box in case.boxes] if case.boxes else case.region(*SIZE).double()


@contextmanager
def costs(times: list[float], memory: dict[str, float], name: str) -> Iterator[None]:
    """Note the processor time of a block, and the rise of the peak memory the first time after a warm-up."""
    before = _reset_peak() if len(times) == 1 else None
    start = process_time()
    yield
    times.append(process_time() - start)
    if before is not None:
        memory[name] = _status("VmHWM") - before


def _reset_peak() -> float:
    """Begin to measure the peak memory of this process anew where the system can (Linux); what is used now, in MB."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return math.nan
    return _status("VmRSS")


def _status(field: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.nan
    return next((float(line.split()[1]) / 1024 for line in lines if line.startswith(field)), math.nan)


def lookers_of(model: Any, processor: Any = None, prompt: str = PROMPT) -> dict[str, Looker]:
    """Every method of looking at a network with its processor, or at a run of foveate; the default comes first."""
    if processor is None:
        names = ("attention", *RUN_METHODS)
        return {name: partial(_look_at_case, model, None, prompt, {"method": name}) for name in names}
    family = family_of(model)
    kind = VISION if family is None else family.kind
    rows: dict[str, dict[str, Any]] = {"default": {}}
    rows |= {name: {"method": name} for name, row in METHODS.items() if kind in row.kinds and name != "attention"}
    rows |= {
        "all layers": {"method": "attention", "layers": "all"},
        "last layer": {"method": "attention", "layers": [-1]},
    }
    if kind == GENERATE:
        rows["relative"] = {"relative_to": NEUTRAL}
    return {name: partial(_look_at_case, model, processor, prompt, options) for name, options in rows.items()}


def looker_with(model: Any, processor: Any, prompt: str, options: Mapping[str, Any]) -> Looker:
    """Looking at a network or a run with options of `fv.look`."""
    return partial(_look_at_case, model, processor, prompt, dict(options))


def budget(maps: int, ways: Sequence[str], steps: int, draws: int = 3) -> int:
    """The largest number of images that pass through the model for the faithfulness of one word.

    >>> budget(0, ("pixels",), steps=10)  # the map, the region, uniform, centre and three random maps
    72
    """
    kinds = 4 + draws + maps
    return len(ways) * (kinds * steps + 2)


def _look_at_case(
    model: Any, processor: Any, prompt: str, options: dict[str, Any], pixels: np.ndarray, case: Case
) -> Look:
    """A run reads the caption that a phrase stands in; a network the text of the case, put into the prompt."""
    if processor is None:
        in_caption = not hasattr(model, "answer") and case.caption is not None
        return look(model, pixels, str(case.caption) if in_caption else case.text, **options)
    family = family_of(model)
    if options.get("layers") == "all":
        options = {**options, "layers": list(layer_numbers(model))}
    asks = family is not None and family.kind == GENERATE and not case.is_question
    text = prompt.format(text=case.text) if asks else case.text
    return look(model, pixels, text if reads_text(model) else "", processor=processor, max_new_tokens=4, **options)


def layer_numbers(model: nn.Module) -> tuple[int, ...]:
    """The numbers of the layers that attend to the image."""
    family = family_of(model)
    names = [name for name, _ in attention_modules(model) if family is None or family.attends(name)]
    return tuple(sorted({number for number in map(layer_number, names) if number is not None}))


@dataclass(frozen=True, eq=False)
class HeadEffects:
    """What each head does beside where it looks.

    Attributes:
        names: of the L layers.
        groups: the image of each of the B cases.
        effects: (B, L, M) how far the mean score of the words falls when the head contributes nothing.
        grounding: (B, L, M) mass of each head's map inside the true region.
        unit: of the effects.
    """

    names: tuple[str, ...]
    groups: tuple[Any, ...]
    effects: Tensor
    grounding: Tensor
    unit: str

    def agreement(self) -> float:
        """Rank correlation over heads of mean effect and mean grounding."""
        return float(spearman(self.effects.mean(0)[None], self.grounding.mean(0)[None]))

    def best(self, by: str = "effect", count: int = 5) -> list[dict[str, Any]]:
        """The heads with the largest effect, or grounding, chosen on one half of the images, measured on the other.

        Args:
            by: "effect" or "grounding".
            count: number of heads.
        """
        kinds = {"effect": self.effects, "grounding": self.grounding}
        lookup("ranking of heads", by, kinds)
        first = halves(self.groups)
        if bool(first.all()):
            raise DataError("head effects: expected at least two images, one for each half, got one; use more data")
        rest = [group for group, chosen in zip(self.groups, first.tolist(), strict=True) if not chosen]
        heads, flat = self.effects.shape[2], kinds[by].flatten(1)
        found = []
        for best in best_columns(flat[first], "mass", count):
            row: dict[str, Any] = {"layer": self.names[best // heads], "head": best % heads}
            row[f"{by}, chosen half"] = float(flat[first, best].mean())
            row |= {name: _interval(kind.flatten(1)[~first, best], rest) for name, kind in kinds.items()}
            found.append(row)
        return found

    def plot(self) -> Figure:
        """Every head by its grounding and its effect, coloured by layer."""
        from matplotlib.figure import Figure

        from foveate.plot.canvas import heat_colours

        figure = Figure(figsize=(4.8, 3.4), layout="constrained")
        axes = figure.subplots()
        L, M = self.effects.shape[1:]
        x, y = self.grounding.mean(0).flatten(), self.effects.mean(0).flatten()
        layer = torch.arange(L)[:, None].expand(L, M).flatten()
        dots = axes.scatter(x, y, c=layer, cmap=heat_colours(), s=26, edgecolors="white", linewidths=0.4)
        for one in y.abs().topk(min(3, len(y))).indices.tolist():
            axes.annotate(f"{one // M}.{one % M}", (x[one], y[one]), textcoords="offset points", xytext=(5, 4))
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.set(xlabel="mass inside the true region", ylabel=f"cost of knocking it out, {self.unit}")
        axes.spines[["top", "right"]].set_visible(False)
        figure.colorbar(dots, label="layer")
        return figure


def head_effects(looker: Looker, cases: Sequence[Case], progress: Callable[..., Iterable[Case]] = iter) -> HeadEffects:
    """Rank the heads of a network by what knocking each out costs, beside where they look.

    One forward pass per head and case, and one without a change.

    Args:
        looker: looks at a case with all layers, such as "all layers" of `lookers_of`.
        cases: texts with known regions.
        progress: wraps the cases.
    """
    effects, grounding, groups = list[Tensor](), list[Tensor](), list[Any]()
    names, unit = tuple[str, ...](), ""
    for case in progress(cases):
        seen = looker(case.image.pixels(), case)
        if not isinstance(seen.source, Call):
            raise DataError("head effects: expected a network, got a run of foveate; use a Hugging Face model")
        asked, image = ask(seen.source), torch.from_numpy(seen.image.copy()).movedim(-1, 0)[None].float() / 255
        names, unit, M = seen.names, asked.unit, seen.layers.shape[1]
        whole, rows = asked.score(image).mean(), list[Tensor]()
        for name in names:
            for head in range(M):
                with intervene(seen.source.model, heads={name: [head]}):
                    rows.append(whole - asked.score(image).mean())
        effects.append(torch.stack(rows).reshape(len(names), M))
        maps = normalise(seen.layout.spread(seen.layers.float()).flatten(-2)).unflatten(-1, seen.layout.grid).mean(2)
        inside = case.region(*SIZE).double()
        grounding.append((resample_map(maps, *SIZE).double() * inside).sum((-2, -1)))
        groups.append(case.image_id)
    return HeadEffects(names, tuple(groups), torch.stack(effects), torch.stack(grounding), unit)


def _interval(values: Tensor, groups: Sequence[Any]) -> Interval:
    """The mean of values (B,) with its interval over whole images."""
    return bootstrap_interval(values.numpy(), clusters=groups, resamples=RESAMPLES)


def score_maps(maps: Tensor, region: Tensor, truth: Tensor) -> Tensor:
    """Every measure of every map, (B, len(MEASURES)).

    Args:
        maps: (B, H, W) distributions.
        region: (H, W) booleans, where one must look.
        truth: (H, W) distribution, with which the Jensen-Shannon divergence compares.
    """
    maps = maps.double()
    inside = region.double().expand_as(maps)
    scores = attention_scores(attended_locations(maps.flatten(1)), region.flatten())
    columns = (
        pointing(maps, inside),
        mass_inside(maps, inside),
        scores.precision,
        scores.recall,
        scores.f1,
        js_divergence(maps, truth.double().expand_as(maps)),
        roc_auc(maps, region),
    )
    return torch.stack([column.double() for column in columns], -1)


def roc_auc(maps: Tensor, region: Tensor) -> Tensor:
    """The area under the ROC curve of the weights as scores of "inside the region", (B,).

    The probability that a cell inside has more weight than a cell outside; ties count one half. 0.5 if the region is
    empty or the whole image.

    Args:
        maps: (B, H, W).
        region: (H, W) booleans.

    >>> roc_auc(torch.tensor([[[0.1, 0.2, 0.7]]]), torch.tensor([[False, False, True]])).item()
    1.0
    """
    flat, inside = maps.double().flatten(1), region.flatten()
    positives, negatives = int(inside.sum()), int((~inside).sum())
    if not positives or not negatives:
        return torch.full((len(flat),), 0.5, dtype=torch.float64)
    ordered = flat.sort(-1).values
    # The mean of the ranks that equal values share.
    rank = (torch.searchsorted(ordered, flat) + torch.searchsorted(ordered, flat, right=True)).double() / 2
    wins = rank[:, inside].sum(-1) - positives**2 / 2
    return wins / (positives * negatives)


def halves(groups: Sequence[object]) -> Tensor:
    """True for the half of the examples to choose on: every second image, so that no image is in both halves.

    >>> halves(["a", "a", "b", "c"]).tolist()
    [True, True, False, True]
    """
    place = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return torch.tensor([place[group] % 2 == 0 for group in groups])


def best_columns(values: Tensor, measure: str, count: int) -> list[int]:
    """The columns of values (B, C) with the best means, the best first.

    >>> best_columns(torch.tensor([[0.1, 0.9, 0.5]]), "mass", 2)
    [1, 2]
    """
    means = values.mean(0)
    order = means.argsort(descending=measure not in LOWER_IS_BETTER, stable=True)
    return [int(column) for column in order[:count]]
