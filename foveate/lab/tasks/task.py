"""The interface of a task: examples and batches, loss, predictions and metrics, and its model as one graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from foveate.errors import DataError, WrongValue
from foveate.lab.data.samples import DataRoot
from foveate.lab.encoders import ImageEncoder
from foveate.metrics.means import ExampleValues

if TYPE_CHECKING:
    from foveate.lab.tasks.presentation import Demo, Presentation

SettingsType = TypeVar("SettingsType")
Model = TypeVar("Model", bound=nn.Module)
Example = TypeVar("Example")
ExampleOut = TypeVar("ExampleOut", covariant=True)
Batch = TypeVar("Batch")
Prediction = TypeVar("Prediction")


class Examples(Protocol[ExampleOut]):
    """The examples of one split, by position; an example depends on its position and on nothing else.

    Random choices belong in the loss or the model: there they come from the seed of the step, so that a resumed
    training repeats them. Objects must be picklable if worker processes read them.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, number: int) -> ExampleOut: ...

    def fingerprint(self) -> str:
        """A string that changes with the data; it is stored with the run and compared when the run is resumed."""
        ...


@dataclass(frozen=True)
class Loss:
    """The loss of a batch as a sum and its divisor, so that any split of a batch gives the same mean.

    `mean = Σ total / Σ count` over the processes and the accumulated parts of a step; its gradient drives the step.
    A loss that is defined as a mean over its batch passes `total = mean * count`.

    Attributes:
        total: scalar with a gradient, summed over `count` items.
        count: number of items: questions, pairs, words.
        parts: further sums by name for the log, for instance one per term of the loss; divided by `count` too. Every
            batch has the same names.

    >>> import torch
    >>> loss = Loss(torch.tensor([1.0, 2.0]).sum(), 2, {"answers": torch.tensor(3.0)})
    >>> float(loss.total) / loss.count
    1.5
    """

    total: Tensor
    count: int
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Metrics(ABC, Generic[Prediction, Batch]):
    """Accumulates predictions over batches and processes and computes numbers from them.

    The result does not depend on how the examples were split into batches or processes.
    """

    @abstractmethod
    def update(self, prediction: Prediction, batch: Batch) -> None:
        """Add the predictions of a batch; every example is added exactly once."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The accumulated state, to send to another process: numbers, strings, lists, dictionaries, CPU tensors."""

    @abstractmethod
    def merge(self, state: Mapping[str, Any]) -> None:
        """Add the accumulated state of another process."""

    @abstractmethod
    def compute(self) -> dict[str, float]:
        """The numbers by name; `Task.objective` is one of the names."""

    def place(self, device: torch.device) -> None:
        """Compute on this device what is worth it; by default everything is computed on the CPU."""

    def compute_together(self, others: Sequence[Metrics[Prediction, Batch]]) -> dict[str, float]:
        """The numbers of an ensemble: scores averaged over these metrics and others of the same examples."""
        raise WrongValue(
            f"evaluate: expected a task whose scores can be averaged, got {type(self).__name__}; evaluate the runs one "
            "by one"
        )

    def examples(self) -> ExampleValues:
        """The values of single examples by metric, once `compute` was called; those that are means over examples."""
        return {}


class Task(ABC, Generic[SettingsType, Model, Example, Batch, Prediction]):
    """One problem with its settings and vocabulary; training, evaluation and loading use nothing but this interface.

    A subclass is created in two ways, from data before training and from the vocabulary of a run after it; it holds
    neither data nor weights. The table `TASKS` names the subclasses.

    Class attributes:
        Settings: frozen dataclass of everything that can be chosen: data, model, mechanism, weights of losses. Its
            fields are annotated with bool, int, float, str, Literal, None, tuples and string-keyed mappings of those,
            or further frozen dataclasses, so that they can be read from a command line and from JSON. Its
            `__post_init__` raises `UnknownName` for names that are in no table.
        objective: the name in `metrics().compute()` to maximise; it decides which weights are kept and when to stop.
        presentation: what reports show of the task's runs.
        demo: what `foveate demo --task NAME` runs; None if there is nothing to show without a download.
    """

    Settings: ClassVar[type]
    objective: ClassVar[str]
    presentation: ClassVar[Presentation]
    demo: ClassVar[Demo | None] = None

    @classmethod
    @abstractmethod
    def from_data(cls, settings: SettingsType, root: DataRoot) -> Task[SettingsType, Model, Example, Batch, Prediction]:
        """The task with the vocabulary of its training data.

        Args:
            settings: an instance of `cls.Settings`.
            root: directory of the data, or a `DataDirectory`; None for embedded data.
        """

    @classmethod
    @abstractmethod
    def from_vocabulary(
        cls, settings: SettingsType, vocabulary: Mapping[str, Any]
    ) -> Task[SettingsType, Model, Example, Batch, Prediction]:
        """The task of a run: `vocabulary` is what `vocabulary()` returned, after a round trip through JSON."""

    @abstractmethod
    def vocabulary(self) -> dict[str, Any]:
        """Everything learnt from the data besides the weights (tokens, answers, sizes), as JSON."""

    def grown_from(self, old: Any) -> Task[SettingsType, Model, Example, Batch, Prediction]:
        """The task for a training that starts from a run.

        Its vocabulary begins with that of the run, for which the weights of the run stay valid; by default that is all.

        Args:
            old: the task with these settings and the vocabulary of the run, of the same class.
        """
        task: Task[SettingsType, Model, Example, Batch, Prediction] = old
        return task

    @abstractmethod
    def build_model(self) -> Model:
        """The model with random weights, from the settings and the vocabulary alone."""

    def initialise(self, model: Model, root: DataRoot = None) -> None:
        """Set the weights that do not start at random, for instance word vectors; called once before training.

        Args:
            model: with random weights.
            root: directory of the data, where files are looked for too; None for embedded data.
        """

    @abstractmethod
    def examples(self, split: str, root: DataRoot) -> Examples[Example]:
        """The examples of "train", "val" or another split of the data."""

    @abstractmethod
    def collate(self, examples: Sequence[Example]) -> Batch:
        """One batch: a tensor, or any nesting of dataclasses, mappings and sequences of tensors."""

    @abstractmethod
    def loss(self, model: Model, batch: Batch, step: int) -> Loss:
        """The quantity to minimise.

        Args:
            model: in training mode; any of its methods may be called.
            batch: on the device of the model.
            step: optimiser steps taken before this one, also by the run that training started from, for terms that
                start later.
        """

    @abstractmethod
    def predict(self, model: Model, batch: Batch) -> Prediction:
        """The predictions for `Metrics.update`; called in evaluation mode without gradients."""

    @abstractmethod
    def metrics(self) -> Metrics[Prediction, Batch]:
        """New, empty metrics."""

    def mean_image_features(self, model: Model, examples: Sequence[Example]) -> Tensor | None:
        """The mean features (n, D) of the images of examples, to know which images are like them; None without images.

        Args:
            model: in evaluation mode; called without gradients.
            examples: a few of a split.
        """
        return None

    def result_rows(self, prediction: Prediction, batch: Batch) -> list[dict[str, Any]] | None:
        """The predictions of a batch as rows of the evaluation server's result file; None if there is no such file."""
        return None

    @abstractmethod
    def predictor(self, model: Model) -> Predictor[Any, Model]:
        """The trained model as a user calls it."""


