"""Ranking of pairs: a picture and its own sentence shall score higher than either with another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.errors import ShapeError
from foveate.registry import lookup

Negatives = Literal["hardest", "random", "all", "soft"]


def ranking_hinge(
    scores: Tensor, owner: Tensor, *, margin: float = 0.2, negatives: Negatives = "hardest", softness: float = 0.05
) -> Tensor:
    """Hinge between every sentence with its own picture and the negatives of both, summed over the sentences.

    L = Σ_c Σ_ĉ [S(i, ĉ) − S(i, c) + γ]_+ + Σ_î [S(î, c) − S(i, c) + γ]_+ with i = owner(c)

    Args:
        scores: (I, C) of every picture with every sentence.
        owner: (C,) the picture of each sentence; several sentences may share one.
        margin: γ.
        negatives: which ĉ and î: the "hardest" one each, a "random" one each, or "all"; "soft" puts
            τ log(1 + Σ exp([...] / τ)) over all in the place of the hardest's [...]_+, which it becomes for a small τ.
            Sentences of the same picture are never negatives of it.
        softness: τ of the soft ones, in units of the scores.

    Returns:
        a scalar; nothing is added where there is no negative, as in a batch of one.

    Reference: Chen et al. 2021, eq. 4 (hardest); Nam et al. 2017, eq. 20 (random).

    >>> scores = torch.tensor([[1.0, 0.9], [0.3, 0.7]])
    >>> round(ranking_hinge(scores, torch.tensor([0, 1])).item(), 2)
    0.5
    """
    check_floating("ranking_hinge", "scores", scores)
    check_shape("ranking_hinge", "scores", scores, (None, None), "(I, C)")
    check_shape("ranking_hinge", "owner", owner, (scores.shape[1],), "(C,)")
    check_number("ranking_hinge", "margin", margin, least=0, advice="0.2 is SCAN's, 100 is m-DAN's")
    if owner.is_floating_point() or (len(owner) and not 0 <= int(owner.min()) <= int(owner.max()) < len(scores)):
        raise ShapeError(
            f"ranking_hinge: expected owner with numbers from 0 to {len(scores) - 1}, got {owner.tolist()}; "
            "number the pictures as the rows of the scores"
        )
    choose = lookup("negatives", negatives, NEGATIVES)
    if negatives == "soft":
        check_number("ranking_hinge", "softness", softness, above=0, advice="0.05 is a good start for cosines")
    own = scores[owner, torch.arange(len(owner), device=scores.device)]
    pictures = torch.arange(len(scores), device=scores.device)
    total = scores.new_zeros(())
    for others, allowed in ((scores[owner], owner[:, None] != owner), (scores.mT, owner[:, None] != pictures)):
        total = total + choose(others - own[:, None] + margin, allowed, softness)
    return total


def _hardest(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    if not excess.numel():
        return excess.sum()
    found = excess.detach().where(allowed, -torch.inf).max(1)
    picked = excess.gather(1, found.indices[:, None])[:, 0]
    return picked.where(~(found.values <= 0), 0).sum()  # NaN stays


def _random(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    if not excess.numel():
        return excess.sum()
    drawn = torch.rand(excess.shape, device=excess.device).where(allowed, -1.0).argmax(1, keepdim=True)
    return excess.gather(1, drawn).where(allowed.gather(1, drawn), 0).clamp_min(0).sum()


def _all(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    return excess.where(allowed, 0).clamp_min(0).sum()


def _soft(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    some = (excess / softness).where(allowed, -torch.inf)
    none = torch.zeros_like(some[:, :1])
    return softness * torch.cat([some, none], 1).logsumexp(1).sum()


NEGATIVES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = MappingProxyType(
    {"hardest": _hardest, "random": _random, "all": _all, "soft": _soft}
)
