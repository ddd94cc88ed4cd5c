from __future__ import annotations

import math

import pytest
import torch
from scipy import ndimage, stats

from foveate.errors import ShapeError
from foveate.metrics import (
    AttentionMetrics,
    centre_maps,
    components,
    connected_regions,
    mass_inside,
    pointing,
    random_maps,
    spearman,
    support_area,
    uniform_maps,
)
from foveate.ops.divergence import js_divergence
from foveate.ops.gaussian import Gaussian
from foveate.ops.mixture import Mixture


def some_maps(B: int = 6, H: int = 5, W: int = 7, seed: int = 0) -> torch.Tensor:
    """Sparse maps with ties."""
    weights = torch.rand(B, H, W, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = torch.where(weights > 0.5, weights.mul(4).round(), 0.0)
    return weights / weights.sum((-2, -1), keepdim=True)


def test_spearman_against_scipy() -> None:
    a, b = some_maps(seed=0), some_maps(seed=1)
    for one, other, ours in zip(a, b, spearman(a, b), strict=True):
        assert ours.item() == pytest.approx(stats.spearmanr(one.flatten(), other.flatten()).statistic)
    assert spearman(uniform_maps(1, 5, 7).double(), a[:1]).item() == 0


def test_mass_and_pointing() -> None:
    maps = torch.tensor([[[0.4, 0.4], [0.2, 0.0]]])
    assert mass_inside(maps, torch.tensor([[[1.0, 0.0], [0.5, 0.0]]])).item() == pytest.approx(0.5)
    assert pointing(maps, torch.tensor([[[0.0, 0.1], [1.0, 0.0]]])).item() == 0.5
    assert pointing(maps, torch.tensor([[[0.3, 0.1], [0.0, 0.0]]])).item() == 1.0


def test_support_area() -> None:
    maps = some_maps()
    assert support_area(maps)[0].item() == pytest.approx((maps[0] > 0).sum().item() / 35)


@pytest.mark.parametrize("above", [0.0, 1.0, 2.0])
def test_regions_against_scipy(above: float) -> None:
    maps = some_maps(B=20, H=8, W=9)
    ours = connected_regions(maps, above)
    for one, count in zip(maps, ours.tolist(), strict=True):
        assert count == ndimage.label(one.numpy() > above / 72)[1]


def test_regions_of_a_spiral_are_one() -> None:
    spiral = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 1, 1, 0, 1], [1, 0, 0, 0, 1], [1, 1, 1, 1, 1]])
    assert connected_regions(spiral[None] / spiral.sum(), above=0).item() == 1
    diagonal = torch.eye(3)[None] / 3
    assert connected_regions(diagonal).item() == 3


def test_components_counts_those_with_mass() -> None:
    pair = Gaussian(torch.rand(2, 3, 2), 0.01 * torch.eye(2).expand(2, 3, 2, 2))
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]])
    assert components(Mixture(pair, weights)).tolist() == [2, 1]


def test_baselines_are_distributions() -> None:
    for maps in (uniform_maps(2, 3, 5), centre_maps(2, 3, 5), random_maps(2, 3, 5)):
        assert maps.shape == (2, 3, 5)
        torch.testing.assert_close(maps.sum((1, 2)), torch.ones(2))
    wide, narrow = centre_maps(1, 9, 9, deviation=1.0), centre_maps(1, 9, 9, deviation=0.1)
    assert narrow[0, 4, 4] > wide[0, 4, 4]
    assert not torch.equal(random_maps(1, 3, 3), random_maps(1, 3, 3))


def test_maps_against_each_annotator_and_annotators_among_themselves() -> None:
    maps, humans = some_maps(B=3), torch.stack([some_maps(B=3, seed=s) for s in (1, 2, 3)], 1)
    humans[1, 2] = 0  # only two annotators
    humans[2, 1:] = 0  # only one annotator
    metrics = AttentionMetrics(size=(5, 7))
    metrics.update(maps, human_maps=humans)
    result = metrics.compute()
    expected = torch.stack(
        [
            js_divergence(maps[0].expand(3, 5, 7), humans[0]).mean(),
            js_divergence(maps[1].expand(2, 5, 7), humans[1, :2]).mean(),
            js_divergence(maps[2], humans[2, 0]),
        ]
    ).mean()
    assert result["js"] == pytest.approx(expected.item())
    pairs = [(0, 1), (0, 2), (1, 2)]
    among = [
        sum(js_divergence(humans[0, i], humans[0, j]).item() for i, j in pairs) / 3,
        js_divergence(humans[1, 0], humans[1, 1]).item(),
    ]
    assert result["js of people"] == pytest.approx(sum(among) / 2)
    assert metrics.means.counts()["js of people"] == 2
    assert "mass" not in result


