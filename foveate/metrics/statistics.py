"""Which differences are significant: bootstrap intervals, permutation tests, corrected p-values, rater agreement."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from foveate.checks import check_number
from foveate.errors import ShapeError
from foveate.registry import lookup

Values: TypeAlias = npt.ArrayLike
Floats: TypeAlias = npt.NDArray[np.float64]
Level: TypeAlias = Literal["nominal", "ordinal", "interval"]

# More clusters than this are pooled at random into this many blocks: resampling blocks is as valid, and takes seconds.
MOST_BLOCKS = 4096
# Random numbers that are drawn at once.
DRAWN = 1 << 22


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval.

    >>> f"{Interval(0.5, 0.4, 0.6)}", Interval(0.5, 0.4, 0.6).brief
    ('0.500 [0.400, 0.600]', '0.50±0.10')
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def brief(self) -> str:
        """The mean and half the width of the interval."""
        return f"{self.mean:.2f}±{(self.high - self.low) / 2:.2f}"

    @property
    def excludes_zero(self) -> bool:
        """True if zero is outside the interval."""
        return self.low > 0 or self.high < 0


def bootstrap_interval(
    values: Values,
    *,
    clusters: Sequence[Hashable] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """The mean of values with its percentile bootstrap interval.

    Examples are drawn with replacement; the interval lies between the quantiles (1 ∓ level)/2 of the means.

    Args:
        values: (n,) one per example, or (S, n) from S repetitions such as the seeds of a training, which are then drawn
            with replacement too. NaN is unknown and is skipped.
        clusters: (n,) what examples belong to, such as the image of a question: examples of one cluster are drawn
            together. By default every example is a cluster of its own.
        level: of the interval.
        resamples: number of draws.
        seed: of the draws.

    Reference: Efron and Tibshirani 1993, chapter 13.

    >>> bootstrap_interval([1.0, 2.0, 3.0, 4.0])
    Interval(mean=2.5, low=1.5, high=3.5)
    """
    table = np.atleast_2d(np.asarray(values, np.float64))
    _check_examples("bootstrap_interval", table, clusters)
    check_number("bootstrap_interval", "level", level, above=0, advice="0.95 is usual")
    check_number("bootstrap_interval", "resamples", resamples, least=1, advice="10000 is usual")
    generator = np.random.default_rng(seed)
    known = ~np.isnan(table)
    totals, counts = _by_cluster([np.where(known, table, 0.0), known.astype(float)], clusters, generator)
    means = []
    for size in _chunks(resamples, totals.shape[1]):
        drawn = generator.integers(totals.shape[1], size=(size, totals.shape[1]))
        rows = generator.multinomial(len(table), [1 / len(table)] * len(table), size).astype(float)
        total = np.take_along_axis(rows @ totals, drawn, 1).sum(1)
        count = np.take_along_axis(rows @ counts, drawn, 1).sum(1)
        means.append(total[count > 0] / count[count > 0])
    low, high = np.quantile(np.concatenate(means), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(table[known].mean()), float(low), float(high))


def paired_permutation_test(
    first: Values,
    second: Values,
    *,
    clusters: Sequence[Hashable] | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> float:
    """The two-sided p-value of the hypothesis that it does not matter which of two methods an example was given to.

    Under it, the sign of every difference d_i is random: p = P(|Σ s_i d_i| ≥ |Σ d_i|) with s_i = ±1. All signs are
    enumerated if there are at most `resamples` of them; otherwise they are drawn, and the observed ones count as one
    draw, so that p is never zero.

    Args:
        first, second: (n,) values of the same examples with each method; pairs with a NaN are skipped.
        clusters: as in `bootstrap_interval`; examples of one cluster change their sign together.
        resamples, seed: as in `bootstrap_interval`.

    Reference: Good 2005, §3.2 (matched pairs).

    >>> paired_permutation_test([1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.0, 3.5])
    0.125
    """
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    _check_examples("paired_permutation_test", np.atleast_2d(difference), clusters)
    check_number("paired_permutation_test", "resamples", resamples, least=1, advice="10000 is usual")
    generator = np.random.default_rng(seed)
    known = np.where(np.isnan(difference), 0.0, difference)[None]
    sums = _by_cluster([known], clusters, generator)[0][0]
    sums = sums[sums != 0]
    # Sums that differ only by rounding count as equal.
    least = abs(sums.sum()) - 1e-12 * np.abs(sums).sum()
    if 2 ** min(len(sums), 60) <= resamples:
        signs = 1 - 2.0 * (np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums)) & 1)
        return float(np.mean(np.abs(signs @ sums) >= least))
    extreme = sum(
        int(np.count_nonzero(np.abs(_signs(generator, size, len(sums)) @ sums) >= least))
        for size in _chunks(resamples, len(sums))
    )
    return (1 + extreme) / (1 + resamples)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected for their number: p_(i) → max_{j ≤ i} min(1, (m − j + 1) p_(j)).

    To reject what is at most α keeps the probability of any false rejection at α, whatever the tests have in common.

    Reference: Holm 1979.

    >>> holm([0.01, 0.04, 0.03, 0.005])
    [0.03, 0.06, 0.06, 0.02]
    """
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected


