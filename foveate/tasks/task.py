"""What a task is: how data becomes batches, a batch a loss, a prediction, a metric; all that training knows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

Vocabulary = Mapping[str, Any]


class Examples(Protocol):
    """The examples of one split, by number; an example depends on its number and on nothing else.

    Random choices belong into the loss or the model: there they come from the seed of the step, so that a resumed
    training repeats them. Objects must be picklable when worker processes read them.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> Any: ...

    def fingerprint(self) -> str:
        """Digits that change with the data, kept with the run and compared when it is resumed."""
        ...


@dataclass(frozen=True)
class Loss:
    """The loss of a batch as a sum and what it is divided by, so that any split of a batch gives the same mean.

    `mean = Σ total / Σ count` over the processes and the accumulated parts of a step; its gradient drives the step.
    A loss that is defined as a mean over its batch passes `total = mean * count`.

    Attributes:
        total: scalar with a gradient, summed over what is counted.
        count: how many things were summed: questions, pairs, words.
        parts: further sums by name for the log, for instance one a term of the loss; divided by `count` too. Every
            batch has the same names.

    >>> loss = Loss(torch.tensor([1.0, 2.0]).sum(), 2, {"answers": torch.tensor(3.0)})
    >>> float(loss.total) / loss.count
    1.5
    """

    total: Tensor
    count: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Metrics(ABC):
    """Adds predictions up, batch by batch, process by process, and says in numbers how good they are.

    The result does not depend on how the examples were cut into batches or spread over processes.
    """

    @abstractmethod
    def update(self, prediction: Any, batch: Any) -> None:
        """Add the predictions of a batch; every example is given once."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What was added up, to be sent to another process: numbers, texts, lists, dictionaries, tensors on the CPU."""

    @abstractmethod
    def merge(self, state: Mapping[str, Any]) -> None:
        """Add what another process has added up."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The numbers by name; `Task.objective` is one of the names."""


@dataclass(frozen=True)
class Predictor:
    """A trained model with what its task offers: subclasses add `answer`, `caption`, `match`, `embed_image`, ...

    Attributes:
        task: knows the vocabulary and how inputs become a batch.
        model: in evaluation mode.
    """

    task: Task
    model: nn.Module

    @property
    def device(self) -> torch.device:
        """Where the model lies, and inputs must be moved to."""
        return next(iter(self.model.parameters()), torch.empty(0)).device


class Task(ABC):
    """One problem with its settings and vocabulary; training, evaluation and loading know nothing else.

    A subclass is made in two ways, from data before training and from the vocabulary of a run after it; it holds no
    data and no weights itself. The table `TASKS` names the subclasses.

    Class attributes:
        Settings: frozen dataclass of everything that can be chosen: data, model, mechanism, weights of losses. Its
            fields are annotated with bool, int, float, str, Literal, None, tuples and string-keyed mappings of those,
            or further frozen dataclasses, so that they can be read from a command line and from JSON. Its
            `__post_init__` refuses names that are in no table.
        objective: the name among `metrics().compute()` that should become as large as possible; it decides which
            weights are kept and when to stop.
        headlines: the metrics that a short table shows, each with the head of its column.
    """

    Settings: ClassVar[type]
    objective: ClassVar[str]
    headlines: ClassVar[Mapping[str, str]]

    @classmethod
    @abstractmethod
    def from_data(cls, settings: Any, root: Path | None) -> Task:
        """The task with the vocabulary of its training data.

        Args:
            settings: of the class `Settings`.
            root: folder of the data, None for embedded data.
        """

    @classmethod
    @abstractmethod
    def from_vocabulary(cls, settings: Any, vocabulary: Vocabulary) -> Task:
        """The task of a run: `vocabulary` is what `vocabulary()` returned, after a way through JSON."""

    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """What training learnt from the data beside weights (words, answers, sizes), as JSON."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model with random weights, from the settings and the vocabulary alone."""

    def initialise(self, model: nn.Module) -> None:  # noqa: B027  (nothing to do is a fair default)
        """Set weights that do not start at random, for instance word vectors; called once, before the first step."""

    @abstractmethod
    def examples(self, split: str, root: Path | None) -> Examples:
        """The examples of "train", "val" or another split of the data."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Any:
        """One batch: a tensor, or any nesting of dataclasses, mappings and sequences with tensors inside."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any) -> Loss:
        """What training makes small; `model` is in training mode and any of its methods may be called."""

    @abstractmethod
    def predict(self, model: nn.Module, batch: Any) -> Any:
        """What `Metrics.update` takes; called in evaluation mode, without gradients, on one process's examples."""

    @abstractmethod
    def metrics(self) -> Metrics:
        """Fresh, empty metrics."""

    @abstractmethod
    def predictor(self, model: nn.Module) -> Predictor:
        """The trained model as people use it."""
