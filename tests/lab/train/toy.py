"""A task that trains in a second: points in the plane, which of three discs is nearest. Run as a program it is the
command line with this task and its recipe in the tables."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from foveate.attention import MECHANISMS
from foveate.errors import DataError
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS, Loss, Metrics, Predictor, Task
from foveate.lab.tasks.presentation import Presentation
from foveate.lab.train import Adam, Recipe, Steps, Training
from foveate.registry import lookup


@dataclass(frozen=True)
class ToySettings:
    """What can be chosen."""

    count: int = 100
    hidden: int = 8
    dropout: float = 0.2
    noise: float = 0.01
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, float] = field(default_factory=dict)
    dtype: Literal["float32", "float64"] = "float64"
    poison: int | None = None
    norm: bool = False

    def __post_init__(self) -> None:
        lookup("mechanism", self.mechanism, MECHANISMS)


@dataclass(frozen=True)
class ToyBatch:
    numbers: list[int]
    points: Tensor
    targets: Tensor


class ToyExamples:
    """Points by number; `poison` makes one of them not a number."""

    def __init__(self, settings: ToySettings, split: str) -> None:
        if split not in ("train", "val", "test"):
            raise DataError(f"toy: expected train, val or test, got {split!r}; choose one")
        dice = torch.Generator().manual_seed({"train": 1, "val": 2, "test": 3}[split])
        count = settings.count if split == "train" else settings.count // 2 + 1
        self.points = torch.rand(count, 2, generator=dice, dtype=torch.float64)
        centres = torch.tensor([[0.2, 0.2], [0.8, 0.3], [0.5, 0.9]], dtype=torch.float64)
        self.targets = torch.cdist(self.points, centres).argmin(1)
        self.name = f"{split}-{count}"
        if settings.poison is not None and split == "train":
            self.points[settings.poison] = torch.nan

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, number: int) -> tuple[int, Tensor, Tensor]:
        return number, self.points[number], self.targets[number]

    def fingerprint(self) -> str:
        return self.name


class ToyMetrics(Metrics):
    def __init__(self) -> None:
        self.hits: dict[int, bool] = {}

    def update(self, prediction: Tensor, batch: ToyBatch) -> None:
        hits = (prediction.argmax(1) == batch.targets).tolist()
        twice = self.hits.keys() & set(batch.numbers)
        assert not twice, f"examples {twice} counted twice"
        self.hits.update(zip(batch.numbers, hits, strict=True))

    def state(self) -> dict[str, Any]:
        return {"hits": self.hits}

    def merge(self, state: Mapping[str, Any]) -> None:
        assert not self.hits.keys() & state["hits"].keys()
        self.hits.update(state["hits"])

    def compute(self) -> dict[str, float]:
        return {"accuracy": sum(self.hits.values()) / len(self.hits), "count": float(len(self.hits))}


class ToyModel(nn.Module):
    def __init__(self, settings: ToySettings) -> None:
        super().__init__()
        self.first = nn.Linear(2, settings.hidden)
        self.norm = nn.BatchNorm1d(settings.hidden) if settings.norm else nn.Identity()
        self.drop = nn.Dropout(settings.dropout)
        self.last = nn.Linear(settings.hidden, 3)
        self.to(getattr(torch, settings.dtype))

    def scores(self, points: Tensor) -> Tensor:
        return self.last(self.drop(torch.tanh(self.norm(self.first(points.to(self.last.weight))))))


@dataclass(frozen=True, repr=False)
class ToyPredictor(Predictor):
    def nearest(self, x: float, y: float) -> int:
        """Which disc is nearest to a point."""
        return int(self.model.scores(torch.tensor([[x, y]])).argmax())  # type: ignore[operator]


class Toy(Task):
    Settings = ToySettings
    objective = "accuracy"
    presentation = Presentation({"accuracy": "accuracy"})

    def __init__(self, settings: ToySettings, discs: int) -> None:
        self.settings, self.discs = settings, discs

    @classmethod
    def from_data(cls, settings: ToySettings, root: Path | None) -> Toy:
        return cls(settings, 3)

    @classmethod
    def from_vocabulary(cls, settings: ToySettings, vocabulary: Mapping[str, Any]) -> Toy:
        return cls(settings, vocabulary["discs"])

    def vocabulary(self) -> dict[str, Any]:
        return {"discs": self.discs}

    def build_model(self) -> ToyModel:
        return ToyModel(self.settings)

    def initialise(self, model: nn.Module, root: Path | None = None) -> None:
        nn.init.zeros_(model.last.bias)  # type: ignore[arg-type,union-attr]

    def examples(self, split: str, root: Path | None) -> ToyExamples:
        return ToyExamples(self.settings, split)

    def collate(self, examples: Sequence[tuple[int, Tensor, Tensor]]) -> ToyBatch:
        numbers, points, targets = zip(*examples, strict=True)
        return ToyBatch(list(numbers), torch.stack(points), torch.stack(targets))

    def loss(self, model: ToyModel, batch: ToyBatch, step: int) -> Loss:
        # random numbers of all three generators, so that a resumed run shows whether they are restored
        noise = self.settings.noise * (random.random() + np.random.rand())  # noqa: NPY002
        total = F.cross_entropy(model.scores(batch.points + noise), batch.targets, reduction="sum")
        return Loss(total, len(batch.targets), {"entropy": total.detach()})

    def predict(self, model: ToyModel, batch: ToyBatch) -> Tensor:
        return model.scores(batch.points)

    def metrics(self) -> ToyMetrics:
        return ToyMetrics()

    def predictor(self, model: nn.Module) -> ToyPredictor:
        return ToyPredictor(self, model)


def toy_net_points() -> Recipe:
    """Three discs."""
    training = Training(Adam(0.02), Steps(at=(3,), warmup=2), epochs=4, batch_size=8)
    return Recipe("toy-net-points", "toy", ToySettings(), training, about="about 0.9 in a second")


def changed(recipe: Recipe, *, settings: Mapping[str, Any] | None = None, **training: Any) -> Recipe:
    """A recipe with other settings and training."""
    new = replace(recipe.settings, **(settings or {}))
    return replace(recipe, settings=new, training=replace(recipe.training, **training))


def register() -> None:
    """Put the task and its recipe into the tables."""
    TASKS["toy"] = Toy
    RECIPES["toy-net-points"] = toy_net_points


if __name__ == "__main__":
    import sys

    from foveate.apps.cli import main

    torch.set_num_threads(1)
    register()
    sys.exit(main())
