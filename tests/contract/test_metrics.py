"""The laws of every metric over a split: cut into batches or spread over processes, it gives the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from foveate.lab.data.samples import Phrase, Question
from foveate.lab.metrics import METRICS, Ranks
from foveate.ops.boxes import Box
from foveate.ops.gaussian import Gaussian

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def _answers(rows: range) -> Batch:
    said = ["yes", "no", "2", "red", "yes", "no"]
    asked = [
        Question(i, 1, "?", ("yes",) * (3 + i % 3) + ("no",) * 4, answer_type=("yes/no", "other")[i % 2]) for i in rows
    ]
    return ([said[i] for i in rows], asked), {}


def _attention(rows: range) -> Batch:
    torch.manual_seed(0)
    mean = torch.rand(6, 2)[rows.start : rows.stop]
    density = Gaussian(mean, 0.02 * torch.eye(2).expand(len(mean), 2, 2))
    region = (torch.rand(6, 14, 14) > 0.8)[rows.start : rows.stop].float()
    groups = [("even",) if i % 2 == 0 else () for i in rows]
    maps = density.to_map(14, 14)
    return (maps / maps.sum((1, 2), keepdim=True),), {"density": density, "region": region, "groups": groups}


def _ranks(rows: range) -> Batch:
    rank = torch.tensor([1, 7, 3, 12, 1, 2])[rows.start : rows.stop]
    return (Ranks(rank, rank > 2), Ranks(rank.flip(0) + 1, rank < 2)), {}


def _phrases(rows: range) -> Batch:
    weights = torch.randn(12, 6, generator=torch.Generator().manual_seed(0)).softmax(-1)
    boxes = [(Box(0.1 * i, 0.0, 0.1 * i + 0.4, 1.0),) if i % 3 else () for i in rows]
    phrases = [
        Phrase(2 * i, 2 * i + 2, i, (("even", "odd")[i % 2],), box, None if box else "scene")
        for i, box in zip(rows, boxes, strict=True)
    ]
    return (weights, phrases, (2, 3)), {}


def _captions(rows: range) -> Batch:
    said = ["a red star", "a disc", "a red red star", "two discs", "", "a star and a disc"]
    people = [[f"A red star and {i} discs.", "One star."] for i in range(6)]
    things = [[("star",), ("disc", "circle")] if i % 2 else [] for i in range(6)]
    return ([f"p{i}" for i in rows], [said[i] for i in rows], [people[i] for i in rows], [things[i] for i in rows]), {}


def _word_attention(rows: range) -> Batch:
    maps = torch.randn(6, 4, 3, 3, generator=torch.Generator().manual_seed(0)).relu()
    mask = torch.arange(4)[None] < torch.tensor([4, 3, 2, 1, 0, 4])[:, None]
    return (maps[rows.start : rows.stop], mask[rows.start : rows.stop]), {}


EXAMPLES: dict[str, Callable[[range], Batch]] = {
    "answers": _answers,
    "captions": _captions,
    "grounding": _phrases,
    "attention": _attention,
    "retrieval": _ranks,
    "word attention": _word_attention,
}


def fed(name: str, *parts: range) -> Any:
    metric = METRICS[name]()
    for part in parts:
        arguments, options = EXAMPLES[name](part)
        metric.update(*arguments, **options)
    return metric


@pytest.mark.parametrize("name", METRICS)
def test_split_batches_are_one_batch(name: str) -> None:
    whole = fed(name, range(6)).compute()
    assert whole
    assert fed(name, range(1), range(1, 4), range(4, 6)).compute() == pytest.approx(whole)


@pytest.mark.parametrize("name", METRICS)
def test_processes_are_one_process(name: str) -> None:
    merged = METRICS[name]()
    for part in (range(2), range(2, 6)):
        merged.merge(json.loads(json.dumps(fed(name, part).state())))
    assert merged.compute() == pytest.approx(fed(name, range(6)).compute())


@pytest.mark.parametrize("name", METRICS)
def test_fresh_metrics_know_nothing(name: str) -> None:
    assert METRICS[name]().compute() == {}
