"""Faithfulness metrics: the values of pytorch-grad-cam and Quantus, slow references, and models of known relevance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import spsolve
from torch import Tensor, nn

from benchmarks.believe_peers import SIDE, Grey, Network, images_and_maps
from foveate.errors import ShapeError, UnknownName
from foveate.metrics import (
    Curve,
    comprehensiveness,
    deletion,
    erase,
    impute,
    insertion,
    randomisation,
    road,
    sensitivity,
    sufficiency,
)

PEERS = Path(__file__).parent / "peers.npz"


def score_of(model: nn.Module, classes: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda images: model(images)[torch.arange(len(images)), classes.repeat(len(images) // len(classes))]


@pytest.mark.parametrize("order", ["most", "least"])
def test_road_of_grad_cam(order: str) -> None:
    images, maps, classes = images_and_maps()
    theirs = np.load(PEERS)
    # its percentile p removes the fraction 1 - p / 100
    curve = road(
        score_of(Network(), classes), images, maps, fractions=(0.2, 0.5, 0.8), least_first=order == "least", noise=0.0
    )
    for place, percentile in ((1, 80), (2, 50), (3, 20)):
        change = curve.scores[:, place] - curve.scores[:, 0]
        expected = torch.from_numpy(theirs[f"road {order} {percentile}"]).double()
        torch.testing.assert_close(change, expected, atol=1e-6, rtol=1e-6)
    sign = 1 if order == "most" else -1
    gone = sign * maps >= (sign * maps).flatten(1).quantile(0.5, dim=1)[:, None, None]
    filled = impute(images, gone, noise=0.0)
    torch.testing.assert_close(filled, torch.from_numpy(theirs[f"road {order} images"]), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_pixel_flipping_of_quantus(value: float) -> None:
    images, maps, classes = images_and_maps()
    grey = images.mean(1, keepdim=True)
    curve = deletion(score_of(Grey(), classes), grey, maps, steps=16, fill=torch.tensor(value))
    expected = torch.from_numpy(np.load(PEERS)[f"flipping {value:g}"]).double()
    torch.testing.assert_close(curve.scores[:, 1:], expected, atol=1e-6, rtol=1e-6)


def slow_imputation(image: np.ndarray, gone: np.ndarray) -> np.ndarray:
    """The linear system pixel by pixel, solved directly."""
    H, W = gone.shape
    matrix, right = np.zeros((H * W, H * W)), np.zeros((H * W, len(image)))
    for i, j in np.ndindex(H, W):
        row = i * W + j
        if not gone[i, j]:
            matrix[row, row], right[row] = 1, image[:, i, j]
            continue
        for a in (-1, 0, 1):
            for b in (-1, 0, 1):
                if (a or b) and 0 <= i + a < H and 0 <= j + b < W:
                    weight = 1 / 12 if a and b else 1 / 6
                    matrix[row, row] += weight
                    matrix[row, (i + a) * W + j + b] = -weight
    solved: np.ndarray = spsolve(csr_matrix(matrix), right).reshape(H, W, -1).transpose(2, 0, 1)
    return solved


@pytest.mark.parametrize("share", [0.1, 0.5, 0.97])
def test_imputation_against_a_direct_solver(share: float) -> None:
    rng = np.random.default_rng(0)
    images, gone = rng.standard_normal((2, 3, 13, 17)), rng.random((2, 13, 17)) < share
    gone[1, 2:11, 3:15] = True  # one large hole as well
    ours = impute(torch.from_numpy(images), torch.from_numpy(gone), noise=0.0)
    for one, image, holes in zip(ours, images, gone, strict=True):
        torch.testing.assert_close(one, torch.from_numpy(slow_imputation(image, holes)), atol=1e-7, rtol=1e-7)


def test_imputation_of_nothing_everything_and_noise() -> None:
    images = torch.rand(1, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(impute(images, torch.zeros(1, 6, 6, dtype=torch.bool)), images)
    empty = impute(images, torch.ones(1, 6, 6, dtype=torch.bool), noise=0.0)
    torch.testing.assert_close(empty, images.mean((2, 3), keepdim=True).expand_as(images))
    gone = torch.zeros(1, 3, 3, dtype=torch.bool)
    gone[0, 1, 1] = True
    noisy = impute(images, gone, noise=0.5, generator=torch.Generator().manual_seed(0))
    plain = impute(images, gone, noise=0.0)
    changed = (noisy != plain).any(1)[0]
    assert changed[2:4, 2:4].all(), "cells cover pixels"
    assert changed.sum() == 4, "only missing ones get noise"
    coarse = impute(images, gone, noise=0.0, iterations=1)
    assert not torch.equal(coarse, plain)
    assert torch.isfinite(coarse).all()
    loose = impute(images, gone, noise=0.0, tolerance=1.0)
    assert not torch.allclose(loose, plain, atol=1e-9)


# ---- models whose relevant pixels are known --------------------------------------------------------------------------

SEEN = torch.zeros(6, 6)
SEEN[1, 2], SEEN[4, 4], SEEN[0, 5] = 3.0, 2.0, 1.0


def known_score(images: Tensor) -> Tensor:
    """A linear model that sees three pixels."""
    return (images[:, 0] * SEEN).sum((1, 2))


def known_images(B: int = 3) -> Tensor:
    return torch.rand(B, 1, 6, 6, generator=torch.Generator().manual_seed(1)) + 1


def slow_curve(images: Tensor, maps: Tensor, steps: int, value: float, keep: bool) -> Tensor:
    """Remove (or leave) one cell after another in a loop, for maps without ties."""
    rows = []
    for image, one in zip(images, maps, strict=True):
        order = sorted(np.ndindex(6, 6), key=lambda cell: -float(one[cell]))
        row = []
        for step in range(steps + 1):
            gone = order[: step * 36 // steps]
            left = [cell for cell in order if (cell in gone) == keep]
            changed = torch.full_like(image, value)
            for cell in left:
                changed[(0, *cell)] = image[(0, *cell)]
            row.append(known_score(changed[None])[0])
        rows.append(torch.stack(row))
    return torch.stack(rows).double()


@pytest.mark.parametrize("at_once", [1, 4, 20])
def test_deletion_and_insertion_by_a_loop(at_once: int) -> None:
    images = known_images()
    maps = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(2))
    black = torch.tensor(0.0)
    out = deletion(known_score, images, maps, steps=12, fill=black, at_once=at_once)
    torch.testing.assert_close(out.scores, slow_curve(images, maps, 12, 0.0, keep=False))
    into = insertion(known_score, images, maps, steps=12, fill=black, at_once=at_once)
    torch.testing.assert_close(into.scores, slow_curve(images, maps, 12, 0.0, keep=True))
    torch.testing.assert_close(out.area, torch.from_numpy(np.trapezoid(out.scores, np.linspace(0, 1, 13))))


def test_the_true_map_is_best_in_every_metric() -> None:
    images, black = known_images(), torch.tensor(0.0)
    truth, other = SEEN.expand(3, 6, 6), SEEN.flip(0).expand(3, 6, 6)
    for metric, sign in ((deletion, -1), (insertion, 1)):
        good, bad = (metric(known_score, images, maps, fill=black).area for maps in (truth, other))
        assert (sign * (good - bad) > 0).all(), metric
    assert (
        comprehensiveness(known_score, images, truth, fill=black)
        > comprehensiveness(known_score, images, other, fill=black)
    ).all()
    assert (
        sufficiency(known_score, images, truth, fill=black) < sufficiency(known_score, images, other, fill=black)
    ).all()
    spots = images * (1 + SEEN)  # imputation fills a pixel by its neighbours: what is seen must stand out
    most, least = (road(known_score, spots, truth, noise=0.0, least_first=flag).drop for flag in (False, True))
    assert (most > least).all()


def test_comprehensiveness_and_sufficiency_by_hand() -> None:
    images, black = known_images(), torch.tensor(0.0)
    maps = SEEN.expand(3, 6, 6)
    whole = known_score(images).double()
    best = (images[:, 0, 1, 2] * 3).double()  # 1 + floor(35 / 100) is one cell
    two = best + (images[:, 0, 4, 4] * 2).double()  # 1 + floor(35 * 0.05) = 2
    removed = comprehensiveness(known_score, images, maps, fractions=(0.01, 0.05), fill=black)
    torch.testing.assert_close(removed, (best + two) / 2)
    left = sufficiency(known_score, images, maps, fractions=(0.01, 0.05), fill=black)
    torch.testing.assert_close(left, whole - (best + two) / 2)


def test_equal_cells_go_in_one_fixed_mixed_order() -> None:
    images, maps = known_images(), torch.full((3, 6, 6), 0.5)
    seen: list[Tensor] = []
    curve = deletion(
        lambda x: x.sum((1, 2)), images, maps, steps=4, fill=lambda x, gone: seen.append(gone) or gone * 1.0
    )
    assert curve.scores[0].tolist() == [0, 9, 18, 27, 36]
    half = seen[2][0]
    assert 3 < half[:3].sum() < 15, "not from the top"
    again = deletion(lambda x: x.sum((1, 2)), images, maps * 0, steps=4, fill=lambda x, gone: gone * 1.0)
    torch.testing.assert_close(again.scores, curve.scores)
    assert torch.equal(seen[2][0], seen[2][1])


def test_removal_works_on_maps_of_another_resolution() -> None:
    images = known_images()
    gone: list[Tensor] = []

    def score(x: Tensor) -> Tensor:
        gone.append(x[:, 0] == 0)
        return known_score(x)

    maps = torch.rand(3, 2, 3, generator=torch.Generator().manual_seed(2))
    deletion(score, images, maps, steps=6, fill=torch.tensor(0.0))
    first = gone[1].view(3, 2, 3, 3, 2).float().mean((2, 4))
    torch.testing.assert_close(first, (maps == maps.amax((1, 2), keepdim=True)).float())


def test_fills_differ_and_the_whole_image_is_untouched() -> None:
    images, maps = known_images(), SEEN.expand(3, 6, 6)
    curves = {fill: deletion(known_score, images, maps, steps=4, fill=fill).scores for fill in ("blur", "mean", "road")}
    for one in curves.values():
        torch.testing.assert_close(one[:, 0], known_score(images).double())
    assert not torch.allclose(curves["blur"], curves["mean"])
    assert not torch.allclose(curves["mean"], curves["road"])


def test_erase_mixes_by_the_amount() -> None:
    images = known_images(1)
    amount = torch.full((1, 3, 3), 0.25)
    expected = 0.75 * images + 0.25 * images.mean((2, 3), keepdim=True)
    torch.testing.assert_close(erase(images, amount, "mean"), expected)
    flat = torch.full_like(images, 2.0)
    torch.testing.assert_close(erase(flat, amount, "blur"), flat)
    torch.testing.assert_close(erase(images, amount.bool(), "road"), impute(images, amount.bool(), noise=0.0))


def test_the_number_of_calls_is_known_before_the_first() -> None:
    images, maps, calls = known_images(), SEEN.expand(3, 6, 6), 0

    def score(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        assert not torch.is_grad_enabled()
        return known_score(x)

    lengths: list[tuple[int, int]] = []

    def progress(batches):
        lengths.append((len(batches), calls))
        return batches

    deletion(score, images, maps, steps=20, progress=progress)
    assert lengths == [(21, 0)]
    assert calls == 21
    deletion(score, images, maps, steps=20, at_once=5, progress=progress)
    assert lengths[1] == (5, 21)
    assert calls == 26
    for metric in (insertion, road, comprehensiveness, sufficiency):
        before = calls
        metric(score, images, maps, progress=progress, at_once=2)
        assert lengths[-1] == (calls - before, before), metric


def test_road_noise_follows_the_seed() -> None:
    images, maps = known_images(), SEEN.expand(3, 6, 6)
    first, same, other, loud = (
        road(known_score, images, maps, fractions=(0.5,), seed=seed, noise=noise).scores
        for seed, noise in ((0, 0.1), (0, 0.1), (1, 0.1), (0, 0.4))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert not torch.equal(first, loud)


def test_curves() -> None:
    curve = Curve(torch.tensor([0.0, 0.2, 1.0]), torch.tensor([[4.0, 2.0, 0.0], [1.0, 1.0, 3.0]]))
    torch.testing.assert_close(curve.cost(0.1), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(curve.cost(0.2), torch.tensor([2.0, 0.0]))
    torch.testing.assert_close(curve.cost(1.0), torch.tensor([4.0, -2.0]))
    torch.testing.assert_close(curve.cost(0.0), torch.zeros(2))
    torch.testing.assert_close(curve.drop, torch.tensor([3.0, -1.0]))
    torch.testing.assert_close(curve.area, torch.tensor([0.2 * 3 + 0.8 * 1, 0.2 + 0.8 * 2]))


def test_sensitivity() -> None:
    images = known_images()
    assert sensitivity(lambda x: torch.ones(3, 2, 2), images).tolist() == [0, 0, 0]
    assert sensitivity(lambda x: torch.zeros(3, 2, 2), images).tolist() == [0, 0, 0]
    small, large, more, other = (
        sensitivity(lambda x: x[:, 0], images, radius=radius, samples=samples, seed=seed)
        for radius, samples, seed in ((0.02, 4, 0), (0.04, 4, 0), (0.02, 40, 0), (0.02, 4, 1))
    )
    torch.testing.assert_close(large, 2 * small)
    assert (more >= small).all()
    assert (more > small).any()
    assert not torch.equal(small, other)
    # every draw is within the radius
    assert (small * images.flatten(1).norm(dim=1) <= 0.02 * 6).all()


def test_randomisation_tells_a_map_of_the_model_from_a_map_of_the_image() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 1, 3, padding=1, bias=False))
    images = torch.rand(12, 1, 8, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    order: list[str] = []

    def of_model(x: Tensor) -> Tensor:
        changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
        order.append(",".join(changed))
        with torch.no_grad():
            return model(x)[:, 0]

    found = randomisation(of_model, images, model)
    assert found.layers == ("2", "0")
    assert found.similarity.shape == (2, 12)
    assert order == ["", "2.weight", "0.weight,0.bias,2.weight"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    edges = randomisation(lambda x: x[:, 0].square(), images, model)
    assert edges.similarity.min() == 1
    assert not edges.is_sensitive
    assert not torch.equal(randomisation(of_model, images, model, seed=5).similarity, found.similarity)
    flat = randomisation(of_model, images, model, similarity=lambda a, b: torch.zeros(len(a)))
    assert flat.similarity.abs().max() == 0
    assert flat.is_sensitive


def test_randomisation_restores_after_an_error() -> None:
    model = nn.Linear(2, 2)
    before = [value.clone() for value in model.parameters()]
    calls = 0

    def explain(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise RuntimeError("stop")
        return images[:, 0]

    with pytest.raises(RuntimeError, match="stop"):
        randomisation(explain, torch.rand(1, 1, 2, 2), model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_a_single_image_has_no_unrelated_ones() -> None:
    found = randomisation(lambda x: x[:, 0], torch.rand(1, 1, 2, 2), nn.Linear(2, 2))
    assert found.unrelated.isnan().all()


def test_errors() -> None:
    images, maps = known_images(), SEEN.expand(3, 6, 6)
    with pytest.raises(ShapeError, match=r"deletion: expected maps \(B, h, w\)"):
        deletion(known_score, images, maps[:2])
    with pytest.raises(ShapeError, match="insertion: expected the result of score"):
        insertion(lambda x: x.mean(), images, maps)
    with pytest.raises(UnknownName, match="'blurr'; did you mean 'blur'"):
        deletion(known_score, images, maps, fill="blurr")
    with pytest.raises(ValueError, match="road: expected ascending fractions"):
        road(known_score, images, maps, fractions=(0.5, 0.2))
    with pytest.raises(ValueError, match="deletion: expected steps as a whole number"):
        deletion(known_score, images, maps, steps=0)
    with pytest.raises(ShapeError, match="faithfulness: expected maps without NaN"):
        deletion(known_score, images, maps / 0 * 0)
    with pytest.raises(ValueError, match="sensitivity: expected radius"):
        sensitivity(known_score, images, radius=-1.0)
    assert SIDE == 32
