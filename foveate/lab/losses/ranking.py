"""Ranking of pairs: an image should score higher with its own sentence than with any other, and vice versa."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape
from foveate.errors import ShapeError
from foveate.registry import lookup

Negatives = Literal["hardest", "random", "sampled", "all", "soft"]


def ranking_hinge(
    scores: Tensor, owner: Tensor, *, margin: float = 0.2, negatives: Negatives = "hardest", softness: float = 0.05
) -> Tensor:
    """Hinge loss of every sentence and its image against their negatives, summed over the sentences.

    L = Σ_c Σ_ĉ [S(i, ĉ) − S(i, c) + γ]_+ + Σ_î [S(î, c) − S(i, c) + γ]_+ with i = owner(c)

    Args:
        scores: (I, C), of every image with every sentence.
        owner: (C,), the row of each sentence's image; several sentences may share one.
        margin: γ.
        negatives: which ĉ and î to sum over: the "hardest" one of each, one drawn at "random", or "all". "sampled"
            draws another sentence for each and takes that sentence with its image, so that a step consists of
            quadruplets; every sentence of the batch is drawn once. "soft" replaces the hardest one's [...]_+ by
            τ log(1 + Σ exp([...] / τ)) over all of them, and tends to it as τ becomes small.
            Sentences of the same image are never negatives of it.
        softness: τ of "soft", in units of the scores.

    Returns:
        A scalar; a sentence without negatives, as in a batch of one, contributes nothing.

    Reference: Chen et al. 2021, eq. 4 (hardest); Nam et al. 2017, eq. 20 and §4.1 (sampled).

    >>> scores = torch.tensor([[1.0, 0.9], [0.3, 0.7]])
    >>> round(ranking_hinge(scores, torch.tensor([0, 1])).item(), 2)
    0.5
    """
    check_number("ranking_hinge", "margin", margin, least=0, advice="SCAN uses 0.2, m-DAN 100")
    choose = lookup("negatives", negatives, NEGATIVES)
    if negatives == "soft":
        check_number("ranking_hinge", "softness", softness, above=0, advice="0.05 is a good start for cosines")
    if negatives == "sampled":
        return _sampled(_excesses("ranking_hinge", scores, owner), owner, margin)
    total = scores.new_zeros(())
    for excess, allowed in _excesses("ranking_hinge", scores, owner):
        total = total + choose(excess + margin, allowed, softness)
    return total


def info_nce(scores: Tensor, owner: Tensor, *, temperature: float = 0.05) -> Tensor:
    """Symmetric InfoNCE: the cross-entropy of every sentence among the images and among the sentences of its image.

    L = ½ Σ_c log(1 + Σ_ĉ exp([S(i, ĉ) − S(i, c)] / τ)) + log(1 + Σ_î exp([S(î, c) − S(i, c)] / τ)) with i = owner(c)

    where ĉ are the sentences of other images and î the other images; all of the batch are negatives.

    Args:
        scores: (I, C), of every image with every sentence.
        owner: (C,), the row of each sentence's image; several sentences may share one.
        temperature: τ, in units of the scores; a small one makes the hardest negatives count most.

    Returns:
        A scalar, summed over the sentences; zero in a batch of one image.

    Reference: van den Oord et al. 2018, eq. 4; in both directions Radford et al. 2021, figure 3.

    >>> round(info_nce(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]), temperature=1.0).item(), 4)
    0.6265
    """
    check_number("info_nce", "temperature", temperature, above=0, advice="0.05 is a good start for cosines")
    both = [_soft(excess, allowed, temperature) for excess, allowed in _excesses("info_nce", scores, owner)]
    # `_soft` is in units of the scores; the cross-entropy is not.
    return (both[0] + both[1]) / (2 * temperature)


def _excesses(where: str, scores: Tensor, owner: Tensor) -> list[tuple[Tensor, Tensor]]:
    """By how much other sentences (C, C) and other images (C, I) score higher than the own, and which are negatives."""
    check_floating(where, "scores", scores)
    check_shape(where, "scores", scores, (None, None), "(I, C)")
    check_shape(where, "owner", owner, (scores.shape[1],), "(C,)")
    if owner.is_floating_point() or (len(owner) and not 0 <= int(owner.min()) <= int(owner.max()) < len(scores)):
        raise ShapeError(
            f"{where}: expected owner with integers from 0 to {len(scores) - 1}, got {owner.tolist()}; "
            "pass the row of each sentence's image"
        )
    own = scores[owner, torch.arange(len(owner), device=scores.device)][:, None]
    images = torch.arange(len(scores), device=scores.device)
    return [(scores[owner] - own, owner[:, None] != owner), (scores.mT - own, owner[:, None] != images)]


def _sampled(excesses: list[tuple[Tensor, Tensor]], owner: Tensor, margin: float) -> Tensor:
    """The hinge against the sentence and the image of another pair of the batch, each pair drawn once."""
    (sentences, allowed), (images, _) = excesses
    if len(owner) < 2:
        return sentences.sum() * 0
    places = torch.arange(len(owner), device=owner.device)
    order = torch.randperm(len(owner), device=owner.device)
    # A cyclic shift of a random order is a permutation that maps no pair to itself.
    drawn = torch.empty_like(order).index_copy(0, order, order.roll(1))
    hinge = torch.stack([sentences[places, drawn], images[places, owner[drawn]]]) + margin
    return hinge.where(allowed[places, drawn], 0).clamp_min(0).sum()


def _hardest(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    if not excess.numel():
        return excess.sum()
    # The search is detached and the gradient flows through one gathered entry per row, not through a full maximum.
    hardest = excess.detach().where(allowed, -torch.inf).max(1)
    picked = excess.gather(1, hardest.indices[:, None])[:, 0]
    return picked.where(~(hardest.values <= 0), 0).sum()  # negated so that NaN stays NaN


def _random(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    if not excess.numel():
        return excess.sum()
    # The argmax of uniform noise draws one allowed entry per row, each with the same probability.
    drawn = torch.rand(excess.shape, device=excess.device).where(allowed, -1.0).argmax(1, keepdim=True)
    return excess.gather(1, drawn).where(allowed.gather(1, drawn), 0).clamp_min(0).sum()


def _all(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    return excess.where(allowed, 0).clamp_min(0).sum()


def _soft(excess: Tensor, allowed: Tensor, softness: float) -> Tensor:
    scaled = (excess / softness).where(allowed, -torch.inf)
    zero = torch.zeros_like(scaled[:, :1])  # exp(0) is the 1 inside log(1 + Σ exp)
    return softness * torch.cat([scaled, zero], 1).logsumexp(1).sum()


NEGATIVES: Mapping[str, Callable[[Tensor, Tensor, float], Tensor]] = MappingProxyType(
    {"hardest": _hardest, "random": _random, "sampled": _random, "all": _all, "soft": _soft}
)
