"""Statistics against scipy, published tables, slow references and simulated errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from foveate.errors import ShapeError, UnknownName
from foveate.metrics.statistics import (
    MOST_BLOCKS,
    bootstrap_interval,
    holm,
    krippendorff_alpha,
    paired_permutation_test,
)

NAN = float("nan")
# Krippendorff 2011, "Computing Krippendorff's Alpha-Reliability", section E: four observers, twelve units.
PUBLISHED = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
    [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
]


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_has_the_published_values(level: str, alpha: float) -> None:
    assert krippendorff_alpha(PUBLISHED, level) == pytest.approx(alpha, abs=5e-4)  # type: ignore[arg-type]


def test_alpha_equals_a_sum_over_pairs_of_ratings() -> None:
    table = np.random.default_rng(0).integers(1, 6, (3, 20)).astype(float)
    table[np.random.default_rng(1).random(table.shape) < 0.2] = NAN
    kept = [column[~np.isnan(column)] for column in table.T]
    kept = [column for column in kept if len(column) > 1]
    within = sum(((a - b) ** 2) / (len(c) - 1) for c in kept for a, b in itertools.permutations(c, 2))
    everything = np.concatenate(kept)
    n = len(everything)
    among = sum((a - b) ** 2 for a, b in itertools.permutations(everything, 2)) / (n * (n - 1))
    assert krippendorff_alpha(table, "interval") == pytest.approx(1 - within / n / among, abs=1e-12)


def test_alpha_at_its_edges() -> None:
    assert krippendorff_alpha([[1, 2, 3], [1, 2, 3]]) == 1.0
    assert np.isnan(krippendorff_alpha([[1, 2, NAN], [NAN, NAN, 3]]))  # no item has two ratings
    assert np.isnan(krippendorff_alpha([[4, 4], [4, 4]]))
    assert krippendorff_alpha([[1, 5, 1, 5], [5, 1, 5, 1]], "interval") < 0
    with pytest.raises(ShapeError, match="one row per rater"):
        krippendorff_alpha([1, 2, 3])
    with pytest.raises(UnknownName, match="ordinal"):
        krippendorff_alpha(PUBLISHED, "ordnal")  # type: ignore[arg-type]


def test_interval_is_that_of_scipy() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=60)
    ours = bootstrap_interval(values, level=0.9)
    theirs = stats.bootstrap(
        (values,), np.mean, confidence_level=0.9, n_resamples=20_000, method="percentile", rng=1
    ).confidence_interval
    spread = theirs.high - theirs.low
    assert ours.mean == pytest.approx(values.mean())
    assert [ours.low, ours.high] == pytest.approx([theirs.low, theirs.high], abs=0.03 * spread)
    assert bootstrap_interval(values, seed=1) != bootstrap_interval(values, seed=2)
    assert bootstrap_interval(values, resamples=50) != bootstrap_interval(values)


def test_interval_counts_clusters_and_seeds() -> None:
    generator = np.random.default_rng(0)
    images, seeds = generator.normal(size=50), generator.normal(size=3)
    values = images.repeat(10)  # ten questions per image with the same result: fifty independent values, not 500
    alone, together = bootstrap_interval(values), bootstrap_interval(values, clusters=np.arange(500) // 10)
    assert together.high - together.low == pytest.approx(np.sqrt(10) * (alone.high - alone.low), rel=0.1)
    one, several = bootstrap_interval(images), bootstrap_interval(images + seeds[:, None])
    assert several.high - several.low > 1.5 * (one.high - one.low)


def test_interval_skips_what_is_unknown() -> None:
    assert bootstrap_interval([1.0, NAN, 3.0, NAN]).mean == 2.0
    assert bootstrap_interval([[1.0, NAN], [NAN, 3.0]]).mean == 2.0
    with pytest.raises(ValueError, match="at least one known value"):
        bootstrap_interval([NAN])
    with pytest.raises(ShapeError, match="one cluster per example"):
        bootstrap_interval([1.0, 2.0], clusters=["a"])


def test_many_examples_are_pooled_into_blocks() -> None:
    values = np.random.default_rng(0).normal(size=5 * MOST_BLOCKS)
    found = bootstrap_interval(values, resamples=2000)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert [found.low, found.high] == pytest.approx([found.mean - half, found.mean + half], abs=0.1 * half)
    shifted = values + 0.01
    p = paired_permutation_test(shifted, values + np.random.default_rng(1).normal(size=len(values)), resamples=2000)
    assert 0 < p <= 1


@pytest.mark.parametrize("n", [2, 9])
def test_permutation_test_enumerates_like_scipy(n: int) -> None:
    generator = np.random.default_rng(n)
    first, second = generator.normal(size=n), generator.normal(0.4, size=n)
    theirs = stats.permutation_test(
        (first, second), lambda a, b, axis: (a - b).mean(axis), permutation_type="samples", vectorized=True
    )
    assert paired_permutation_test(first, second) == pytest.approx(theirs.pvalue)


def test_permutation_test_draws_like_scipy_enumerates() -> None:
    generator = np.random.default_rng(3)
    first = generator.normal(size=16)
    second = first - generator.normal(0.3, size=16)
    exact = paired_permutation_test(first, second, resamples=2**16)
    assert paired_permutation_test(first, second, resamples=5000) == pytest.approx(exact, abs=0.02)
    assert paired_permutation_test(first, second, resamples=5000, seed=1) != paired_permutation_test(
        first, second, resamples=5000
    )


def test_permutation_test_of_equal_methods() -> None:
    assert paired_permutation_test([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert paired_permutation_test([1.0, NAN, 0.0], [0.0, 5.0, NAN]) == 1.0  # one known pair: both signs are as extreme


def test_permutation_test_keeps_its_level_under_clusters() -> None:
    """Without clusters, results that are equal within an image would be called different far too often."""
    generator, image = np.random.default_rng(0), np.arange(200) // 10
    found = {"clusters": 0, "none": 0}
    for _ in range(100):
        difference = generator.normal(size=20).repeat(10)
        zero = np.zeros(200)
        found["clusters"] += paired_permutation_test(difference, zero, clusters=image, resamples=400) <= 0.05
        found["none"] += paired_permutation_test(difference, zero, resamples=400) <= 0.05
    assert found["clusters"] <= 12
    assert found["none"] >= 30


def test_holm_is_a_step_down_bonferroni() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        p = generator.random(6) ** 3
        order = np.argsort(p)
        rejected = set()
        for rank, place in enumerate(order):  # the procedure as Holm describes it
            if p[place] > 0.05 / (6 - rank):
                break
            rejected.add(place)
        assert {place for place, value in enumerate(holm(p.tolist())) if value <= 0.05} == rejected
    assert holm([]) == []
    assert holm([0.7, 0.9]) == [1.0, 1.0]
