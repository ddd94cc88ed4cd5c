"""Which differences are significant: bootstrap intervals, permutation tests, corrected p-values, rater agreement."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from foveate.checks import check_number
from foveate.errors import ShapeError, WrongValue
from foveate.registry import lookup

Values: TypeAlias = npt.ArrayLike
Floats: TypeAlias = npt.NDArray[np.float64]
Level: TypeAlias = Literal["nominal", "ordinal", "interval"]

SIGNIFICANT = 0.05
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
        raise WrongValue(f"{where}: expected at least one known value, got none; check the examples")


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


@dataclass(frozen=True)
class PairedDifference:
    """One measure of two methods on the same examples.

    Attributes:
        measure: name of the measure.
        first, second: names of the methods.
        means: of each, over the examples that both have.
        interval: of first minus second, by drawing repetitions (seeds, raters) and examples.
        p: of the paired permutation test over examples, averaged over repetitions.
        corrected: `p` after Holm's correction for all comparisons that were made together.
    """

    measure: str
    first: str
    second: str
    means: tuple[float, float]
    interval: Interval
    p: float
    corrected: float

    @property
    def stands(self) -> bool:
        """True if the corrected p-value is at most 0.05 and the interval excludes zero.

        The test knows nothing about how much another seed would change; the interval does.
        """
        return self.corrected <= SIGNIFICANT and self.interval.excludes_zero


def paired_differences(
    tables: Mapping[str, Mapping[str, Values]],
    *,
    clusters: Mapping[str, Sequence[Hashable]] | None = None,
    against: str | None = None,
    resamples: int = 10_000,
    seed: int = 0,
) -> list[PairedDifference]:
    """Compare methods on the same examples, for one or several measures, with p-values corrected for all of them.

    Args:
        tables: per measure and method the values (S, n) of n examples in S repetitions; NaN where unknown.
        clusters: per measure (n,) what its examples belong to, see `bootstrap_interval`.
        against: compare every method with this one; None compares all pairs.
        resamples, seed: as in `bootstrap_interval`.

    Returns:
        one difference per measure and pair that share an example, in order.

    >>> values = {"a": [[3.0, 4.0, 5.0, 4.0, 5.0, 4.0]], "b": [[1.0, 2.0, 1.0, 2.0, 1.0, 2.0]]}
    >>> found = paired_differences({"quality": values})[0]
    >>> found.means, found.p, found.stands
    ((4.166666666666667, 1.5), 0.03125, True)
    """
    found = []
    for measure, methods in tables.items():
        pairs = combinations(methods, 2) if against is None else ((n, against) for n in methods if n != against)
        for first, second in pairs:
            a, b = (np.atleast_2d(np.asarray(methods[name], np.float64)) for name in (first, second))
            difference = _difference(a, b)
            if not np.isnan(difference).all():
                groups = None if clusters is None else clusters[measure]
                interval = bootstrap_interval(difference, clusters=groups, resamples=resamples, seed=seed)
                means, own, other = _means(a, b)
                p = paired_permutation_test(own, other, clusters=groups, resamples=resamples, seed=seed)
                found.append(PairedDifference(measure, first, second, means, interval, p, p))
    corrected = holm([one.p for one in found])
    return [replace(one, corrected=value) for one, value in zip(found, corrected, strict=True)]


def _difference(a: Floats, b: Floats) -> Floats:
    """(S, n) differences by repetition, or (1, n) of the means if the methods have different numbers of them."""
    return a - b if a.shape == b.shape else _mean(a)[None] - _mean(b)[None]


def _means(a: Floats, b: Floats) -> tuple[tuple[float, float], Floats, Floats]:
    """The means of both over the examples that both have, and the values (n,) of each example."""
    own, other = _mean(a), _mean(b)
    both = ~np.isnan(own + other)
    return (float(own[both].mean()), float(other[both].mean())), own, other


def _mean(values: Floats) -> Floats:
    """(n,) means over repetitions, NaN where no repetition has a value."""
    known = ~np.isnan(values)
    count = known.sum(0)
    return np.where(count > 0, np.where(known, values, 0).sum(0) / np.maximum(count, 1), np.nan)


def p_in_words(p: float) -> str:
    """A p-value as it is written in a sentence.

    >>> p_in_words(0.0004), p_in_words(0.031), p_in_words(0.2)
    ('p < 0.001', 'p = 0.031', 'p = 0.20')
    """
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
