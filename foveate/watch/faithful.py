"""Does a model use what its maps show? The scores of its words while what they attend to is taken away.

Two ways of taking away: pixels are blurred, or image tokens are masked from attention. Each map is compared with maps
that know nothing of the image and, where it is known, with the true region.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from foveate.checks import check_counts
from foveate.errors import DataError, ShapeError, UnknownName, WrongType
from foveate.io import ProgressBar
from foveate.metrics.faithfulness import Curve, blurred, cells_removed, erase, impute, order_of_removal
from foveate.metrics.maps import box_maps, centre_maps, random_maps, uniform_maps
from foveate.metrics.statistics import Interval, bootstrap_interval
from foveate.ops.resample import resample_map
from foveate.watch.interventions import intervene
from foveate.watch.layouts import Layout
from foveate.watch.look_methods import Call, RunCall, Said, Words
from foveate.watch.model_families import CROSS, DUAL
from foveate.watch.modules import INNER, add_around
from foveate.watch.prompts import group_words, make_inputs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foveate.watch.looking import Look

WAYS = ("pixels", "tokens", "kept", "mean", "road")
OWN, TRUTH, UNIFORM, CENTRE, RANDOM = "the map", "true region", "uniform", "centre", "random"
SIDE = 448  # longer side of the image that is changed; larger ones are made smaller
RESAMPLES = 2000
BITS, POINTS = "bits", "points"
Score = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Asked:
    """What a model said about an image, in a form in which it can be scored for any other image.

    Attributes:
        call: of the model.
        words: each with the positions of the tokens (or object queries) at which its score is read.
        scores: from the output for B images to (B, T), or (B, 1) where all words share one score.
        margins: from the output for one image to (T,) or (1,): logits above the best other one.
        unit: "bits" for log-probabilities, "points" for similarities.
        is_whole: the one score is read from the image as a whole, at CLS or over all patches.
    """

    call: Call
    words: Words
    scores: Callable[[Any], Tensor]
    margins: Callable[[Any], Tensor]
    unit: str
    is_whole: bool = False

    def inputs(self, pixels: np.ndarray | None = None) -> dict[str, Any]:
        """The model's inputs for an image, the words that it wrote among them."""
        call = self.call
        made = call.inputs
        if pixels is not None:
            made = make_inputs(call.model, call.processor, pixels, call.text, call.family)
        return dict(made) if call.said is None else _continued(call, made, call.said)

    def score(self, images: Tensor) -> Tensor:
        """The scores (B, T) for images (B, 3, H, W) from 0 to 1."""
        several = [self.inputs(to_bytes(image)) for image in images]
        dual = self.call.family.kind == DUAL
        joined = {
            # One text is compared with all images.
            name: value
            if not isinstance(value, Tensor) or (dual and name in TEXT_INPUTS)
            else torch.cat([one[name] for one in several])
            for name, value in several[0].items()
        }
        with torch.no_grad():
            return self.scores(self.call.model(**joined)).double().cpu()


TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")


def to_bytes(image: Tensor) -> np.ndarray:
    """An image (3, H, W) from 0 to 1 as (H, W, 3) uint8.

    >>> to_bytes(torch.ones(3, 1, 2))[0, 0].tolist()
    [255, 255, 255]
    """
    return np.ascontiguousarray((image.clamp(0, 1) * 255).round().byte().movedim(0, -1).cpu().numpy())


