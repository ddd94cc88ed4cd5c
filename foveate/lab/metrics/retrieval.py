"""Retrieval between images and their captions: recall and ranks in both directions, from blocks of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foveate.checks import check_floating, check_number, check_shape, raise_nan
from foveate.errors import ShapeError, WrongValue

ScoreBlock = Callable[[slice], Tensor]
LEVELS = (1, 5, 10)
DIRECTIONS = ("i2t", "t2i")
KEEP_BYTES = 256 << 20


class Ranks(NamedTuple):
    """The rank of the correct candidate, one per query.

    Attributes:
        rank: (Q,), integers from 1. A candidate with the same score as the correct one counts as ranked before it.
        tied: (Q,), True where there is such a candidate.
    """

    rank: Tensor
    tied: Tensor


@dataclass
class RetrievalMetrics:
    """Recall and ranks over a split; queries may come in any order and in batches of any size.

    For each direction, "i2t" (find the captions of an image) and "t2i" (find the image of a caption): "<direction>_r1",
    "_r5" and "_r10", the percentage of queries whose rank is at most 1, 5, 10; "_median" and "_mean" of the ranks,
    which start at 1; "_ties", the percentage of queries whose correct candidate ties with a wrong one. "rsum" is the
    sum of the six recalls.

    >>> metrics = RetrievalMetrics()
    >>> metrics.update(*rank_matrix(torch.tensor([[0.9, 0.1], [0.8, 0.2]]), torch.tensor([0, 1])))
    >>> result = metrics.compute()
    >>> result["i2t_r1"], result["t2i_r1"], result["i2t_median"], result["rsum"]
    (50.0, 100.0, 1.5, 550.0)
    """

    ranks: dict[str, list[int]] = field(default_factory=lambda: {way: [] for way in DIRECTIONS})
    ties: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))

    def update(self, i2t: Ranks, t2i: Ranks) -> None:
        """Add the queries of a batch."""
        for way, found in zip(DIRECTIONS, (i2t, t2i), strict=True):
            self.ranks[way] += found.rank.tolist()
            self.ties[way] += int(found.tied.sum())

    def state(self) -> dict[str, Any]:
        """What has been accumulated, as JSON values for another process."""
        return {way: [self.ties[way], *self.ranks[way]] for way in DIRECTIONS}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another object."""
        for way, (ties, *ranks) in state.items():
            self.ties[way] += ties
            self.ranks[way] += ranks

    def compute(self) -> dict[str, float]:
        """The numbers by name; a direction without queries is absent, and so is "rsum" then."""
        result: dict[str, float] = {}
        for way in DIRECTIONS:
            if self.ranks[way]:
                result |= _summary(way, torch.tensor(self.ranks[way]), self.ties[way])
        recalls = [result[f"{way}_r{k}"] for way in DIRECTIONS for k in LEVELS if f"{way}_r{k}" in result]
        return result | ({"rsum": sum(recalls)} if len(recalls) == 2 * len(LEVELS) else {})