AnyTask: TypeAlias = Task[Any, Any, Any, Any, Any]
TaskType = TypeVar("TaskType", bound=AnyTask)


class RunFiles(Protocol):
    """The files of a run, which write it again with the weights that the model has now; see `foveate.lab.hub`."""

    @property
    def name(self) -> str: ...

    def save(self, model: nn.Module, directory: Path, *, half: bool) -> Path: ...

    def push(self, model: nn.Module, repository: str, **options: Any) -> str: ...


@dataclass(frozen=True)
class Predictor(Generic[TaskType, Model]):
    """A trained model behind the calls of its task: subclasses add `answer`, `caption`, `match`, `embed_image`, ...

    Attributes:
        task: knows the vocabulary and how inputs become a batch.
        model: in evaluation mode.
        files: of the run that was loaded; None for a model that was not loaded from files.
    """

    task: TaskType
    model: Model
    files: RunFiles | None = field(default=None, kw_only=True)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return next(iter(self.model.parameters()), torch.empty(0)).device

    def save_pretrained(self, directory: str | Path, *, half: bool = False) -> Path:
        """Write the run with the weights that the model has now; `fv.load(directory)` loads it.

        Args:
            directory: to create; raises DataError if it already holds a run.
            half: write the matrices in float16; they are float32 again when they are loaded.
        """
        return self._files("save_pretrained").save(self.model, Path(directory), half=half)

    def push_to_hub(self, repository: str, *, private: bool = False, message: str = "Upload a run of foveate") -> str:
        """Write the run to a repository of the Hugging Face Hub, created if needed; `fv.from_pretrained` loads it.

        Args:
            repository: `owner/name`.
            private: of a new repository.
            message: of the commit.

        Returns:
            the address of the commit.
        """
        return self._files("push_to_hub").push(self.model, repository, private=private, message=message)

    def _files(self, where: str) -> RunFiles:
        if self.files is None:
            raise DataError(f"{where}: expected a run that was loaded, got a model without files; use fv.load")
        return self.files

    def __repr__(self) -> str:
        name = "" if self.files is None else f"({self.files.name!r})"
        lines = [f"{type(self).__name__}{name}", *filter(None, [self._about()])]
        count = sum(parameter.numel() for parameter in self.model.parameters())
        return "\n  ".join([*lines, f"{type(self.model).__name__}, {count:,} parameters on {self.device}"])

    def _about(self) -> str:
        """What the run does, in one line."""
        return ""


@dataclass(frozen=True)
class RunGraph:
    """A module whose inputs and outputs are tensors, with examples.

    Attributes:
        module: in evaluation mode.
        inputs: example tensors; the first axis of each is the batch.
        input_names, output_names: of the graph.
        usage: what the inputs and outputs are, for a person.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    usage: str


class TensorModule(nn.Module):
    """A function of a model's tensors as a module, so that torch can export it.

    Args:
        model: passed to the function.
        function: `function(model, *inputs)`.
        encoder: turns the first input, uint8 pixels, into the features that the function reads; None if it
            reads pixels.

    >>> TensorModule(nn.Linear(2, 1), lambda model, x: model(x))(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """

    def __init__(self, model: nn.Module, function: Callable[..., Any], encoder: ImageEncoder | None = None) -> None:
        super().__init__()
        self.model, self.function, self.encoder = model, function, encoder

    def forward(self, *inputs: Tensor) -> Any:
        """Return the output of the function."""
        if self.encoder is None:
            return self.function(self.model, *inputs)
        images = self.encoder(self.encoder.preprocess.normalise(inputs[0]))
        return self.function(self.model, images, *inputs[1:])


def example_tokens(vocabulary: int, count: int = 2, length: int = 8) -> tuple[Tensor, Tensor]:
    """Random token ids and a mask with padding at the end."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, max(vocabulary, 5), (count, length), generator=generator)
    return tokens, torch.arange(length)[None] < torch.tensor([length, max(length - 3, 1)] * count)[:count, None]