def ask(call: Call) -> Asked:
    """How to score what a model said: its words, its class, its detections, its similarity to a text.

    A model with none of these is scored by the cosine of its output with that for the image as it is.
    """
    if call.said is not None:
        return _ask_words(call, call.said)
    if call.family.kind == DUAL:
        return Asked(call, [(call.text, [0])], _similarity_to_text, lambda output: _similarity_to_text(output)[0],
                     POINTS, is_whole=True)  # fmt: skip
    with torch.no_grad():
        output = call.model(**call.inputs)
    logits = getattr(output, "logits", None)
    if getattr(output, "itm_score", None) is not None:  # does the text belong to the image?
        return _ask_class(call, lambda out: out.itm_score, 1)
    if logits is not None and logits.ndim == 2:
        return _ask_class(call, lambda out: out.logits, int(logits[0].argmax()))
    if logits is not None and logits.ndim == 3 and call.family.kind == CROSS and "input_ids" not in call.inputs:
        return _ask_queries(call, output)
    like = embedding(output).detach()
    return Asked(
        call, [(call.text, [0])], lambda out: F.cosine_similarity(embedding(out).float(), like.float())[:, None],
        lambda out: (embedding(out) * like).float().sum(-1) / like.float().norm(dim=-1), POINTS, is_whole=True,
    )  # fmt: skip


def _ask_class(call: Call, logits_of: Callable[[Any], Tensor], best: int) -> Asked:
    return Asked(
        call, [(call.text, [0])], lambda out: _bits(logits_of(out))[:, best, None],
        lambda out: margin(logits_of(out)[0].float(), best)[None], BITS, is_whole=True,
    )  # fmt: skip


def _bits(logits: Tensor) -> Tensor:
    """Log-probabilities in bits."""
    found: Tensor = logits.float().log_softmax(-1) / math.log(2)
    return found


def margin(logits: Tensor, chosen: int) -> Tensor:
    """The logit (V,) of a choice above the best other one.

    >>> margin(torch.tensor([1.0, 4.0, 2.0]), 1).item()
    2.0
    """
    others = torch.cat([logits[:chosen], logits[chosen + 1 :]])
    return logits[chosen] - others.max() if len(others) else logits[chosen]


def embedding(output: Any) -> Tensor:
    """What a model without words or classes says of its images, (B, D)."""
    for name in ("image_embeds", "pooler_output"):
        if getattr(output, name, None) is not None:
            pooled: Tensor = getattr(output, name)
            return pooled.flatten(1)
    found = output.last_hidden_state
    row: Tensor = found[:, 0] if found.ndim == 3 else found.flatten(2).mean(-1)
    return row


def _similarity_to_text(output: Any) -> Tensor:
    found: Tensor = output.logits_per_image[:, :1].float()
    return found


def _ask_words(call: Call, said: Said) -> Asked:
    """Teacher forcing: every token by the logits one position before it, counted from the end."""
    tokenizer = getattr(call.processor, "tokenizer", call.processor)
    T, new = len(said.new), list(said.new)
    words = group_words(tokenizer, new) or [("", list(range(T)))]

    def scores(output: Any) -> Tensor:
        known = _bits(output.logits[:, -T - 1 : -1])
        tokens = known[:, range(T), new]
        return torch.stack([tokens[:, places].sum(1) for _, places in words], 1)

    def margins(output: Any) -> Tensor:
        rows = output.logits[0, -T - 1 : -1].float()
        tokens = torch.stack([margin(row, token) for row, token in zip(rows, new, strict=True)])
        return torch.stack([tokens[places].sum() for _, places in words])

    return Asked(call, [(word, [place - T - 1 for place in places]) for word, places in words], scores, margins, BITS)


def _continued(call: Call, made: Mapping[str, Any], said: Said) -> dict[str, Any]:
    """The inputs of a pass over the prompt and the words after it."""
    full = torch.tensor([[*said.before, *said.new]], device=next(call.model.parameters()).device)
    found = dict(made)
    if "logits_to_keep" in inspect.signature(call.model.forward).parameters:  # a vocabulary per image token is large
        found["logits_to_keep"] = len(said.new) + 1
    if getattr(call.model.config, "is_encoder_decoder", False) or "input_ids" not in made:
        return {**found, "decoder_input_ids": full}
    kind = getattr(call.model.config, "model_type", "")
    shape, old = made["input_ids"].shape, len(said.before)
    for name, value in made.items():
        if isinstance(value, Tensor) and value.shape == shape:
            # PaliGemma: what follows the prompt is of the second kind.
            second = name == "token_type_ids" and kind == "paligemma"
            fill = int(name == "attention_mask" or second)
            found[name] = torch.cat([value[:, :old], value.new_full((1, full.shape[1] - old), fill)], 1)
    return {**found, "input_ids": full}