def retrieval_metrics(
    score_block: ScoreBlock,
    owner: Tensor,
    images: int,
    *,
    rows: int = 128,
    folds: int = 1,
    keep: int = KEEP_BYTES,
    ranks_to: list[tuple[Ranks, Ranks]] | None = None,
) -> dict[str, float]:
    """Recall@1, 5, 10, median and mean rank in both directions and rsum, without holding all scores in memory.

    The candidates of an image are all captions, those of a caption all images. The rank of the best caption of an
    image, and that of the image of a caption, are

        i2t(i) = 1 + #{c not of i : s(i, c) ≥ max over own captions s(i, ·)}
        t2i(c) = 1 + #{i not of c : s(i, c) ≥ s(owner(c), c)}

    so that ties count against the model: if all scores are equal, every rank is the last one. Scores are only compared
    with each other, so that a shift or any other increasing function of them changes nothing.

    Args:
        score_block: returns the scores (rows, C) of a slice of images with every caption. It is called once per block
            if the blocks fit into `keep` bytes, and a second time for those that do not.
        owner: (C,), the row of each caption's image; an image may have any number of captions. An image without
            captions is a candidate but not a query.
        images: number of images, I.
        rows: images per block.
        folds: also rank within this many consecutive parts of the images, each with its own captions, and report the
            means over the parts as "<name>/<folds> folds". For the 5 000 test images of MS-COCO the plain names are
            "5K" and "rsum/5 folds" is "1K".
        keep: bytes of scores to keep, in the type they come in, between the two passes.
        ranks_to: a list to which the ranks of all images, and of all captions, in the whole split are appended.

    Returns:
        The numbers by name, see `RetrievalMetrics`. Memory is O(I + C) plus one block and `keep`.

    Raises ValueError if a score is NaN.

    >>> scores = torch.tensor([[0.9, 0.7, 0.1], [0.2, 0.3, 0.6]])
    >>> retrieval_metrics(lambda rows: scores[rows], torch.tensor([0, 0, 1]), images=2)["rsum"]
    600.0
    """
    check_number("retrieval_metrics", "folds", folds, least=1, advice="5 yields the 1K numbers of MS-COCO")
    owner = _check_owner("retrieval_metrics", owner, images)
    blocks = _Blocks("retrieval_metrics", score_block, (images, len(owner)), rows, keep)
    # Part of each image: all in part 0 for the whole split, and `folds` consecutive parts of equal size.
    divisions = [torch.arange(images) * count // max(images, 1) for count in sorted({1, folds})]
    results = []
    ranked = _rank(blocks, owner, divisions)
    if ranks_to is not None:
        ranks_to.append(ranked[0])
    for parts, ranks in zip(divisions, ranked, strict=True):
        each = [_numbers(ranks, parts == part, owner) for part in parts[owner].unique()]
        results.append({name: sum(one[name] for one in each) / len(each) for name in (each[0] if each else ())})
    whole, *folded = results
    return whole | {f"{name}/{folds} folds": value for result in folded for name, value in result.items()}


def rank_matrix(scores: Tensor, owner: Tensor) -> tuple[Ranks, Ranks]:
    """The ranks of a matrix of scores that fits into memory; see `retrieval_metrics` for the rule.

    Args:
        scores: (I, C), of every image with every caption.
        owner: (C,), the row of each caption's image.

    Returns:
        Image to caption, one rank per image that has captions, and caption to image, one rank per caption.

    >>> i2t, t2i = rank_matrix(torch.tensor([[0.5, 0.1], [0.5, 0.2]]), torch.tensor([0, 1]))
    >>> i2t.rank.tolist(), t2i.rank.tolist(), t2i.tied.tolist()
    ([1, 2], [2, 1], [True, False])
    """
    owner = _check_owner("rank_matrix", owner, len(scores))
    blocks = _Blocks("rank_matrix", scores.__getitem__, (len(scores), len(owner)), max(len(scores), 1), keep=0)
    everything = torch.zeros(len(scores), dtype=torch.long)
    [ranks] = _rank(blocks, owner, [everything])
    return _queries(ranks, everything == 0, owner)


@dataclass(frozen=True)
class _Blocks:
    """The scores, block by block, for any number of passes; blocks that fit into `keep` bytes are computed once."""

    where: str
    score_block: ScoreBlock
    shape: tuple[int, int]
    rows: int
    keep: int
    kept: dict[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_number(self.where, "rows", self.rows, least=1, advice="128 is a good start")
        check_number(self.where, "keep", self.keep, least=0, advice="0 computes every block twice")

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        images, captions = self.shape
        for start in range(0, images if captions else 0, self.rows):
            rows = slice(start, min(start + self.rows, images))
            yield rows, self.kept[start] if start in self.kept else self._make(rows)

    def _make(self, rows: slice) -> Tensor:
        block = self.score_block(rows).detach()
        check_floating(self.where, "scores", block)
        check_shape(self.where, "scores", block, (rows.stop - rows.start, self.shape[1]), "(rows, C)")
        if bool(block.isnan().any()):
            raise_nan(self.where, "scores", block)
        held = sum(one.nbytes for one in self.kept.values())
        if held + block.nbytes <= self.keep:
            self.kept[rows.start] = block
        return block


def _rank(blocks: _Blocks, owner: Tensor, divisions: Sequence[Tensor]) -> list[tuple[Ranks, Ranks]]:
    """Ranks (I,) and (C,) within each division of the images into parts, (I,) integers each."""
    # Two passes: the scores of the correct pairs must be known before anything can be compared with them.
    own = _own_scores(blocks, owner)
    # The bar of an image is the best of its captions; an image without captions keeps -inf and is not a query.
    best = torch.full(blocks.shape[:1], -torch.inf, dtype=own.dtype).scatter_reduce(0, owner, own, "amax")
    counts = [[torch.zeros(2, size, dtype=torch.long) for size in blocks.shape] for _ in divisions]
    for rows, block in blocks:
        index = torch.arange(rows.start, rows.stop)
        i2t_bar, t2i_bar = best[rows, None].to(block.device), own[None].to(block.device)
        for parts, (by_image, by_caption) in zip(divisions, counts, strict=True):
            wrong = ((owner != index[:, None]) & (parts[owner] == parts[rows, None])).to(block.device)
            by_image[:, rows] += _before(block, i2t_bar, wrong, dim=1)
            by_caption += _before(block, t2i_bar, wrong, dim=0)
    return [(_to_ranks(by_image), _to_ranks(by_caption)) for by_image, by_caption in counts]


def _own_scores(blocks: _Blocks, owner: Tensor) -> Tensor:
    """(C,), the score of each caption with its own image."""
    places, scores = [torch.zeros(0, dtype=torch.long)], [torch.zeros(0)]
    for rows, block in blocks:
        here = ((owner >= rows.start) & (owner < rows.stop)).nonzero().squeeze(1)
        places.append(here)
        scores.append(block[(owner[here] - rows.start).to(block.device), here.to(block.device)].cpu())
    # The captions came in the order of their images' blocks; index_copy restores their own order.
    own = torch.cat(scores)
    return torch.empty_like(own).index_copy(0, torch.cat(places), own)


def _before(block: Tensor, bar: Tensor, wrong: Tensor, dim: int) -> Tensor:
    """The numbers of wrong candidates at or above the bar, and exactly at it: (2, queries)."""
    reach, level = (block >= bar) & wrong, (block == bar) & wrong
    return torch.stack([reach.sum(dim), level.sum(dim)]).cpu()


def _to_ranks(counts: Tensor) -> Ranks:
    return Ranks(1 + counts[0], counts[1] > 0)


def _queries(ranks: tuple[Ranks, Ranks], chosen: Tensor, owner: Tensor) -> tuple[Ranks, Ranks]:
    """The ranks of the chosen images (I,) that have captions, and those of their captions."""
    has_captions = torch.zeros_like(chosen).index_fill(0, owner, True)
    masks = (chosen & has_captions, chosen[owner])
    i2t, t2i = (Ranks(*(part[mask] for part in one)) for one, mask in zip(ranks, masks, strict=True))
    return i2t, t2i


def _numbers(ranks: tuple[Ranks, Ranks], chosen: Tensor, owner: Tensor) -> dict[str, float]:
    metrics = RetrievalMetrics()
    metrics.update(*_queries(ranks, chosen, owner))
    return metrics.compute()


def _summary(way: str, ranks: Tensor, ties: int) -> dict[str, float]:
    ordered, count = ranks.sort().values.double(), len(ranks)
    recalls = {f"{way}_r{k}": 100 * (ranks <= k).double().mean().item() for k in LEVELS}
    # torch.median returns the lower of the two middle values; the usual definition is their mean.
    median = (ordered[(count - 1) // 2] + ordered[count // 2]).item() / 2
    return recalls | {f"{way}_median": median, f"{way}_mean": ordered.mean().item(), f"{way}_ties": 100 * ties / count}


def _check_owner(where: str, owner: Tensor, images: int) -> Tensor:
    """The owners on the CPU; raises ShapeError or ValueError unless they are rows of the images."""
    if owner.ndim != 1 or owner.is_floating_point():
        raise ShapeError(
            f"{where}: expected owner (C,) of integers, got {tuple(owner.shape)} {owner.dtype}; "
            "pass the row of each caption's image"
        )
    owner = owner.detach().cpu().long()
    if len(owner) and not 0 <= int(owner.min()) <= int(owner.max()) < images:
        raise WrongValue(
            f"{where}: expected owners from 0 to {images - 1}, got {int(owner.min())} to {int(owner.max())}; "
            "pass the row of each caption's image"
        )
    return owner
