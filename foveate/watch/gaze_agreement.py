"""Does a model look where people look? Gaze metrics over a dataset, beside baselines and the agreement of people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foveate.errors import DataError
from foveate.metrics import (
    Interval,
    auc_borji,
    auc_judd,
    bootstrap_interval,
    cc,
    centre_maps,
    fixation_maps,
    information_gain,
    kl,
    nss,
    shuffled_auc,
    sim,
    uniform_maps,
)
from foveate.ops.resample import resample_map, to_distribution
from foveate.watch.cases import Gaze

CELLS = (32, 32)
GAZE_MEASURES = ("nss", "auc-judd", "auc-borji", "auc-shuffled", "cc", "sim", "kl", "gain")
PEOPLE, OTHERS, OWN_MEAN = "other people", "other images", "mean of the model"
FLOOR = 1e-3  # of a density, so that one fixation outside the support of a sparse map costs 10 bits and not 66
RESAMPLES = 1000


@dataclass(frozen=True, eq=False)
class GazeEvaluation:
    """How well maps predict where people look.

    Attributes:
        model: its name.
        data: name of the dataset.
        groups: the image of each of the B cases.
        scores: per kind of map (B, S); the columns are `GAZE_MEASURES`, NaN where a measure is not defined.
        people: number of people per case, on average.
    """

    model: str
    data: str
    groups: tuple[str, ...]
    scores: dict[str, Tensor]
    people: float

    def summary(self) -> dict[str, dict[str, Interval]]:
        """Every measure of every kind of map, with bootstrap intervals over images; unknown ones are left out."""
        return {
            name: {
                measure: bootstrap_interval(column.numpy(), clusters=self.groups, resamples=RESAMPLES)
                for measure, column in zip(GAZE_MEASURES, scores.T, strict=True)
                if not bool(column.isnan().all())
            }
            for name, scores in self.scores.items()
        }


def evaluate_gaze(
    model: str,
    data: str,
    maps_of: Callable[[Gaze], Tensor],
    cases: Sequence[Gaze],
    progress: Callable[[Sequence[Gaze]], Iterable[Gaze]] = iter,
) -> GazeEvaluation:
    """Score maps of a model against where people looked.

    Beside it stand a uniform and a central map, the mean of the model's maps for the other images, a map of the
    fixations in the other images, and as a ceiling a map of the other people who saw the same image.

    Args:
        model, data: names to report.
        maps_of: from a case to the model's map (h, w).
        cases: where people looked.
        progress: wraps the cases, for instance `tqdm.tqdm`.
    """
    if len({case.image.id for case in cases}) < 2:
        raise DataError(f"evaluate-attention: expected fixations in at least two images, got {len(cases)}; use more")
    own = torch.stack([to_distribution(maps_of(case).double(), *CELLS) for case in progress(cases)])
    points = [torch.from_numpy(np.concatenate(case.people)) for case in cases if case.people]
    groups = tuple(str(case.image.id) for case in cases)
    truth = torch.stack([_truth(case) for case in cases])
    B = len(cases)
    shown = {
        model: own,
        "uniform": uniform_maps(B, *CELLS).double(),
        "centre": centre_maps(B, *CELLS).double(),
        OWN_MEAN: _mean_of_others(own, groups),
        OTHERS: _mean_of_others(truth, groups),
    }
    if not points:
        scores = {name: _against_maps(maps, truth) for name, maps in shown.items()}
        scores[PEOPLE] = _people_against_maps(cases)
        return GazeEvaluation(model, data, groups, scores, float(np.mean([len(case.maps) for case in cases])))
    marks = pad_sequence(points, batch_first=True, padding_value=torch.nan)
    strangers = [_others(marks, groups, row) for row in range(B)]
    scores = {name: _against_points(maps, marks, truth, strangers, shown[OTHERS]) for name, maps in shown.items()}
    scores[PEOPLE] = _people_against_points(cases, strangers, shown[OTHERS])
    return GazeEvaluation(model, data, groups, scores, float(np.mean([len(case.people) for case in cases])))


def _truth(case: Gaze) -> Tensor:
    """(H, W) where all people looked."""
    if case.people:
        return fixation_maps(torch.from_numpy(np.concatenate(case.people))[None], *CELLS)[0]
    loaded = [torch.from_numpy(np.asarray(load(), np.float64)) for load in case.maps]
    return torch.stack([to_distribution(one, *CELLS) for one in loaded]).mean(0)


def _mean_of_others(maps: Tensor, groups: Sequence[str]) -> Tensor:
    """(B, H, W) the mean of the maps of the other images."""
    names = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    image = torch.tensor([names[group] for group in groups])
    other = (image[:, None] != image).to(maps)
    return torch.einsum("ab,bhw->ahw", other / other.sum(1, keepdim=True), maps)


def _others(marks: Tensor, groups: Sequence[str], row: int) -> Tensor:
    """(P, 2) the fixations in the other images."""
    kept = marks[torch.tensor([group != groups[row] for group in groups])].flatten(0, 1)
    return kept[~kept.isnan().any(-1)]


def _against_maps(maps: Tensor, truth: Tensor) -> Tensor:
    unknown = torch.full((len(maps),), torch.nan, dtype=torch.float64)
    shared = (cc(maps, truth), sim(maps, truth), kl(maps, truth, floor=FLOOR / truth[0].numel()))
    return torch.stack([unknown] * 4 + [column.double() for column in shared] + [unknown], -1)


def _against_points(
    maps: Tensor, marks: Tensor, truth: Tensor, strangers: Sequence[Tensor], baseline: Tensor
) -> Tensor:
    shuffled = torch.cat([shuffled_auc(maps[b : b + 1], marks[b : b + 1], strangers[b]) for b in range(len(maps))])
    columns = (
        nss(maps, marks),
        auc_judd(maps, marks),
        auc_borji(maps, marks),
        shuffled,
        cc(maps, truth),
        sim(maps, truth),
        kl(maps, truth, floor=FLOOR / truth[0].numel()),
        information_gain(maps, marks, baseline, floor=FLOOR),
    )
    return torch.stack([column.double() for column in columns], -1)


def _people_against_points(cases: Sequence[Gaze], strangers: Sequence[Tensor], baseline: Tensor) -> Tensor:
    """Each person by a map of the others, averaged; NaN for an image that one person saw."""
    rows = []
    for number, case in enumerate(cases):
        found = []
        for left in range(len(case.people) if len(case.people) > 1 else 0):
            rest = np.concatenate([points for other, points in enumerate(case.people) if other != left])
            mark = torch.from_numpy(case.people[left])[None]
            maps, truth = fixation_maps(torch.from_numpy(rest)[None], *CELLS), fixation_maps(mark, *CELLS)
            base = baseline[number : number + 1]
            found.append(_against_points(maps, mark, truth, [strangers[number]], base)[0])
        rows.append(torch.stack(found).mean(0) if found else torch.full((len(GAZE_MEASURES),), torch.nan).double())
    return torch.stack(rows)


def _people_against_maps(cases: Sequence[Gaze]) -> Tensor:
    rows = []
    for case in cases:
        maps = [resample_map(torch.from_numpy(np.asarray(load(), np.float64)), *CELLS) for load in case.maps]
        found = []
        for left in range(len(maps) if len(maps) > 1 else 0):
            rest = torch.stack([one for other, one in enumerate(maps) if other != left]).mean(0)
            found.append(_against_maps(rest[None], maps[left][None])[0])
        rows.append(torch.stack(found).mean(0) if found else torch.full((len(GAZE_MEASURES),), torch.nan).double())
    return torch.stack(rows)
