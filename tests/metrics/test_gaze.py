"""Gaze metrics: the values of pysaliency on 1 000 sets, slow references, and the edges of what is defined."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.believe_peers import CELLS, gaze_sets
from foveate.errors import ShapeError
from foveate.metrics import (
    auc_borji,
    auc_judd,
    cc,
    fixation_maps,
    information_gain,
    kl,
    nss,
    shuffled_auc,
    sim,
)
from foveate.ops import Gaussian

PEERS = Path(__file__).parent / "peers.npz"
POINTWISE = (nss, auc_judd, auc_borji, information_gain)


def sets() -> tuple[Tensor, Tensor, Tensor]:
    maps, truth, points = gaze_sets()
    return torch.from_numpy(maps), torch.from_numpy(truth), torch.from_numpy(points)


def test_pysaliency_on_a_thousand_sets() -> None:
    maps, truth, points = sets()
    theirs = torch.from_numpy(np.load(PEERS)["gaze"])
    ours = (
        nss(maps, points),
        auc_judd(maps, points),
        auc_borji(maps, points),
        shuffled_auc(maps, points, points.roll(-1, 0)),
        cc(maps, truth),
        sim(maps, truth),
        kl(maps, truth),
        information_gain(maps, points),
    )
    for number, column in enumerate(ours):
        torch.testing.assert_close(column, theirs[:, number], atol=1e-6, rtol=1e-6)


def slow_judd(one: np.ndarray, cells: list[tuple[int, int]]) -> float:
    """The area under the broken line through the rates at each fixated value, by definition."""
    values = [one[cell] for cell in cells]
    rest = [one[cell] for cell in np.ndindex(one.shape) if cell not in cells]
    line = [(0.0, 0.0)]
    line += [
        (float(np.mean([v >= threshold for v in rest])), float(np.mean([v >= threshold for v in values])))
        for threshold in sorted(values, reverse=True)
    ]
    line.append((1.0, 1.0))
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(line))


def slow_auc(positives: list[float], negatives: list[float]) -> float:
    return float(np.mean([[(p > n) + 0.5 * (p == n) for n in negatives] for p in positives]))


@pytest.mark.parametrize("number", range(4))
def test_areas_by_definition(number: int) -> None:
    rng = np.random.default_rng(number)
    one = rng.integers(0, 5, (4, 5)) / 5.0
    cells = [(int(rng.integers(4)), int(rng.integers(5))) for _ in range(number + 1)]
    others = [(int(rng.integers(4)), int(rng.integers(5))) for _ in range(3)]
    maps = torch.from_numpy(one)[None]
    points, other = (torch.tensor([[((x + 0.5) / 5, (y + 0.5) / 4) for y, x in c]]).double() for c in (cells, others))
    assert auc_judd(maps, points).item() == pytest.approx(slow_judd(one, cells))
    values = [float(one[cell]) for cell in cells]
    assert auc_borji(maps, points).item() == pytest.approx(slow_auc(values, list(one.flatten())))
    assert shuffled_auc(maps, points, other[0]).item() == pytest.approx(slow_auc(values, [one[c] for c in others]))


def test_others_are_the_other_images_of_the_batch() -> None:
    maps, _, points = sets()
    chosen = shuffled_auc(maps[1:4], points[1:4])
    for row in range(3):
        rest = torch.cat([points[1 + other] for other in range(3) if other != row])
        assert chosen[row].item() == pytest.approx(
            shuffled_auc(maps[1 + row][None], points[1 + row][None], rest).item()
        )


def test_constant_maps_get_the_score_of_chance() -> None:
    points = torch.tensor([[[0.1, 0.1], [0.9, 0.4]]] * 3)
    truth = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    maps = torch.stack([torch.zeros(4, 5), torch.full((4, 5), 0.3), torch.full((4, 5), -2.0)])
    assert nss(maps, points).tolist() == [0, 0, 0]
    assert auc_judd(maps, points).tolist() == auc_borji(maps, points).tolist() == [0.5] * 3
    assert shuffled_auc(maps, points).tolist() == [0.5] * 3
    torch.testing.assert_close(information_gain(maps, points), torch.zeros(3))
    assert cc(maps, truth).tolist() == cc(truth, maps).tolist() == [0, 0, 0]
    uniform = torch.ones(3, 4, 5)
    torch.testing.assert_close(sim(maps, truth), sim(uniform, truth))
    torch.testing.assert_close(kl(maps, truth), kl(uniform, truth))


def test_one_fixation_and_none() -> None:
    maps = torch.arange(6.0).reshape(1, 2, 3)
    last, none = torch.tensor([[[1.0, 1.0]]]), torch.full((1, 2, 2), math.nan)
    padded = torch.cat([last, none], 1)
    for metric in POINTWISE:
        assert metric(maps, last).isfinite().all(), metric
        torch.testing.assert_close(metric(maps, padded), metric(maps, last))
        assert metric(maps, none).isnan().all(), metric
    assert auc_judd(maps, last).item() == 1
    assert shuffled_auc(maps, last).item() == 0.5, "no other image"
    assert shuffled_auc(maps, none).isnan().all()
    assert auc_judd(maps[..., :1, :1], last).item() == 0.5, "no cell is left without a fixation"
    assert fixation_maps(none, 2, 2).sum().item() == 0


def test_a_fixation_in_the_first_cell_beside_padding() -> None:
    maps = torch.tensor([[[0.9, 0.2, 0.1, 0.4]]])
    points = torch.tensor([[[0.01, 0.5], [math.nan, math.nan]]])
    assert auc_judd(maps, points).item() == 1
    away = torch.tensor([[[0.99, 0.5], [math.nan, math.nan]]])
    assert auc_judd(maps, away).item() == pytest.approx(slow_judd(maps[0].numpy(), [(0, 3)]))


def test_information_gain_of_a_density_and_against_a_baseline() -> None:
    density = Gaussian(torch.tensor([[0.5, 0.5]]).double(), 0.02 * torch.eye(2).double()[None])
    points = torch.tensor([[[0.5, 0.5], [0.6, 0.4], [math.nan, math.nan]]]).double()
    expected = density.pdf(points[:, :2]).log2().mean().item()
    assert information_gain(density, points).item() == pytest.approx(expected)
    # a fine map of the density says the same
    assert information_gain(density.to_map(200, 200), points).item() == pytest.approx(expected, abs=0.03)
    assert information_gain(density, points, density).item() == 0
    assert information_gain(density, points, torch.ones(1, 2, 3)).item() == pytest.approx(expected)
    low = torch.tensor([[[0.0, 1.0]]])
    assert information_gain(low, torch.tensor([[[0.1, 0.5]]]), floor=0.25).item() == -2


def test_kl_floor() -> None:
    p, q = torch.tensor([[[0.0, 1.0]]]), torch.tensor([[[1.0, 1.0]]])
    assert kl(p, q, floor=0.0).item() == math.inf
    assert kl(p, q, floor=1.0).item() < kl(p, q).item() < math.inf
    assert kl(q, p, floor=0.0).item() == pytest.approx(math.log(2))


def test_fixation_maps_are_blobs_at_the_points() -> None:
    points = torch.tensor([[[0.25, 0.75], [math.nan, math.nan]], [[0.1, 0.1], [0.9, 0.9]]])
    maps = fixation_maps(points, 8, 12)
    torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))
    assert maps[0].argmax().item() in (5 * 12 + 2, 5 * 12 + 3, 6 * 12 + 2, 6 * 12 + 3)
    assert fixation_maps(points, 8, 12, deviation=0.3)[0].max() < maps[0].max()
    torch.testing.assert_close(maps[1], maps[1].flip(0, 1))


def test_errors() -> None:
    maps, points = torch.rand(2, *CELLS), torch.rand(2, 3, 2)
    with pytest.raises(ShapeError, match=r"nss: expected points \(B, P, 2\)"):
        nss(maps, points[:1])
    with pytest.raises(TypeError, match="cc: expected floating-point truth"):
        cc(maps, maps > 0)
    with pytest.raises(ShapeError, match="sim: expected truth"):
        sim(maps, maps[:, :2])
    with pytest.raises(ValueError, match="information_gain: expected floor > 0"):
        information_gain(maps, points, floor=0.0)
