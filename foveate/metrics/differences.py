"""Which of several methods differ on the same examples, and by how much, in numbers and in words."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from foveate.metrics.statistics import (
    Floats,
    Interval,
    Values,
    bootstrap_interval,
    holm,
    paired_permutation_test,
)

SIGNIFICANT = 0.05


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
