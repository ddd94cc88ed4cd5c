"""Sums that become means: the state of every metric over a split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

BASELINE = " of "  # in the names of baselines: "js of uniform"
# An example, and what it belongs to: a question and its image. Examples of one image are not independent.
ExampleKey: TypeAlias = tuple[str, str]
# Values of single examples, by metric.
ExampleValues: TypeAlias = dict[str, dict[ExampleKey, float]]


@dataclass
class Means:
    """Means of named numbers over a split and over its subsets; batches may come in any order and of any size.

    The mean of a subset is called "<name>/<subset>". A number that is NaN is unknown and is skipped.

    Attributes:
        totals: sum and count by name.
        examples: values of single examples, of the metrics that were added with keys; not those of subsets and
            baselines.

    >>> means = Means()
    >>> means.add({"accuracy": torch.tensor([1.0, 0.0])}, [("yes/no",), ()])
    >>> means.compute(), means.counts()
    ({'accuracy': 0.5, 'accuracy/yes/no': 1.0}, {'accuracy': 2, 'accuracy/yes/no': 1})
    """

    totals: dict[str, tuple[float, int]] = field(default_factory=dict)
    examples: ExampleValues = field(default_factory=dict)

    def add(
        self,
        numbers: Mapping[str, Tensor],
        groups: Sequence[Sequence[str]] | None = None,
        keys: Sequence[ExampleKey] | None = None,
    ) -> None:
        """Add the numbers (B,) of a batch to the whole split and to the subsets that each example belongs to.

        Args:
            numbers: by name.
            groups: the subsets of each example.
            keys: keep the values of single examples under these keys.
        """
        members = list(_members(groups or ()))
        for name, column in numbers.items():
            values = column.detach().double().cpu()
            self._count(name, values)
            if keys is not None and BASELINE not in name:
                known = ((key, value) for key, value in zip(keys, values.tolist(), strict=True) if value == value)
                self.examples.setdefault(name, {}).update(known)
            for group, rows in members:
                self._count(f"{name}/{group}", values[rows])

    def _count(self, name: str, values: Tensor) -> None:
        known = values[~values.isnan()]
        if len(known):
            total, count = self.totals.get(name, (0.0, 0))
            self.totals[name] = (total + known.sum().item(), count + len(known))

    def state(self) -> dict[str, Any]:
        """Sums, counts and the values of single examples, as JSON values."""
        rows = {name: [[*key, value] for key, value in own.items()] for name, own in self.examples.items()}
        return {"totals": {name: list(pair) for name, pair in self.totals.items()}, "examples": rows}

    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the `state` of another object."""
        for name, (total, count) in state["totals"].items():
            own = self.totals.get(name, (0.0, 0))
            self.totals[name] = (own[0] + total, own[1] + count)
        for name, rows in state["examples"].items():
            self.examples.setdefault(name, {}).update({(row[0], row[1]): row[2] for row in rows})

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

    def examples(self) -> ExampleValues:
        """The values of single examples, by metric."""
        return self.means.examples


def _members(groups: Sequence[Sequence[str]]) -> Iterator[tuple[str, Tensor]]:
    """The subsets of a batch in alphabetical order, each with the rows that belong to it."""
    rows: dict[str, list[int]] = {}
    for row, own in enumerate(groups):
        for group in own:
            rows.setdefault(group, []).append(row)
    yield from ((group, torch.tensor(rows[group])) for group in sorted(rows))
