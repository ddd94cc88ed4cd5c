"""How well maps point at a region: one number per map and measure, and the best heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from foveate.metrics import attended_locations, attention_scores, mass_inside, pointing
from foveate.ops import js_divergence

MEASURES = ("pointing", "mass", "precision", "recall", "f1", "js", "auc")
LOWER_IS_BETTER = ("js",)


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
