"""`Inputs`, the vocabulary of a run and the origin of its features; tasks, predictors and metrics that have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.attention import Attended
from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.data.feature_store import FeatureRecord, StoreDescription, stack_features
from foveate.lab.data.samples import DataDirectory, DataRoot, Dataset, ImageRecord
from foveate.lab.data.vocabulary import PAD, Vocabulary
from foveate.lab.encoders import ImageEncoder, encoder_of, word_vectors
from foveate.lab.encoders.word_vectors import PACKAGED
from foveate.lab.features import Familiarity, ImageFeatures, describe_distance, mean_features
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.tasks.images import ImageLike, encoder_input, stack_images, to_pixels
from foveate.lab.tasks.task import (
    Batch,
    Example,
    Metrics,
    Model,
    Prediction,
    Predictor,
    RunGraph,
    SettingsType,
    Task,
    TensorModule,
)
from foveate.lab.tasks.task_settings import TaskSettings
from foveate.metrics.means import ExampleValues

if TYPE_CHECKING:
    from typing_extensions import Self

ADVICE = "the file is damaged or was written by a newer foveate"


@dataclass(frozen=True)
class Inputs:
    """The vocabulary of a task and the origin of its features, kept in `vocabulary.json` of a run.

    Attributes:
        words: the tokens that the model knows.
        image_dim: size of the image features; None if the model reads images.
        store: what made the features, so that new images are encoded the same way.
    """

    words: Vocabulary
    image_dim: int | None = None
    store: StoreDescription | None = None

    @classmethod
    def from_data(
        cls, settings: TaskSettings, root: DataRoot, sentences: Iterable[Sequence[str]], min_count: int | None = 1
    ) -> Inputs:
        """The tokens of the training sentences, and what the settings say about the features.

        Args:
            settings, root: of the task.
            sentences: the tokens of each.
            min_count: of a token; None chooses it by the number of sentences.
        """
        settings.prepare_images(root)
        counts, number = Counter[str](), 0
        for sentence in sentences:  # one by one: millions of them need not fit into memory
            counts.update(sentence)
            number += 1
        words = Vocabulary.from_counts(counts, choose_min_count(min_count, number))
        return cls(words, *settings.images.describe(root))

    def grown_from(self, old: Inputs) -> Inputs:
        """The inputs with the tokens of another run first, so that its weights stay valid for them.

        Raises DataError if the features are not those of the other run.
        """
        own, theirs = (None if x.store is None else replace(x.store, source="") for x in (self, old))
        if (self.image_dim, own) != (old.image_dim, theirs):
            raise DataError(
                f"start: expected features of {theirs.encoder if theirs else 'the encoder of the run'} as in the run, "
                f"got {own.encoder if own else 'images'}; set encoder= or images= to those of the run"
            )
        new = tuple(word for word in self.words.words if word not in old.words)
        return replace(self, words=Vocabulary(old.words.words + new))

    @classmethod
    def from_json(cls, data: Mapping[str, Any], others: Sequence[str] = ()) -> Inputs:
        """The inputs of a run; the inverse of `to_json`.

        Args:
            data: entries of `vocabulary.json`.
            others: entries that belong to the task.

        Raises DataError for an entry that is missing or unknown, so that a damaged name is noticed.
        """
        expected = {"words", "image_dim", "store", *others}
        if set(data) != expected:
            wrong = ", ".join(sorted(map(str, set(data) ^ expected)))
            raise DataError(
                f"vocabulary: expected {', '.join(sorted(expected))}, got a difference in {wrong}; {ADVICE}"
            )
        store = data["store"]
        words = Vocabulary.from_json(data["words"])
        return cls(words, data["image_dim"], None if store is None else StoreDescription(**store))

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        store = None if self.store is None else dict(vars(self.store))
        return {"words": self.words.to_json(), "image_dim": self.image_dim, "store": store}

    def encode(
        self, sentences: Sequence[Sequence[str]], max_tokens: int, *, bos_eos: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Token ids (B, T) of sentences, and (B, T) True where there is a token.

        Args:
            sentences: the tokens of each.
            max_tokens: truncate sentences to this many tokens, not counting bos and eos.
            bos_eos: put bos and eos around each sentence.

        >>> inputs = Inputs(Vocabulary.from_tokens([["a", "dog"]]))
        >>> inputs.encode([["a", "dog"], ["a"]], 14)[0].tolist()
        [[4, 5], [4, 0]]
        """
        return pad_tokens(
            [self.words.encode(one, bos=bos_eos, eos=bos_eos, max_tokens=max_tokens) for one in sentences]
        )

    def unknown(self, tokens: Iterable[str]) -> tuple[str, ...]:
        """The tokens that the model does not know, each once."""
        return tuple(dict.fromkeys(token for token in tokens if token not in self.words))

    def initialise(
        self,
        settings: TaskSettings,
        image: AnyImageEncoder,
        text: HasWords | None,
        source: str | None,
        root: DataRoot = None,
    ) -> None:
        """Load the weights of the image encoder and the word vectors that do not start at random.

        Args:
            settings: of the task.
            image: encoder of the model.
            text: encoder whose word vectors are replaced; None for a model without pretrained word vectors.
            source: "glove" or a text file of word vectors; None leaves them random.
            root: directory of the data, where the text file is looked for too.
        """
        settings.images.initialise(image)
        if source is None or text is None:
            return
        vectors, weight = word_vectors(self.words.words, find_words(source, root)).vectors, text.words.weight
        if vectors.shape != weight.shape:
            raise DataError(
                f"words: expected word vectors of {weight.shape[1]} dimensions, got {vectors.shape[1]} from {source}; "
                f"set word_dim={vectors.shape[1]}"
            )
        with torch.no_grad():
            weight.copy_(vectors)


