"""Mechanisms in one model, by turns, beside softmax: what the benchmarks of models share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import torch


def softmax_first(text: str) -> list[str]:
    """Names with commas between, and softmax, which the others are compared with, before them."""
    return ["softmax", *(name for name in text.split(",") if name != "softmax")]


def by_turns(names: Sequence[str], once: Callable[[str], float], rounds: int) -> dict[str, float]:
    """The median over the rounds of the seconds that `once(name)` tells; in a round all get the same random numbers."""
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
    """One row a mechanism.

    Args:
        whole: seconds of the whole work, by mechanism.
        parts: seconds of the only part that differs.
        aims: the largest ratio to softmax that is wanted.
        head: of the column of the whole, in milliseconds.
        batch: how many share the whole.
        calls: how often the part is in it.
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
