"""Does a word look at the thing it names? Attention precision, recall and F1 against the boxes of phrases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.data.samples import Box, Phrase
from foveate.errors import ShapeError
from foveate.metrics.means import Averaged
from foveate.ops.grid import cell_centres
from foveate.registry import lookup

Locations: TypeAlias = tuple[int, int] | Tensor
Attending = Literal["share", "kept"]

ATTENDED: Mapping[str, str] = {"share": "its weight is above 1/n", "kept": "its weight is above 0"}
RELEVANT: Mapping[str, str] = {
    "cells": "at least half of it lies inside a box of the entity (where none does, the cell with the largest overlap)",
    "regions": "its IoU with a box of the entity is above 0.5",
}


class Scores(NamedTuple):
    """Precision, recall and F1, each in [0, 1]."""

    precision: Tensor
    recall: Tensor
    f1: Tensor


@dataclass
class GroundingMetrics(Averaged):
    """Attention precision, recall and F1 over the phrases of a split.

    A word's precision is the share of the locations it attends to that are relevant, its recall the share of the
    relevant ones that it attends to, F1 their harmonic mean. A phrase has the largest of its words, for each of the
    three by itself; "attention_precision", "attention_recall" and "attention_f1" are the means over the phrases.

    Phrases without a relevant location cannot be judged: they are skipped and counted in "phrases_skipped", those
    that are judged in "phrases", those without any box in "phrases_unlinked". "best_precision", "best_recall" and
    "best_f1" are the most that any attention could reach with these locations if no phrase with a box were skipped.
    The number of a subset is "<name>/<subset>": the kinds of the phrases, and the rule by which locations are relevant,
    "cells" for grids and "regions" for boxes; `rule` says it in words.

    Args:
        attended: "share", a location is attended to when its weight is above 1/n (SCAN); "kept", above 0 (BFAN).

    Reference: Chen et al. 2021, §3.4; equation 10 lacks the factor 2 of F1, which their table 4 has.

    >>> metrics = GroundingMetrics()
    >>> disc = Phrase(0, 2, "disc", ("shape",), (Box(0.0, 0.0, 0.5, 1.0),))
    >>> metrics.update(torch.tensor([[0.6, 0.4], [0.2, 0.8]]), [disc], (1, 2))
    >>> result = metrics.compute()
    >>> result["attention_f1"], result["attention_f1/cells"], result["phrases"], result["best_f1"]
    (1.0, 1.0, 1.0, 1.0)
    """

    attended: Attending = "share"

    def __post_init__(self) -> None:
        lookup("GroundingMetrics attended", self.attended, ATTENDED)

    def update(self, weights: Tensor, phrases: Sequence[Phrase], locations: Locations) -> None:
        """Add the phrases of one caption beside its picture.

        Args:
            weights: (T, N) where each word of the caption looks, or (T, N) booleans, True where it attends. Rows are
                the words that `Phrase.start` and `Phrase.stop` count; words that were not read may be missing at the
                end and attend to nothing. Without padding.
            phrases: of the caption.
            locations: rows and columns of the grid, or (N, 4) boxes in fractions of the picture.
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
        own = {f"attention_{name}": _largest(x, inside).where(known, torch.nan) for name, x in words._asdict().items()}
        self.means.add(own, [(rule, *phrase.kinds) for phrase in linked])
        self.means.add({f"best_{name}": x for name, x in best._asdict().items()}, [(rule,)] * len(linked))

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
        """What was counted as attended and as relevant, in words to print beside the numbers."""
        used = [f"relevant when {text}" for name, text in RELEVANT.items() if f"best_f1/{name}" in self.means.totals]
        return "; ".join([f"a location is attended to when {ATTENDED[self.attended]}", *used])


def attended_locations(weights: Tensor, attended: Attending = "share") -> Tensor:
    """Which locations the weights (..., N) attend to: above 1/N with "share", above 0 with "kept"; booleans stay.

    >>> attended_locations(torch.tensor([0.6, 0.4, 0.0])).tolist()
    [True, True, False]
    """
    if weights.dtype == torch.bool:
        return weights
    check_floating("attended_locations", "weights", weights)
    lookup("attended_locations", attended, ATTENDED)
    return weights > (1 / max(weights.shape[-1], 1) if attended == "share" else 0)


def relevant_locations(locations: Locations, boxes: Sequence[Box] | Tensor) -> Tensor:
    """Which locations (N,) show an entity, given its boxes (E, 4); see `relevant_cells` and `relevant_regions`."""
    boxes = torch.as_tensor(boxes, dtype=torch.float64).reshape(-1, 4)
    if isinstance(locations, Tensor):
        return relevant_regions(locations, boxes)
    return relevant_cells(*locations, boxes)