def test_maps_against_a_region() -> None:
    region = torch.zeros(2, 4, 4)
    region[0, :2] = 1
    maps = torch.zeros(2, 4, 4)
    maps[:, 0, 0] = 1
    metrics = AttentionMetrics(size=(4, 4))
    metrics.update(maps, region=region, groups=[("two-distant",), ()])
    result, counts = metrics.compute(), metrics.means.counts()
    assert result["mass"] == result["pointing"] == 1
    assert result["mass of uniform"] == pytest.approx(0.5)
    assert result["area"] == pytest.approx(1 / 16)
    assert result["entropy"] == 0
    assert result["regions"] == 1
    assert counts["mass"] == 1  # nothing is known about the second
    assert counts["area"] == 2
    even = torch.zeros(4, 4)
    even[:2] = 1 / 8
    assert result["js/two-distant"] == pytest.approx(js_divergence(maps[0], even).item())


def test_a_map_without_attention_still_counts() -> None:
    metrics = AttentionMetrics(size=(2, 2))
    metrics.update(torch.zeros(1, 2, 2), region=torch.ones(1, 2, 2))
    assert metrics.means.counts()["js"] == 1


def test_options_of_the_divergence_count() -> None:
    maps, region = some_maps(B=1), (some_maps(B=1, seed=3) > 0).double()
    values = {}
    for name, options in {"bits": {}, "nats": {"base": math.e}, "distance": {"distance": True}}.items():
        metrics = AttentionMetrics(size=(5, 7), **options)
        metrics.update(maps, region=region)
        values[name] = metrics.compute()["js"]
    assert values["nats"] == pytest.approx(values["bits"] * math.log(2))
    assert values["distance"] == pytest.approx(math.sqrt(values["bits"]))


def test_components_are_reported_for_densities_only() -> None:
    density = Gaussian(torch.full((2, 2), 0.5), 0.01 * torch.eye(2).expand(2, 2, 2))
    metrics = AttentionMetrics(size=(4, 4))
    metrics.update(density.to_map(4, 4), density=density)
    assert metrics.compute()["components"] == 1
    assert "components = 1" not in metrics.compute()  # nothing to choose


def test_fractions_of_the_number_of_components() -> None:
    pair = Gaussian(torch.rand(4, 3, 2), 0.01 * torch.eye(2).expand(4, 3, 2, 2))
    weights = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    metrics = AttentionMetrics(size=(4, 4))
    for rows in (slice(0, 1), slice(1, 4)):
        density = Mixture(Gaussian(pair.mean[rows], pair.covariance[rows]), weights[rows])
        metrics.update(density.to_map(4, 4), density=density)
    result = metrics.compute()
    assert [result[f"components = {k}"] for k in (1, 2, 3)] == [0.75, 0.25, 0.0]
    assert result["components"] == 1.25


def test_errors() -> None:
    with pytest.raises(ShapeError, match=r"spearman: expected the other maps \(B, H, W\) of sizes \(1, 2, 2\)"):
        spearman(torch.zeros(1, 2, 2), torch.zeros(1, 3, 3))
    with pytest.raises(ShapeError, match=r"AttentionMetrics: expected maps \(B, H, W\) of sizes \(any, 14, 14\)"):
        AttentionMetrics().update(torch.zeros(1, 2, 2))
    with pytest.raises(ShapeError, match=r"AttentionMetrics: expected region \(B, H, W\)"):
        AttentionMetrics((2, 2)).update(torch.zeros(1, 2, 2), region=torch.zeros(1, 3, 3))
    with pytest.raises(ShapeError, match=r"AttentionMetrics: expected human_maps \(B, L, H, W\)"):
        AttentionMetrics((2, 2)).update(torch.zeros(1, 2, 2), human_maps=torch.zeros(1, 3, 3))
    with pytest.raises(ValueError, match="connected_regions: expected above >= 0, got -1"):
        connected_regions(torch.zeros(1, 2, 2), -1)
    with pytest.raises(ValueError, match="centre_maps: expected deviation > 0, got 0"):
        centre_maps(1, 2, 2, 0)
