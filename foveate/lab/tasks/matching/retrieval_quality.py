"""Retrieval of images and captions over a whole split, and whether words attend to what they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from foveate.errors import DataError
from foveate.lab.data.samples import Caption
from foveate.lab.metrics import retrieval_metrics
from foveate.lab.metrics.retrieval import LEVELS, Ranks
from foveate.lab.models import Fragments
from foveate.lab.models.fragments import join_fragments
from foveate.lab.tasks.matching.data import MatchingBatch
from foveate.lab.tasks.task import Metrics
from foveate.metrics import GroundingMetrics
from foveate.metrics.grounding import AttendedRule, Locations
from foveate.metrics.means import ExampleKey, ExampleValues


@dataclass(frozen=True)
class MatchingPrediction:
    """The embeddings of a batch.

    Attributes:
        images, texts: the fragments of I images and C captions.
        attended: (C, T, N) True where a word of a caption attends to a location of its own image; None if the words of
            the model do not attend.
        locations: per image the grid, or the boxes of its regions.
    """

    images: Fragments
    texts: Fragments
    attended: Tensor | None
    locations: Sequence[Locations | None]


class MatchingMetrics(Metrics[MatchingPrediction, MatchingBatch]):
    """Recalls and ranks over the split, see `retrieval_metrics`, and attention to boxes, see `GroundingMetrics`.

    Args:
        scorer: scores fragments; it has no weights.
        rule: which locations count as attended to, see `GroundingMetrics`; None if words do not attend.
        folds: see `retrieval_metrics`.
        bos_eos: captions are read with bos and eos around them.

    The scores are computed on the device of `place`, in blocks: 5 000 images with 25 000 captions do not fit a GPU.
    """

    def __init__(self, scorer: nn.Module, rule: AttendedRule | None, *, folds: int, bos_eos: bool) -> None:
        self.scorer, self.folds, self.first = scorer, folds, int(bos_eos)
        self.grounding = GroundingMetrics(rule or "above-uniform")
        self.batches: list[dict[str, Any]] = []
        self.device = torch.device("cpu")
        self.single: ExampleValues = {}

    def update(self, prediction: MatchingPrediction, batch: MatchingBatch) -> None:
        images, texts = prediction.images, prediction.texts
        self.batches.append(
            {
                "images": images.values.cpu(),
                "image_mask": None if images.mask is None else images.mask.cpu(),
                "image_whole": None if images.whole is None else images.whole.cpu(),
                "text_whole": None if texts.whole is None else texts.whole.cpu(),
                "grid": images.grid.cpu() if isinstance(images.grid, Tensor) else images.grid,
                **_pack(texts),
                "owner": batch.owner.cpu(),
                "keys": [(str(caption.id), str(caption.image_id)) for caption in batch.captions],
            }
        )
        if prediction.attended is not None:
            read = (batch.mask.sum(-1) - 2 * self.first).tolist()  # bos and eos
            places = [prediction.locations[i] for i in batch.owner]
            self._ground(prediction.attended.cpu(), read, batch.captions, places)

    def _ground(
        self,
        attended: Tensor,
        read: Sequence[int],
        captions: Sequence[Caption],
        places: Sequence[Locations | None],
    ) -> None:
        for own, words, caption, locations in zip(attended, read, captions, places, strict=True):
            if locations is not None and any(phrase.boxes for phrase in caption.phrases):
                N = len(locations) if isinstance(locations, Tensor) else locations[0] * locations[1]
                key = (str(caption.id), str(caption.image_id))
                self.grounding.update(own[self.first : self.first + words, :N], caption.phrases, locations, key)

    def state(self) -> dict[str, Any]:
        return {"batches": self.batches, "grounding": self.grounding.state()}

    def merge(self, state: Mapping[str, Any]) -> None:
        self.batches += state["batches"]
        self.grounding.merge(state["grounding"])

    def place(self, device: torch.device) -> None:
        self.device = device

    def compute(self) -> dict[str, float]:
        return self.compute_together(())

    def compute_together(self, others: Sequence[Metrics[MatchingPrediction, MatchingBatch]]) -> dict[str, float]:
        """Retrieval by the mean of the scores; attention is that of the first run whose words attend."""
        if not self.batches:
            return {}
        runs = [self, *(other for other in others if isinstance(other, MatchingMetrics))]
        (owner, score), *rest = [run._scores() for run in runs]
        if any(not torch.equal(owner, other) for other, _ in rest):
            raise DataError(
                "evaluate: expected runs on the same captions, got different ones; use the same dataset and split"
            )
        images = sum(len(batch["images"]) for batch in self.batches)
        scores = [score, *(other for _, other in rest)]
        ranks: list[tuple[Ranks, Ranks]] = []
        found = retrieval_metrics(
            lambda rows: torch.stack([one(rows) for one in scores]).mean(0),
            owner,
            images,
            folds=self.folds,
            ranks_to=ranks,
        )
        self.single = _recalls(ranks[0], owner, [tuple(key) for batch in self.batches for key in batch["keys"]])
        return found | next((numbers for run in runs if (numbers := run.grounding.compute())), {})

    def _scores(self) -> tuple[Tensor, Callable[[slice], Tensor]]:
        """The image of each caption, and a function from rows of images to their scores with all captions."""
        images = join_fragments(
            [
                Fragments(batch["images"], batch["image_mask"], batch["grid"], whole=batch["image_whole"])
                for batch in self.batches
            ]
        )
        counts = torch.tensor([0, *(len(batch["images"]) for batch in self.batches)]).cumsum(0)
        owner = torch.cat([batch["owner"] + start for batch, start in zip(self.batches, counts, strict=False)])

        def score(rows: slice) -> Tensor:
            part = images[rows].to(self.device)
            with torch.no_grad():
                return torch.cat([self.scorer(part, _unpack(batch).to(self.device)) for batch in self.batches], 1)

        return owner, score

    def examples(self) -> ExampleValues:
        """The recalls of single images and captions, and the attention of single phrases."""
        return self.single | self.grounding.examples()


def _recalls(ranks: tuple[Ranks, Ranks], owner: Tensor, keys: Sequence[ExampleKey]) -> ExampleValues:
    """Recall@k in percent, 0 or 100, per image that has captions and per caption, by metric."""
    i2t, t2i = (one.rank.tolist() for one in ranks)
    images = {place: (key[1], key[1]) for place, key in zip(owner.tolist(), keys, strict=True)}
    found: ExampleValues = {}
    for k in LEVELS:
        found[f"i2t_r{k}"] = {key: 100.0 * (i2t[place] <= k) for place, key in images.items()}
        found[f"t2i_r{k}"] = {key: 100.0 * (rank <= k) for key, rank in zip(keys, t2i, strict=True)}
    return found


def _pack(texts: Fragments) -> dict[str, Tensor]:
    """The words of all captions along one axis, without padding, and the length of each caption."""
    C, T, _ = texts.values.shape
    mask = torch.ones(C, T, dtype=torch.bool, device=texts.values.device) if texts.mask is None else texts.mask
    return {"words": texts.values[mask].cpu(), "lengths": mask.sum(-1).cpu()}


def _unpack(batch: Mapping[str, Any]) -> Fragments:
    lengths = batch["lengths"]
    values = pad_sequence(list(batch["words"].split(lengths.tolist())), batch_first=True)
    return Fragments(values, torch.arange(values.shape[1]) < lengths[:, None], whole=batch["text_whole"])