class HasWords(Protocol):
    """A text encoder with one vector per word."""

    words: nn.Embedding


def find_words(source: str, root: DataRoot) -> str | Path:
    """A file of word vectors: as named, or in the directory of the data or its directory `glove`.

    >>> find_words("glove", None)
    'glove'
    """
    path = Path(source).expanduser()
    home = DataDirectory.of(root).path
    places = [] if home is None or path.is_file() else [home / path, home / "glove" / path]
    found = next((place for place in places if place.is_file()), None)
    if found is None and source != PACKAGED and not path.is_file():
        searched = ", ".join(str(place.parent) for place in places) or "the current directory"
        raise DataError(
            f"words: expected the word vectors {source} in {searched}, got no such file; fetch glove.6B.zip from "
            f"nlp.stanford.edu/projects/glove and put {path.name} into the directory of --data"
        )
    return source if found is None else found


@dataclass(frozen=True)
class ImageTextTask(Task[SettingsType, Model, Example, Batch, Prediction]):
    """A task of images and text, whose vocabulary is its `Inputs`.

    Attributes:
        settings: everything that can be chosen.
        inputs: the tokens of the text and the origin of the features.
    """

    settings: SettingsType
    inputs: Inputs

    @classmethod
    def from_vocabulary(cls, settings: SettingsType, vocabulary: Mapping[str, Any]) -> Self:
        """The task of a run."""
        return cls(settings, Inputs.from_json(vocabulary))

    def vocabulary(self) -> dict[str, Any]:
        """Tokens and the origin of the features."""
        return self.inputs.to_json()

    def mean_image_features(self, model: Model, examples: Sequence[Any]) -> Tensor | None:
        """The mean features (n, D) of the images of examples, as the model's encoder sees them."""
        return _mean_features(model, stack_images([example.image for example in examples]).to(_device(model)))

    def grown_from(self, old: Self) -> Self:
        """The task with the tokens of a run first, then its own."""
        return replace(self, inputs=self.inputs.grown_from(old.inputs))


@dataclass(frozen=True)
class CaptionedTask(ImageTextTask[SettingsType, Model, Example, Batch, Prediction]):
    """A task whose text are captions; its settings have a `min_count` of their tokens."""

    @classmethod
    def from_data(cls, settings: Any, root: DataRoot) -> Self:
        """The task with the tokens of the training split."""
        sentences = (caption.tokens for caption in settings.read("train", root).captions)
        return cls(settings, Inputs.from_data(settings, root, sentences, settings.min_count))


ImageTask = TypeVar("ImageTask", bound=ImageTextTask[Any, Any, Any, Any, Any])