def relevant_regions(regions: Tensor, boxes: Tensor, above: float = 0.5) -> Tensor:
    """Regions whose intersection over union with any of the boxes is above a half.

    Args:
        regions: (N, 4) left, top, right, bottom.
        boxes: (E, 4) of the entity.
        above: what the IoU must exceed.

    Returns:
        (N,) booleans on the CPU.

    >>> regions = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.2, 1.0]])
    >>> relevant_regions(regions, torch.tensor([[0.0, 0.0, 0.6, 1.0]])).tolist()
    [True, False]
    """
    check_number("relevant_regions", "above", above, least=0, advice="0.5 is usual")
    regions, boxes = (_check_boxes("relevant_regions", x) for x in (regions, boxes))
    shared = _intersection(regions, boxes)
    union = _area(regions)[:, None] + _area(boxes) - shared
    return (shared > above * union).any(-1)


def relevant_cells(H: int, W: int, boxes: Tensor) -> Tensor:
    """Cells of a grid of which at least half lies inside a box; where there is none, the one with the largest overlap.

    An IoU above a half asks for boxes of about a cell's size, which few are: see `relevant_regions` for regions.

    Args:
        H, W: rows and columns.
        boxes: (E, 4) of the entity, in fractions of the picture.

    Returns:
        (H*W,) booleans on the CPU, in row order; no cell without boxes that touch the picture.

    >>> relevant_cells(2, 2, torch.tensor([[0.0, 0.0, 0.9, 0.4]])).tolist()
    [True, True, False, False]
    """
    boxes = _check_boxes("relevant_cells", boxes)
    centres, half = cell_centres(H, W, dtype=torch.float64), torch.tensor([0.5 / W, 0.5 / H], dtype=torch.float64)
    shared = _intersection(torch.cat([centres - half, centres + half], -1), boxes)
    if not bool((shared > 0).any()):
        return torch.zeros(H * W, dtype=torch.bool)
    # a border that falls on the middle of a cell counts, whatever its last digit
    inside = (shared * H * W >= 0.5 - 1e-9).any(-1)
    return inside if bool(inside.any()) else torch.arange(H * W) == shared.amax(-1).argmax()


def attention_scores(attended: Tensor, relevant: Tensor) -> Scores:
    """Precision, recall and F1 of what words attend to.

    P = |A ∩ R| / |A|,  R = |A ∩ R| / |R|,  F1 = 2 P R / (P + R) = 2 |A ∩ R| / (|A| + |R|)

    Args:
        attended: (..., N) booleans, the sets A.
        relevant: (..., N) booleans, the sets R; the axes before N broadcast.

    What attends to nothing has zeros, and so has all where nothing is relevant.

    >>> attention_scores(torch.tensor([[True, True, False]]), torch.tensor([True, False, False])).precision.item()
    0.5
    """
    if attended.shape[-1:] != relevant.shape[-1:]:
        raise ShapeError(
            f"attention_scores: expected as many locations to be relevant as to attend to, got {tuple(attended.shape)} "
            f"and {tuple(relevant.shape)}; give both (..., N)"
        )
    both, seen, there = (x.sum(-1, dtype=torch.float64) for x in (attended & relevant, attended, relevant))
    return Scores(both / seen.clamp(min=1), both / there.clamp(min=1), 2 * both / (seen + there).clamp(min=1))


def _inside(phrases: Sequence[Phrase], words: int) -> Tensor:
    """(P, T) True where a word belongs to a phrase."""
    start, stop = (torch.tensor([[getattr(phrase, end)] for phrase in phrases]) for end in ("start", "stop"))
    place = torch.arange(words)
    return (start <= place) & (place < stop)


def _largest(scores: Tensor, inside: Tensor) -> Tensor:
    """The largest score (P, T) of the words of each phrase, 0 where none was read."""
    return torch.nn.functional.pad(scores.where(inside, 0), (0, 1)).amax(-1)


def _best_attention(relevant: Tensor, attended: Attending) -> Tensor:
    """What to attend to for the best scores: weights sum to one, so that not all can be above the even share."""
    first = torch.arange(relevant.shape[-1]) == 0
    return relevant & ~(first & relevant.all(-1, keepdim=True)) if attended == "share" else relevant


def _intersection(a: Tensor, b: Tensor) -> Tensor:
    """Shared area (N, E) of boxes (N, 4) and (E, 4)."""
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clamp(min=0).prod(-1)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(-1)


def _check_boxes(where: str, boxes: Tensor) -> Tensor:
    check_shape(where, "boxes", boxes, (None, 4), "(N, 4)")
    return boxes.detach().double().cpu()
