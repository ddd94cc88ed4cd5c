"""Shared by the benchmarks of models: mechanisms in one model, measured in turns and compared with softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch


def softmax_first(text: str) -> list[str]:
    """Names separated by commas, with softmax, to which the others are compared, in front."""
    return ["softmax", *(name for name in text.split(",") if name != "softmax")]


def by_turns(names: Sequence[str], once: Callable[[str], float], rounds: int) -> dict[str, float]:
    """The median over the rounds of the seconds that `once(name)` returns; all names share the seed of a round."""
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            torch.manual_seed(number)
            times[name].append(once(name))
    return {name: median(own) for name, own in times.items()}


def beside_softmax(
    whole: Mapping[str, float],
    parts: Mapping[str, float],
    aims: Mapping[str, float],
    *,
    head: str,
    batch: int = 1,
    calls: int = 1,
) -> list[dict[str, Any]]:
    """One row per mechanism.

    Args:
        whole: total seconds, by mechanism.
        parts: seconds of one call of the only part that differs.
        aims: target of the ratio to softmax.
        head: name of the column of the total time, in milliseconds.
        batch: number of examples that share the total time.
        calls: number of calls of the part that differs.
    """
    base = whole["softmax"]
    return [
        {
            "mechanism": name,
            head: 1e3 * whole[name] / batch,
            "to softmax": whole[name] / base,
            "reading ms": 1e3 * parts[name],
            "by parts": 1 + calls * (parts[name] - parts["softmax"]) / base,
            "aim": aims.get(name, "-"),
        }
        for name in whole
    ]