def krippendorff_alpha(ratings: Values, level: Level = "ordinal") -> float:
    """Agreement of raters: α = 1 − D_observed / D_expected; 1 is perfect agreement, 0 is that of chance.

    Args:
        ratings: (raters, items); NaN where a rater has not rated an item.
        level: how far two ratings are apart: "nominal" equal or not; "ordinal" by the number of ratings between them;
            "interval" the square of their difference.

    Returns:
        α; NaN if no item has two ratings or all ratings are equal, where agreement is not defined.

    Reference: Krippendorff 2011.

    >>> round(krippendorff_alpha([[1, 2, 3, 3], [1, 2, 3, 4]], "interval"), 3)
    0.889
    """
    lookup("level", level, _DISTANCES)
    table = np.asarray(ratings, np.float64)
    if table.ndim != 2:
        raise ShapeError(
            f"krippendorff_alpha: expected ratings (raters, items), got {table.shape}; pass one row per rater"
        )
    categories = np.unique(table[~np.isnan(table)])
    counts = (table[..., None] == categories).sum(0).astype(float)  # (items, categories)
    counts = counts[counts.sum(1) >= 2]  # an item that one rater rated says nothing about agreement
    per_item, per_category = counts.sum(1, keepdims=True), counts.sum(0)
    distance = _DISTANCES[level](categories, per_category)
    observed = ((counts / (per_item - 1)).T @ counts * distance).sum()
    expected = (np.outer(per_category, per_category) * distance).sum() / max(per_category.sum() - 1, 1)
    return float(1 - observed / expected) if expected > 0 else float("nan")


def _nominal(categories: Floats, counts: Floats) -> Floats:
    return 1 - np.eye(len(categories))


def _ordinal(categories: Floats, counts: Floats) -> Floats:
    # Ratings up to and including a category, half of its own not counted: differences are the ratings between two.
    middle = np.cumsum(counts) - counts / 2
    return np.square(middle[:, None] - middle)


def _interval(categories: Floats, counts: Floats) -> Floats:
    return np.square(categories[:, None] - categories)


_DISTANCES = {"nominal": _nominal, "ordinal": _ordinal, "interval": _interval}


def _check_examples(where: str, table: Floats, clusters: Sequence[Hashable] | None) -> None:
    if table.ndim != 2 or (clusters is not None and len(clusters) != table.shape[1]):
        given = "none" if clusters is None else len(clusters)
        raise ShapeError(
            f"{where}: expected values (n,) or (S, n) and n clusters, got {table.shape} and {given}; "
            "pass one value and one cluster per example"
        )
    if not table.size or np.isnan(table).all():
        raise ValueError(f"{where}: expected at least one known value, got none; check the examples")


def _by_cluster(
    tables: Sequence[Floats], clusters: Sequence[Hashable] | None, generator: np.random.Generator
) -> list[Floats]:
    """Each (S, n) table summed over the examples of each cluster; many clusters are pooled into blocks."""
    numbers: dict[Hashable, int] = {}
    n = tables[0].shape[1]
    places = np.arange(n) if clusters is None else np.array([numbers.setdefault(c, len(numbers)) for c in clusters])
    size = int(places.max()) + 1
    if size > MOST_BLOCKS:
        # A random order, dealt out evenly.
        places, size = generator.permutation(size)[places] % MOST_BLOCKS, MOST_BLOCKS
    return [np.stack([np.bincount(places, row, size) for row in table]) for table in tables]


def _signs(generator: np.random.Generator, rows: int, columns: int) -> npt.NDArray[Any]:
    return 1 - 2.0 * generator.integers(2, size=(rows, columns), dtype=np.int8)


def _chunks(total: int, width: int) -> Iterator[int]:
    """Numbers that add up to `total`, each small enough for a table of this width."""
    size = max(1, DRAWN // max(1, width))
    for start in range(0, total, size):
        yield min(size, total - start)