@dataclass(frozen=True)
class WordAttention:
    """The attention of the words of one sentence over one image.

    Attributes:
        words: of the sentence.
        attention: over the image, of batch size one with one query per word: `attention.map(H, W)[0, t]` is where
            word t looks.
    """

    words: tuple[str, ...]
    attention: Attended

    def __repr__(self) -> str:
        return f"WordAttention({' '.join(self.words)!r}, over {describe_grid(self.attention)})"


class LabelledAttention(NamedTuple):
    """A prediction as FiftyOne labels it, and where the model looked for it."""

    label: dict[str, Any]
    attention: Attended


def describe_grid(attended: Attended) -> str:
    """The locations of an attention in words: "a grid of 7 x 7", "36 regions".

    >>> describe_grid(Attended(torch.zeros(1, 2), torch.full((1, 4), 0.25), None, (2, 2)))
    'a grid of 2 x 2'
    """
    grid = attended.grid
    if isinstance(grid, tuple) and len(grid) == 2 and all(isinstance(side, int) for side in grid):
        return f"a grid of {grid[0]} x {grid[1]}"
    return f"{attended.weights.shape[-1]} regions"


@dataclass(frozen=True, repr=False)
class ImagePredictor(Predictor[ImageTask, Model]):
    """A trained model that reads images in any form.

    Attributes:
        read_familiarity: reads what the run knows of the images it was trained on; None for runs that do not know.
    """

    read_familiarity: Callable[[], Familiarity] | None = None

    @cached_property
    def familiarity(self) -> Familiarity | None:
        """The features of the images that the run was trained on, read when they are first needed."""
        return None if self.read_familiarity is None else self.read_familiarity()

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return _device(self.model)

    def _about(self) -> str:
        chosen = self.task.settings
        words = f"{len(self.task.inputs.words):,} tokens"
        return f"{type(self.task).__name__} of {chosen.dataset} with {chosen.mechanism}, {words}"

    def warnings(self, images: Tensor | ImageFeatures) -> list[str | None]:
        """Per image that `read_images` returned, a warning if it is unlike the training images, or None."""
        if self.familiarity is None:
            return [None] * len(images if isinstance(images, Tensor) else images.values)
        with torch.no_grad():
            features = _mean_features(self.model, images)
        dataset = self.task.settings.dataset
        return [describe_distance(distance, dataset) for distance in self.familiarity.distance(features).tolist()]

    def read_images(self, images: Sequence[ImageLike]) -> Tensor | ImageFeatures:
        """A batch of images: pixels, or features from the encoder that made the store, on the model's device.

        Images that are records of a feature store are used as they are.
        """
        records = [image for image in images if isinstance(image, FeatureRecord)]
        if records and len(records) == len(images):
            return stack_features(records).to(self.device)
        pixels = [to_pixels(image) for image in images]
        if self._feature_encoder is not None:
            return self._feature_encoder.encode(pixels).to(self.device)
        encoder = self.model.image
        assert isinstance(encoder, ImageEncoder)  # a model without a store reads images itself
        return torch.stack([encoder.preprocess.pixels(array) for array in pixels]).to(self.device)

    def to_fiftyone(
        self, split: str = "val", root: DataRoot = None, *, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """The predictions on a split as samples for FiftyOne, each with its truth, its heatmap and its ellipses.

        Args:
            split: of the run's dataset.
            root: directory of the data; None for embedded data.
            limit: the largest number of samples.

        Returns:
            One dictionary per question or image, in the format that FiftyOne documents: "filepath" (None for images
            that are not files), "id", "ground_truth", "prediction" with "label" and "confidence", "attention".

        Raises DataError for a run whose task predicts no text.
        """
        samples = []
        for truth, image, found in self._samples(self.task.settings.read(split, root), limit):
            path = str(image.source) if isinstance(image.source, Path) else None
            [drawn] = found.attention.to_fiftyone() if found.attention.weights.ndim == 2 else [None]
            samples.append(
                {"filepath": path, "id": str(image.id), **truth, "prediction": found.label, "attention": drawn}
            )
        return samples

    def _samples(
        self, data: Dataset, limit: int | None
    ) -> Iterator[tuple[dict[str, Any], ImageRecord, LabelledAttention]]:
        """Per sample what is known of it, its image and what the run predicts."""
        raise DataError(
            f"to_fiftyone: expected a run that answers or captions, got one of {type(self.task).__name__}; use look"
        )

    def graph_of(
        self,
        function: Callable[..., Any],
        *others: Tensor,
        names: tuple[str, ...] = (),
        outputs: tuple[str, ...],
        usage: str,
    ) -> RunGraph:
        """A function of the model as a graph that reads pixels; features are computed inside it.

        Args:
            function: `function(model, images, *others)`, with images as `read_images` returns them.
            others: further example tensors; `names` are theirs.
            outputs, usage: as in `RunGraph`.
        """
        encoder = self._feature_encoder
        reader: ImageEncoder = cast(Any, self.model).image if encoder is None else encoder
        noise = np.random.default_rng(0).integers(0, 256, (2, 112, 112, 3), dtype=np.uint8)
        pixels = torch.stack([reader.preprocess.pixels(image) for image in noise]).to(self.device)
        module = TensorModule(self.model, function, encoder)
        return RunGraph(module, (pixels, *others), ("images", *names), outputs, usage)

    @cached_property
    def _feature_encoder(self) -> ImageEncoder | None:
        store = self.task.inputs.store
        return None if store is None else encoder_of(store).to(self.device)


def _device(model: nn.Module) -> torch.device:
    return next(iter(model.parameters()), torch.empty(0)).device


def _mean_features(model: Any, images: Tensor | ImageFeatures) -> Tensor:
    """The mean features (n, D) of images, as the model's encoder sees them, on the CPU."""
    if isinstance(images, ImageFeatures):  # of a store, which the encoder passes on; pooled ones begin with the mean
        return mean_features(images)[:, : model.image.dim].cpu()
    return mean_features(model.image(encoder_input(model.image, images))).cpu()


def choose_min_count(given: int | None, examples: int) -> int:
    """The number of times a token or an answer must occur to be known: if it is not set, it grows with the data.

    >>> [choose_min_count(None, examples) for examples in (100, 1000, 5000, 40000)], choose_min_count(9, 100)
    ([1, 2, 3, 5], 9)
    """
    return given if given is not None else 1 + sum(examples >= least for least in (1000, 5000, 10000, 20000))


def pad_tokens(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids as (B, T), and (B, T) True where there is a token; T is the longest row, at least one.

    >>> tokens, mask = pad_tokens([[4, 5], [4]])
    >>> tokens.tolist(), mask.tolist()
    ([[4, 5], [4, 0]], [[True, True], [True, False]])
    """
    T = max([1, *map(len, rows)])
    tokens = torch.tensor([[*row, *[PAD] * (T - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(T)[None] < lengths[:, None]


class OtherRun(NamedTuple):
    """The parts of a run that a model of another kind can start from.

    Attributes:
        tensors: its weights by name, in float32.
        words: of its vocabulary, in order.
    """

    tensors: dict[str, Tensor]
    words: tuple[str, ...]

    @classmethod
    def load(cls, field: str, run: Path, source: str) -> OtherRun:
        """Read a run.

        Args:
            field: of the settings that names the run, for the message.
            run: its directory.
            source: where such a run comes from, for the message.

        Raises DataError if there is no such run.
        """
        path = run / "model.safetensors"
        if not path.is_file():
            raise DataError(f"{field}: expected the file {path}, got none; pass {source}")
        words = read_json(field, run / "vocabulary.json", source)["words"]["words"]
        return cls({name: tensor.float() for name, tensor in load_file(path).items()}, tuple(words))


class MetricPart(Protocol):
    """An accumulator of one group of metrics; see `Metrics`."""

    def state(self) -> dict[str, Any]: ...

    def merge(self, state: Mapping[str, Any]) -> None: ...

    def compute(self) -> dict[str, float]: ...

    def examples(self) -> ExampleValues: ...


class CombinedMetrics(Metrics[Prediction, Batch]):
    """Metrics that consist of several groups, by name; a subclass implements `update`."""

    def __init__(self, **parts: MetricPart) -> None:
        self.parts = parts

    def state(self) -> dict[str, Any]:
        return {name: part.state() for name, part in self.parts.items()}

    def merge(self, state: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.merge(state[name])

    def compute(self) -> dict[str, float]:
        return {name: value for part in self.parts.values() for name, value in part.compute().items()}

    def examples(self) -> ExampleValues:
        return {name: values for part in self.parts.values() for name, values in part.examples().items()}
