"""Whether words attend to what they name: precision, recall and F1 of attention against the boxes of phrases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.errors import ShapeError
from foveate.metrics.means import ExampleKey, MeanMetric
from foveate.ops.boxes import Box, box_area, box_intersection, cell_boxes
from foveate.ops.support import above_uniform
from foveate.registry import lookup

Locations: TypeAlias = tuple[int, int] | Tensor
AttendedRule = Literal["above-uniform", "above-zero"]

ATTENDED: Mapping[str, str] = {"above-uniform": "its weight is above 1/n", "above-zero": "its weight is above 0"}
RELEVANT: Mapping[str, str] = {
    "cells": "at least half of it lies inside a box of the entity (if none does, the cell with the largest overlap)",
    "regions": "its IoU with a box of the entity is above 0.5",
}


class PlacedWords(Protocol):
    """Words of a caption that name something in the image, such as a `Phrase` of a dataset.

    Attributes:
        start, stop: the words are `tokens[start:stop]`.
        kinds: categories of the phrase ("people", "scene", ...).
        boxes: of what it names: none, one or several.
    """

    @property
    def start(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def kinds(self) -> tuple[str, ...]: ...
    @property
    def boxes(self) -> tuple[Box, ...]: ...


class PrecisionRecall(NamedTuple):
    """Precision, recall and F1, each in [0, 1]."""

    precision: Tensor
    recall: Tensor
    f1: Tensor

    def named(self, prefix: str) -> dict[str, Tensor]:
        """The three by name, "<prefix>_precision" and so on."""
        return {f"{prefix}_precision": self.precision, f"{prefix}_recall": self.recall, f"{prefix}_f1": self.f1}


@dataclass
class GroundingMetrics(MeanMetric):
    """Attention precision, recall and F1 over the phrases of a split.

    The precision of a word is the fraction of the locations it attends to that are relevant, its recall the fraction of
    the relevant ones that it attends to, F1 their harmonic mean. A phrase receives the maximum over its words, of each
    of the three separately; "attention_precision", "attention_recall" and "attention_f1" are the means over phrases.

    Phrases without a relevant location cannot be judged: they are skipped and counted in "phrases_skipped". "phrases"
    counts those that are judged, "phrases_unlinked" those without a box. "best_precision", "best_recall" and "best_f1"
    are the upper bounds that perfect attention would reach with these locations, over all phrases with a box.
    The number of a subset is "<name>/<subset>". Subsets are the kinds of the phrases and the rule by which locations
    are relevant, "cells" for grids and "regions" for boxes; the property `rule` describes it.

    Args:
        attended: "above-uniform" if a location is attended to when its weight is above 1/n (SCAN), "above-zero" if
            when it is above 0 (BFAN).

    Reference: Chen et al. 2021, §3.4; equation 10 lacks the factor 2 of F1, which their table 4 has.

    >>> metrics = GroundingMetrics()
    >>> from types import SimpleNamespace
    >>> disc = SimpleNamespace(start=0, stop=2, kinds=("shape",), boxes=(Box(0.0, 0.0, 0.5, 1.0),))
    >>> metrics.update(torch.tensor([[0.6, 0.4], [0.2, 0.8]]), [disc], (1, 2))
    >>> result = metrics.compute()
    >>> result["attention_f1"], result["attention_f1/cells"], result["phrases"], result["best_f1"]
    (1.0, 1.0, 1.0, 1.0)
    """

    attended: AttendedRule = "above-uniform"

    def __post_init__(self) -> None:
        lookup("GroundingMetrics attended", self.attended, ATTENDED)

    def update(
        self, weights: Tensor, phrases: Sequence[PlacedWords], locations: Locations, key: ExampleKey | None = None
    ) -> None:
        """Add the phrases of one caption and its image.

        Args:
            weights: (T, N), the attention of each word of the caption, or booleans (T, N), True where it attends. The
                rows are the words that `start` and `stop` of a phrase refer to, without padding. Words beyond what
                the model has read may be missing at the end and attend to nothing.
            phrases: of the caption.
            locations: rows and columns of the grid, or boxes (N, 4) in fractions of the image.
            key: of the caption; the values of its phrases are then kept.
        """
        rule = "regions" if isinstance(locations, Tensor) else "cells"
        count = len(locations) if isinstance(locations, Tensor) else locations[0] * locations[1]
        check_shape("GroundingMetrics", "weights", weights, (None, count), "(T, N)")
        linked = [phrase for phrase in phrases if phrase.boxes]
        self.means.add({"unlinked": torch.ones(len(phrases) - len(linked))})
        if not linked:
            return
        relevant = torch.stack([relevant_locations(locations, phrase.boxes) for phrase in linked])
        words = attention_scores(attended_locations(weights, self.attended).cpu(), relevant[:, None])
        best = attention_scores(_best_attention(relevant, self.attended), relevant)
        inside, known = _inside(linked, len(weights)), relevant.any(-1)
        own = {name: _largest(x, inside).where(known, torch.nan) for name, x in words.named("attention").items()}
        keys = None if key is None else [(f"{key[0]}#{place}", key[1]) for place in range(len(linked))]
        self.means.add(own, [(rule, *phrase.kinds) for phrase in linked], keys)
        self.means.add(best.named("best"), [(rule,)] * len(linked))

    def compute(self) -> dict[str, float]:
        """The means and counts by name."""
        result, counts = self.means.compute(), self.means.counts()
        if not result:
            return {}
        result.pop("unlinked", None)
        judged, linked, unlinked = (counts.get(name, 0) for name in ("attention_f1", "best_f1", "unlinked"))
        return result | {
            "phrases": float(judged),
            "phrases_skipped": float(linked - judged),
            "phrases_unlinked": float(unlinked),
        }

    @property
    def rule(self) -> str:
        """A description of what counts as attended and as relevant, to print next to the numbers."""
        used = [f"relevant when {text}" for name, text in RELEVANT.items() if f"best_f1/{name}" in self.means.totals]
        return "; ".join([f"a location is attended to when {ATTENDED[self.attended]}", *used])


def attended_locations(weights: Tensor, attended: AttendedRule = "above-uniform") -> Tensor:
    """Locations that the weights (..., N) attend to: weight above 1/N or above 0; booleans are returned as they are.

    >>> attended_locations(torch.tensor([0.6, 0.4, 0.0])).tolist()
    [True, True, False]
    """
    if weights.dtype == torch.bool:
        return weights
    check_floating("attended_locations", "weights", weights)
    lookup("attended_locations", attended, ATTENDED)
    return above_uniform(weights) if attended == "above-uniform" else weights > 0


def relevant_locations(locations: Locations, boxes: Sequence[Box] | Tensor) -> Tensor:
    """Locations (N,) that show an entity with boxes (E, 4); see `relevant_cells` and `relevant_regions`."""
    boxes = torch.as_tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    if isinstance(locations, Tensor):
        return relevant_regions(locations, boxes)
    return relevant_cells(*locations, boxes)


def relevant_regions(regions: Tensor, boxes: Tensor, above: float = 0.5) -> Tensor:
    """Regions whose intersection over union with one of the boxes is above a half.

    Args:
        regions: (N, 4), left, top, right, bottom.
        boxes: (E, 4), of the entity.
        above: the threshold that the IoU must exceed.

    Returns:
        (N,) booleans, on the CPU.

    >>> regions = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.2, 1.0]])
    >>> relevant_regions(regions, torch.tensor([[0.0, 0.0, 0.6, 1.0]])).tolist()
    [True, False]
    """
    check_number("relevant_regions", "above", above, least=0, advice="0.5 is usual")
    regions, boxes = (_check_boxes("relevant_regions", x) for x in (regions, boxes))
    shared = box_intersection(regions, boxes)
    union = box_area(regions)[:, None] + box_area(boxes) - shared
    return (shared > above * union).any(-1)


def relevant_cells(H: int, W: int, boxes: Tensor) -> Tensor:
    """Cells of a grid of which at least half lies inside a box; if there is none, the one with the largest overlap.

    The IoU of `relevant_regions` would not do: it exceeds a half only for boxes of about the size of a cell.

    Args:
        H, W: rows and columns.
        boxes: (E, 4), of the entity, in fractions of the image.

    Returns:
        (H*W,) booleans in row order, on the CPU; all False if no box overlaps the image.

    >>> relevant_cells(2, 2, torch.tensor([[0.0, 0.0, 0.9, 0.4]])).tolist()
    [True, True, False, False]
    """
    boxes = _check_boxes("relevant_cells", boxes)
    shared = box_intersection(cell_boxes(H, W, dtype=torch.float64), boxes)
    if not bool((shared > 0).any()):
        return torch.zeros(H * W, dtype=torch.bool)
    # A border through the middle of a cell counts, whichever way its last digit was rounded.
    inside = (shared * H * W >= 0.5 - 1e-9).any(-1)
    return inside if bool(inside.any()) else torch.arange(H * W) == shared.amax(-1).argmax()


def attention_scores(attended: Tensor, relevant: Tensor) -> PrecisionRecall:
    """Precision, recall and F1 of the locations that words attend to.

    P = |A ∩ R| / |A|,  R = |A ∩ R| / |R|,  F1 = 2 P R / (P + R) = 2 |A ∩ R| / (|A| + |R|)

    Args:
        attended: (..., N) booleans, the sets A.
        relevant: (..., N) booleans, the sets R; the axes before N broadcast.

    All three are zero where nothing is attended to, and where nothing is relevant.

    >>> attention_scores(torch.tensor([[True, True, False]]), torch.tensor([True, False, False])).precision.item()
    0.5
    """
    if attended.shape[-1:] != relevant.shape[-1:]:
        raise ShapeError(
            f"attention_scores: expected attended and relevant over the same locations, got {tuple(attended.shape)} "
            f"and {tuple(relevant.shape)}; pass both as (..., N)"
        )
    both, A, R = (x.sum(-1, dtype=torch.float64) for x in (attended & relevant, attended, relevant))
    # Clamping an empty set to 1 yields 0 / 1 instead of 0 / 0.
    return PrecisionRecall(both / A.clamp(min=1), both / R.clamp(min=1), 2 * both / (A + R).clamp(min=1))


def _inside(phrases: Sequence[PlacedWords], words: int) -> Tensor:
    """(P, T), True where a word belongs to a phrase."""
    start, stop = (torch.tensor([[getattr(phrase, end)] for phrase in phrases]) for end in ("start", "stop"))
    place = torch.arange(words)
    return (start <= place) & (place < stop)


def _largest(scores: Tensor, inside: Tensor) -> Tensor:
    """The largest of the scores (P, T) over the words of each phrase; 0 if the model has read none of them."""
    # The padded column of zeros keeps the maximum defined where there is no word at all.
    return torch.nn.functional.pad(scores.where(inside, 0), (0, 1)).amax(-1)


def _best_attention(relevant: Tensor, attended: AttendedRule) -> Tensor:
    """The locations that perfect attention would attend to."""
    # Weights sum to one, so that not all of them can be above 1/n: where every location is relevant, one is left out.
    first = torch.arange(relevant.shape[-1]) == 0
    return relevant & ~(first & relevant.all(-1, keepdim=True)) if attended == "above-uniform" else relevant


def _check_boxes(where: str, boxes: Tensor) -> Tensor:
    """The boxes in float64 on the CPU; raises ShapeError unless they are (N, 4)."""
    check_shape(where, "boxes", boxes, (None, 4), "(N, 4)")
    return boxes.detach().double().cpu()