def _ask_queries(call: Call, output: Any) -> Asked:
    """The detections with the highest scores, by the class of each."""
    from foveate.watch.look_methods import best_queries

    count = output.logits.shape[1]
    words = best_queries(call.model, output, count)
    queries = [places[0] for _, places in words]
    labels = [int(output.logits[0, query, :-1].argmax()) for query in queries]

    def scores(out: Any) -> Tensor:
        return _bits(out.logits)[:, queries, labels]

    def margins(out: Any) -> Tensor:
        return torch.stack([margin(out.logits[0, q].float(), c) for q, c in zip(queries, labels, strict=True)])

    return Asked(call, words, scores, margins, BITS)


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """The scores of words while more and more of what each map shows is taken away.

    Attributes:
        unit: of the scores: bits of log-probability, or points of similarity.
        words: the R words.
        groups: the image of each, or the words themselves where there is one image.
        curves: per way ("pixels" and "tokens" taken away; only "kept" pixels left) and kind of map, with scores (R, S).
        at_region: per way and kind of map, (R,) what it costs to take away as many cells as the true region has.
        passes: how many images the model saw for it.
    """

    unit: str
    words: tuple[str, ...]
    groups: tuple[Hashable, ...]
    curves: dict[str, dict[str, Curve]]
    at_region: dict[str, dict[str, Tensor]]
    passes: int

    def region_above(self, way: str) -> dict[str, Interval]:
        """How much more the true region costs than as many cells of each other kind of map."""
        costs = self.at_region.get(way)
        if costs is None:
            raise DataError("faithfulness: expected a true region, got none; pass truth=")
        return {kind: self._interval(costs[TRUTH] - costs[kind]) for kind in costs if kind != TRUTH}

    @classmethod
    def join(cls, parts: Sequence[Faithfulness], groups: Sequence[Hashable] | None = None) -> Faithfulness:
        """Those of several images as one, with intervals over images.

        Args:
            parts: one per image.
            groups: the image of each part; by default each is another one.
        """
        if not parts:
            raise DataError("Faithfulness.join: expected at least one part, got none; pass some")
        if len({part.unit for part in parts}) > 1:
            raise ShapeError("Faithfulness.join: expected parts of one unit, got several; join those of one model")
        names = list(range(len(parts))) if groups is None else list(groups)
        shared = [way for way in parts[0].curves if all(way in part.curves for part in parts)]
        curves = {
            way: {
                kind: Curve(one.fractions, torch.cat([part.curves[way][kind].scores for part in parts]))
                for kind, one in parts[0].curves[way].items()
                if all(kind in part.curves[way] for part in parts)
            }
            for way in shared
        }
        known = [way for way in shared if all(way in part.at_region for part in parts)]
        at_region = {
            way: {kind: torch.cat([part.at_region[way][kind] for part in parts]) for kind in parts[0].at_region[way]}
            for way in known
        }
        words = tuple(word for part in parts for word in part.words)
        rows = tuple(name for name, part in zip(names, parts, strict=True) for _ in part.words)
        return cls(parts[0].unit, words, rows, curves, at_region, sum(part.passes for part in parts))

    def of(self, rows: Sequence[int]) -> Faithfulness:
        """The words of some rows alone."""
        index = list(rows)
        curves = {
            way: {kind: Curve(one.fractions, one.scores[index]) for kind, one in kinds.items()}
            for way, kinds in self.curves.items()
        }
        at_region = {
            way: {kind: costs[index] for kind, costs in kinds.items()} for way, kinds in self.at_region.items()
        }
        words, groups = tuple(self.words[row] for row in index), tuple(self.groups[row] for row in index)
        return Faithfulness(self.unit, words, groups, curves, at_region, self.passes)

    def costs(self, fraction: float = 0.2, way: str = "pixels") -> dict[str, Tensor]:
        """Per kind of map, (R,) what it costs to take away a fraction of the image, the most weighted part first."""
        return {kind: curve.cost(fraction) for kind, curve in self._of(way).items()}

    def drops(self, way: str = "pixels") -> dict[str, Tensor]:
        """Per kind of map, (R,) the mean cost over all fractions; for "kept", of having no more than each fraction."""
        if way != "kept":
            return {kind: curve.drop for kind, curve in self._of(way).items()}
        return {kind: curve.scores[:, -1] - curve.scores[:, :-1].mean(-1) for kind, curve in self._of(way).items()}

    def summary(self, fraction: float = 0.2) -> dict[str, dict[str, Interval]]:
        """Per kind of map, the costs of each way with intervals over `groups`."""
        found: dict[str, dict[str, Interval]] = {}
        for way in self.curves:
            kept = way == "kept"
            columns = {f"{way}, all": self.drops(way)}
            if not kept:
                columns = {f"{way}, {fraction:.0%}": self.costs(fraction, way), **columns}
            if way in self.at_region and not kept:
                columns[f"{way}, region's area"] = self.at_region[way]
            for column, rows in columns.items():
                for kind, values in rows.items():
                    found.setdefault(kind, {})[column] = self._interval(values)
        return found

    def above(self, fraction: float = 0.2, way: str = "pixels", kind: str = OWN) -> dict[str, Interval]:
        """How much more a kind of map costs than each other kind, with intervals over `groups`."""
        costs = self.costs(fraction, way)
        return {other: self._interval(costs[kind] - costs[other]) for other in costs if other != kind}

    def sentence(self, fraction: float = 0.2) -> str:
        """The costs in one sentence, for pages and reports."""
        said, share = list[str](), f"{100 * fraction:g} %"
        for way, verb in (("pixels", "Removing"), ("tokens", "masking")):
            if way not in self.curves:
                continue
            costs = {kind: self._interval(values) for kind, values in self.costs(fraction, way).items()}
            start = verb.capitalize() if not said else verb
            rest = f"the {share} that it looks at most" if not said else "them from attention"
            said.append(f"{start} {rest} costs {self._say(costs[OWN])}, a random {share} {self._say(costs[RANDOM])}")
        return f"{'; '.join(said)}: {self.verdict(fraction)}."

    def verdict(self, fraction: float = 0.2) -> str:
        """Whether the map says more of the model than random ones."""
        way = "pixels" if "pixels" in self.curves else next(iter(self.curves))
        gain = self.above(fraction, way)[RANDOM]
        if gain.low == gain.high:
            return "one score alone says little"
        if gain.low > 0:
            return "the model uses what the map shows"
        return "the map is worse than a random one" if gain.high < 0 else "the difference may be chance"

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "unit": self.unit,
            "words": list(self.words),
            "images passed": self.passes,
            "sentence": self.sentence(),
            "summary": {
                kind: {name: [one.mean, one.low, one.high] for name, one in row.items()}
                for kind, row in self.summary().items()
            },
            "curves": {
                way: {
                    kind: {"fractions": curve.fractions.tolist(), "mean score": curve.scores.mean(0).tolist()}
                    for kind, curve in kinds.items()
                }
                for way, kinds in self.curves.items()
            },
        }

    def plot(self, way: str = "pixels") -> Figure:
        """The mean cost over the fraction that is taken away, one line per kind of map."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.6, 3.1), layout="constrained")
        axes = figure.subplots()
        for kind, curve in self._of(way).items():
            whole = curve.scores[:, -1:] if way == "kept" else curve.scores[:, :1]
            axes.plot(100 * curve.fractions, (whole - curve.scores).mean(0), label=kind, **STYLES.get(kind, {}))
        verb = {"tokens": "masked from attention", "kept": "left"}.get(way, "removed")
        axes.set(xlabel=f"% of the image {verb}, the most weighted first", ylabel=f"cost in {self.unit}", xlim=(0, 100))
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        return figure

    def __str__(self) -> str:
        rows = self.summary()
        columns = list(next(iter(rows.values())))
        width = max(len(kind) for kind in rows)
        lines = [f"{'':{width}}  " + "  ".join(f"{column:>20}" for column in columns)]
        for kind, row in rows.items():
            lines.append(f"{kind:{width}}  " + "  ".join(f"{row[c].brief if c in row else '':>20}" for c in columns))
        return "\n".join([*lines, f"cost in {self.unit}, ± half of the 95 % interval", self.sentence()])

    def _of(self, way: str) -> dict[str, Curve]:
        if way not in self.curves:
            raise UnknownName("way", way, tuple(self.curves))
        return self.curves[way]

    def _interval(self, values: Tensor) -> Interval:
        return bootstrap_interval(values.numpy(), clusters=self.groups, resamples=RESAMPLES)

    def _say(self, cost: Interval) -> str:
        digits = 1 if abs(cost.mean) >= 1 else 2 if abs(cost.mean) >= 0.01 else 3
        return f"{cost.mean:.{digits}f} {self.unit}"


STYLES: dict[str, dict[str, Any]] = {
    OWN: {"color": "#b5390f", "linewidth": 2.2},
    TRUTH: {"color": "#1d6b4f", "linewidth": 2.2},
    UNIFORM: {"color": "0.55", "linestyle": ":"},
    CENTRE: {"color": "0.45", "linestyle": "--"},
    RANDOM: {"color": "0.3", "linewidth": 1.2},
}


def faithfulness(
    seen: Look,
    *,
    truth: Tensor | Sequence[Sequence[float]] | None = None,
    maps: Mapping[str, Tensor] | None = None,
    ways: Sequence[str] = ("pixels", "tokens"),
    steps: int = 10,
    draws: int = 3,
    fill: str | Tensor = "blur",
    batch_size: int = 8,
    show: bool = True,
) -> Faithfulness:
    """What the scores of a model's words lose when what its maps show is taken away, beside maps that know nothing.

    The scores are log-probabilities in bits: of every generated word (under teacher forcing), of the class, of every
    detection; for dual encoders and models without words similarities. How many images the model will see is shown
    before the first.

    Args:
        seen: what `fv.look` returned.
        truth: the true region: a map (h, w), or boxes (x0, y0, x1, y1) in fractions of the image.
        maps: further maps (T, h, w), or (1, h, w) for all words, by name.
        ways: "pixels" removes pixels, "tokens" masks image tokens from attention (left out for models in which that
            cannot be done), "kept" removes all other pixels; "mean" and "road" remove pixels with those fills.
        steps: equal steps from the whole image to nothing.
        draws: random maps, whose curves are averaged.
        fill: stands where pixels were removed: "blur", "mean", "road", or a tensor that broadcasts to (1, 3, H, W).
        batch_size: images per forward pass.
        show: a progress bar.
    """
    check_counts("faithfulness", steps=steps, draws=draws, batch_size=batch_size)
    wrong = [way for way in ways if way not in WAYS]
    if wrong or not ways:
        raise UnknownName("way", str(wrong[0] if wrong else ""), WAYS)
    image, model = _shrunk(seen.image), _scored(seen)
    kinds = _kinds(seen, truth, maps or {}, draws)
    plan = [_plan(kinds, steps, way == "kept") for way in ways if way != "tokens" or model.mask is not None]
    names = [way for way in ways if way != "tokens" or model.mask is not None]
    if not names:
        raise ShapeError("faithfulness: expected image tokens that can be masked, got none; use ways=('pixels',)")
    passes = sum(len(part.masks) for part in plan)
    curves: dict[str, dict[str, Curve]] = {}
    at_region: dict[str, dict[str, Tensor]] = {}
    if isinstance(fill, str) and fill == "blur":
        fill = blurred(image)
    with ProgressBar("faithfulness", passes, unit="image", show=show, leave=False) as bar:
        for way, part in zip(names, plan, strict=True):
            rows = []
            for gone in torch.stack(part.masks).split(batch_size):
                if way == "tokens":
                    assert model.mask is not None
                    rows.append(model.mask(image, gone))
                else:
                    rows.append(model.score(_without(image.expand(len(gone), -1, -1, -1), gone, way, fill)))
                bar.update(len(gone))
            curves[way], region = part.curves(torch.cat(rows), len(seen.words), draws)
            if region and way != "kept":
                at_region[way] = region
    texts = tuple(word.text for word in seen.words)
    return Faithfulness(model.unit, texts, tuple(range(len(texts))), curves, at_region, passes)


def _without(images: Tensor, gone: Tensor, way: str, fill: str | Tensor) -> Tensor:
    if way == "road":  # as exact as bytes are
        return impute(images, gone, generator=torch.Generator().manual_seed(0), tolerance=1e-3)
    return erase(images, gone, way if way == "mean" else fill)


@dataclass(frozen=True, eq=False)
class _Scored:
    """A model as functions: `score` of images (B, 3, H, W) and `mask` of an image and cells (B, h, w) to (B, T)."""

    unit: str
    score: Score
    mask: Callable[[Tensor, Tensor], Tensor] | None


def _scored(seen: Look) -> _Scored:
    if isinstance(seen.source, RunCall):
        return _scored_run(seen.source)
    if seen.source is None:
        raise WrongType("faithfulness: expected what fv.look returned, got a Look that was made by hand; call fv.look")
    asked = ask(seen.source)
    call, layout = seen.source, seen.layout
    if call.family.windowed or call.family.exact:
        return _Scored(asked.unit, asked.score, None)
    attends = call.family.attends
    if call.family.through is not None:
        attends = replace(call.family, layers=call.family.through).attends

    def mask(image: Tensor, gone: Tensor) -> Tensor:
        dropped = [layout.tokens[layout.at_tokens(one.double()) > 0.5] for one in gone]
        keys = torch.nn.utils.rnn.pad_sequence(dropped, batch_first=True, padding_value=-1)
        images = image.expand(len(gone), -1, -1, -1)
        if not keys.shape[1]:
            return asked.score(images)
        with intervene(call.model, keys=keys, layers=attends):
            return asked.score(images)

    return _Scored(asked.unit, asked.score, mask)


def _scored_run(source: RunCall) -> _Scored:
    """A run of foveate, whose predictor has `scores_of`."""
    run = source.run
    unit = POINTS if hasattr(run, "match") else BITS

    def score(images: Tensor, copies: int = 1) -> Tensor:
        read = run.read_images([to_bytes(image) for image in images] * copies)
        with torch.no_grad():
            found: Tensor = run.scores_of(read, source.text, source.said).double().cpu()
        return found if unit == POINTS else found / math.log(2)

    def mask(image: Tensor, gone: Tensor) -> Tensor:
        def around(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            features = forward(args[0][:1], *args[1:], **kwargs)[torch.zeros(len(gone), dtype=torch.long)]
            left = ~gone.flatten(1).to(features.values.device)
            return replace(features, mask=left if features.mask is None else left & features.mask)

        undo = add_around(run.model.image, around, INNER)
        try:
            return score(image, len(gone))
        finally:
            undo()

    return _Scored(unit, score, mask)


def _kinds(
    seen: Look, truth: Tensor | Sequence[Sequence[float]] | None, maps: Mapping[str, Tensor], draws: int
) -> dict[str, Tensor]:
    """Per kind of map its maps (T, 1 or draws, h, w) on the grid of the words; what the model cannot see comes last."""
    H, W = seen.layout.grid
    own = torch.cat([word.attention.map() for word in seen.words]).double().cpu()
    found = {OWN: own}
    if truth is not None:
        found[TRUTH] = region_map(truth, H, W)[None]
    found |= {
        UNIFORM: uniform_maps(1, H, W),
        CENTRE: centre_maps(1, H, W),
        RANDOM: random_maps(draws, H, W),
    }
    found |= {
        name: torch.stack([resample_map(one.double(), H, W) for one in several]) for name, several in maps.items()
    }
    visible = _visible(seen.layout)
    for name, several in found.items():
        if len(several) not in (1, len(own)) and name != RANDOM:
            raise ShapeError(f"faithfulness: expected one map or one per word in {name!r}, got {len(several)}")
    return {name: several.double() + visible for name, several in found.items()}


def _visible(layout: Layout) -> Tensor:
    """(h, w) zero where the model sees the image, a negative number below all weights where it does not."""
    seen = layout.spread(torch.ones(len(layout.tokens), dtype=torch.float64)) > 1e-6
    return torch.where(seen, 0.0, -1e6).double()


def region_map(truth: Tensor | Sequence[Sequence[float]], H: int, W: int) -> Tensor:
    """(H, W) a map of the true region, from a map or boxes.

    >>> region_map([(0.0, 0.0, 0.5, 1.0)], 1, 2).tolist()
    [[1.0, 0.0]]
    """
    if isinstance(truth, Tensor):
        return resample_map(truth.double(), H, W)
    boxes = torch.tensor([tuple(box) for box in truth], dtype=torch.float64)[None]
    return box_maps(torch.ones(boxes.shape[:2], dtype=torch.float64), boxes, H, W)[0]


@dataclass(frozen=True, eq=False)
class _Plan:
    """Which cells are gone in each image that is scored, each once, and which of them make up each curve."""

    fractions: Tensor
    masks: list[Tensor]
    places: dict[str, list[list[int]]]  # per kind and map, the numbers of the masks
    regions: dict[str, list[int]]  # the same, with as many cells gone as the region has

    def curves(self, scores: Tensor, T: int, draws: int) -> tuple[dict[str, Curve], dict[str, Tensor]]:
        """The curves (T, S) of scores (n, T or 1), and the costs of as many cells as the region has."""
        scores = scores.expand(-1, T)
        found, at_region = {}, {}
        for kind, several in self.places.items():
            index = torch.tensor(several)  # (maps, S)
            found[kind] = Curve(self.fractions, _by_word(scores, index, kind == RANDOM))
            if self.regions:
                there = _by_word(scores, torch.tensor(self.regions[kind])[:, None], kind == RANDOM)
                at_region[kind] = found[kind].scores[:, 0] - there[:, 0]
        return found, at_region


def _by_word(scores: Tensor, index: Tensor, averaged: bool) -> Tensor:
    """(T, S) from scores (n, T) and the numbers (maps, S): of each word its own map, of all words one, or the mean."""
    T = scores.shape[1]
    if averaged:
        return scores[index].mean(0).T
    if len(index) == 1:
        return scores[index[0]].T
    return torch.stack([scores[index[t], t] for t in range(T)])


def _plan(kinds: Mapping[str, Tensor], steps: int, keep: bool) -> _Plan:
    fractions = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
    N = next(iter(kinds.values()))[0].numel()
    counts = [cells_removed(fraction, N) for fraction in fractions.tolist()]
    region = int((kinds[TRUTH] > 0).sum()) if TRUTH in kinds else 0
    known: dict[bytes, int] = {}
    masks: list[Tensor] = []

    def number(gone: Tensor) -> int:
        key = gone.numpy().tobytes()
        if key not in known:
            known[key] = len(masks)
            masks.append(gone)
        return known[key]

    places: dict[str, list[list[int]]] = {}
    regions: dict[str, list[int]] = {}
    for kind, several in kinds.items():
        rank = order_of_removal(several)
        places[kind] = [[number((one >= count) if keep else (one < count)) for count in counts] for one in rank]
        if region and not keep:
            regions[kind] = [number(one < region) for one in rank]
    return _Plan(fractions, masks, places, regions)


def _shrunk(pixels: np.ndarray) -> Tensor:
    """(1, 3, H, W) from 0 to 1, the longer side at most SIDE."""
    longest = max(pixels.shape[:2])
    if longest > SIDE:
        from PIL import Image

        size = [max(round(n * SIDE / longest), 1) for n in pixels.shape[1::-1]]
        pixels = np.asarray(Image.fromarray(pixels).resize((size[0], size[1]), Image.Resampling.BICUBIC))
    return torch.from_numpy(np.array(pixels)).movedim(-1, 0)[None].float() / 255
