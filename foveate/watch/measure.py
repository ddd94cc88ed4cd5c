"""Is a model's attention where it should be? Over a dataset, beside baselines, head by head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foveate.errors import DataError, UnknownName
from foveate.metrics import Interval, attended_locations, attention_scores, bootstrap_interval, mass_inside, pointing
from foveate.metrics.maps import baseline_maps
from foveate.ops import js_divergence, resample_map
from foveate.registry import lookup
from foveate.watch.cases import Case
from foveate.watch.layouts import WHOLE, Layout, Region
from foveate.watch.looking import look
from foveate.watch.model_families import GENERATE, family_of
from foveate.watch.prompts import reads_text
from foveate.watch.reductions import normalise

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
