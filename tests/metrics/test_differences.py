"""Paired differences: corrected over all comparisons, over seeds and examples, and found only where they are."""

from __future__ import annotations

import numpy as np
import pytest

from foveate.metrics.statistics import holm, paired_differences, paired_permutation_test

NAN = float("nan")


def values(shift: float, seeds: int = 3, examples: int = 80, seed: int = 0) -> np.ndarray:
    """Examples share their difficulty; every seed adds noise."""
    difficulty = np.random.default_rng(9).normal(size=examples)
    return difficulty + shift + 0.3 * np.random.default_rng(seed).normal(size=(seeds, examples))


def test_a_planted_difference_stands_and_others_do_not() -> None:
    tables = {"js": {"softmax": values(0, seed=1), "tvmax": values(0, seed=2), "multimodal": values(-0.5, seed=3)}}
    same, lower = paired_differences(tables, against="softmax")
    assert (same.first, same.second, same.stands) == ("tvmax", "softmax", False)
    assert (lower.first, lower.stands) == ("multimodal", True)
    assert lower.interval.mean == pytest.approx(-0.5, abs=0.1)
    assert lower.means[0] - lower.means[1] == pytest.approx(lower.interval.mean)
    assert lower.corrected < 0.001


def test_p_values_are_corrected_over_all_measures_and_pairs() -> None:
    tables = {
        "a": {"x": values(0, seed=1), "y": values(0.05, seed=2), "z": values(0.1, seed=3)},
        "b": {"x": values(0, seed=4), "y": values(0.02, seed=5), "z": values(0, seed=6)},
    }
    found = paired_differences(tables)
    assert [(one.measure, one.first, one.second) for one in found] == [
        (m, *pair) for m in "ab" for pair in (("x", "y"), ("x", "z"), ("y", "z"))
    ]
    assert [one.corrected for one in found] == holm([one.p for one in found])
    assert found[0].p == paired_permutation_test(tables["a"]["x"].mean(0), tables["a"]["y"].mean(0))


def test_one_lucky_seed_does_not_stand() -> None:
    """A seed that is better on every example is found by the test over examples, but not by the interval over seeds."""
    lucky = values(0, seed=2)
    lucky[0] += 1.0
    found = paired_differences({"a": {"x": lucky, "y": values(0, seed=1)}})[0]
    assert found.corrected < 0.001
    assert not found.stands


def test_unknown_values_and_different_seeds() -> None:
    first, second = values(0.5, seeds=2, seed=1), values(0, seeds=1, seed=2)
    first[:, 5] = NAN
    second[:, 6] = NAN
    found = paired_differences({"a": {"x": first, "y": second}, "b": {"x": first * NAN, "y": second}})
    assert [one.measure for one in found] == ["a"]
    keep = [n for n in range(80) if n not in (5, 6)]
    assert found[0].means == pytest.approx((first.mean(0)[keep].mean(), second[0][keep].mean()))


def test_clusters_are_by_measure() -> None:
    same = np.repeat(np.random.default_rng(0).normal(0.4, size=8), 10)[None]
    tables = {"a": {"x": same, "y": np.zeros_like(same)}}
    alone = paired_differences(tables)[0]
    together = paired_differences(tables, clusters={"a": (np.arange(80) // 10).tolist()})[0]
    assert together.p > alone.p
