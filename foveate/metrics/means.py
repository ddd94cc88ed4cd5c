"""Sums that become means: the state of every metric over a split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Means:
    """Means of named numbers over a split and over its subsets; batches may come in any order and of any size.

    The mean of a subset is called "<name>/<subset>". A number that is NaN is unknown and is skipped.

    Attributes:
        totals: sum and count by name.

    >>> means = Means()
    >>> means.add({"accuracy": torch.tensor([1.0, 0.0])}, [("yes/no",), ()])
    >>> means.compute(), means.counts()
    ({'accuracy': 0.5, 'accuracy/yes/no': 1.0}, {'accuracy': 2, 'accuracy/yes/no': 1})
    """

    totals: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, numbers: Mapping[str, Tensor], groups: Sequence[Sequence[str]] | None = None) -> None:
        """Add the numbers (B,) of a batch to the whole split and to the subsets that each example belongs to."""
        members = list(_members(groups or ()))
        for name, column in numbers.items():
            values = column.detach().double().cpu()
            self._count(name, values)
            for group, rows in members:
                self._count(f"{name}/{group}", values[rows])

    def _count(self, name: str, values: Tensor) -> None:
        known = values[~values.isnan()]
        if len(known):
            total, count = self.totals.get(name, (0.0, 0))
            self.totals[name] = (total + known.sum().item(), count + len(known))

    def state(self) -> dict[str, Any]:
        """Sums and counts as JSON values."""
        return {name: list(pair) for name, pair in self.totals.items()}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another object."""
        for name, (total, count) in state.items():
            own = self.totals.get(name, (0.0, 0))
            self.totals[name] = (own[0] + total, own[1] + count)

    def compute(self) -> dict[str, float]:
        """The means by name."""
        return {name: total / count for name, (total, count) in self.totals.items()}

    def counts(self) -> dict[str, int]:
        """The number of values behind each mean."""
        return {name: count for name, (_, count) in self.totals.items()}


@dataclass
class MeanMetric:
    """Base of the metrics that are made of means: their state can be sent to another process and merged there."""

    means: Means = field(default_factory=Means, kw_only=True)

    def state(self) -> dict[str, Any]:
        """What has been accumulated, as JSON values for another process."""
        return self.means.state()

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another object."""
        self.means.merge(state)

    def compute(self) -> dict[str, float]:
        """The means by name."""
        return self.means.compute()


def _members(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, Tensor]]:
    """The subsets of a batch in alphabetical order, each with the rows that belong to it."""
    rows: dict[str, list[int]] = {}
    for row, own in enumerate(groups):
        for group in own:
            rows.setdefault(group, []).append(row)
    yield from ((group, torch.tensor(rows[group])) for group in sorted(rows))
