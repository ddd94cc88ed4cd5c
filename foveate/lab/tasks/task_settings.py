"""The settings that all tasks of images and text share: data, images, attention and its constraints."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import nn

from foveate.attention import MECHANISMS
from foveate.checks import check_counts, check_number
from foveate.errors import DataError, UnknownName
from foveate.lab.data import DATASETS
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.samples import DataRoot, Dataset
from foveate.lab.data.tokenizers import TOKENIZERS
from foveate.lab.tasks.images import Conv, Extracted, Images, ImageSource
from foveate.ops.basis import GaussianBasis
from foveate.registry import lookup

COUNTS = (
    "folds",
    "word_dim",
    "max_tokens",
    "max_words",
    "max_answers",
)  # settings of tasks that are 1 or more, or absent
Content = Literal["questions", "captions"]


@dataclass(frozen=True)
class Constraint:
    """A contrastive constraint on attention, CCR or CCS (Chen et al. 2021, eq. 6-9).

    On the command line its own name stands for the weight: `ccr=1` is `ccr.weight=1`.

    Attributes:
        weight: of the constraint in the loss; 0 turns it off.
        margin: by how much what is attended to must be more relevant.
        after: training steps before it starts. A model that has not learnt where to look learns nothing from the
            locations that it happens to attend to.
        swaps: of CCS in matching: "sampled" swaps one word per caption (eq. 8), "all" compares every word with every
            word of the batch that belongs to other images (eq. 7), which needs words that attend.
    """

    short: ClassVar[str] = "weight"

    weight: float = 0.0
    margin: float = 0.2
    after: int = 0
    swaps: Literal["sampled", "all"] = "sampled"

    def __post_init__(self) -> None:
        for name in ("weight", "margin", "after"):
            check_number("Constraint", name, getattr(self, name), least=0, advice="use zero or more")

    def active(self, step: int) -> bool:
        """True if the constraint contributes to the loss at this training step."""
        return self.weight > 0 and step >= self.after


@dataclass(frozen=True)
class TaskSettings(ABC):
    """The settings that every task of images and text has.

    Class attributes:
        content: what the dataset must contain.

    Attributes:
        dataset: a row of `DATASETS`.
        train_split: split to train on; several are joined by a plus, such as "train+restval" of COCO.
        images: how images become features.
        mechanism, mechanism_options: attention over the image, a row of `MECHANISMS`. A basis is written as the
            arguments of `GaussianBasis.grid`, for instance {"count": 49, "variance": 0.001}.
        ccr, ccs: the contrastive constraints on attention.
        tokenizer: how questions and captions become tokens, a row of `TOKENIZERS`: "foveate", or one that published
            checkpoints were trained with.
        limit: use only the first images of every split; None uses all.
        split_seed: of splits that are drawn at random because the data has none; see `read_folder`.
        folds: number of trainings of a cross-validation, each with another part of such data as val; 1 for none.
        fold: the number of this training among them.
    """

    content: ClassVar[Content]

    dataset: str = "scenes"
    train_split: str = "train"
    images: Images = field(default_factory=Conv)
    mechanism: str = "softmax"
    mechanism_options: Mapping[str, Any] = field(default_factory=dict)
    ccr: Constraint = field(default_factory=Constraint)
    ccs: Constraint = field(default_factory=Constraint)
    tokenizer: str = "foveate"
    limit: int | None = None
    split_seed: int = 0
    folds: int = 1
    fold: int = 0

    def __post_init__(self) -> None:
        given = {name: getattr(self, name, None) for name in COUNTS}
        check_counts(type(self).__name__, **{name: value for name, value in given.items() if value is not None})
        lookup("mechanism", self.mechanism, MECHANISMS)
        lookup("dataset", self.dataset, DATASETS)
        lookup("tokenizer", self.tokenizer, TOKENIZERS)
        known = [name for name, source in DATASETS.items() if self.content in source.contents]
        if self.dataset not in known:
            raise UnknownName(f"dataset with {self.content}", self.dataset, known)

    def attention(self) -> nn.Module:
        """The mechanism with its options.

        >>> from foveate.lab.tasks.vqa.settings import VQASettings
        >>> options = {"basis": {"count": 49, "variance": 0.001}}
        >>> VQASettings(mechanism="continuous-softmax", mechanism_options=options).attention().basis.centres.shape
        torch.Size([49, 2])
        """
        basis = self.mechanism_options.get("basis")
        built = {"basis": GaussianBasis.grid(**basis)} if isinstance(basis, Mapping) else {}
        return MECHANISMS[self.mechanism].build(**{**self.mechanism_options, **built})

    def views(self, split: str) -> int:
        """Views per image in the examples of a split; only training uses more than one."""
        return self.images.views if split == "train" else 1

    def split_name(self, split: str) -> str:
        """The name of a split in the dataset: `train_split` for "train"."""
        return self.train_split if split == "train" else split

    def tokenize(self, text: str) -> tuple[str, ...]:
        """The tokens of a question or a caption."""
        return TOKENIZERS[self.tokenizer](text)

    def image_source(self, root: DataRoot, split: str, description: StoreDescription | None) -> ImageSource:
        """Where the images of a split come from; features that are to be extracted are extracted first."""
        self.prepare_images(root)
        joined = split == "train" and "+" in self.train_split
        # Karpathy's restval is part of what stores call train.
        parts = [part for part in self.train_split.split("+") if part != "restval"] if joined else [split]
        return self.images.source(root, "+".join(parts), description)

    def prepare_images(self, root: DataRoot) -> None:
        """Extract the features that are not there yet, if the settings say so."""
        if isinstance(self.images, Extracted):
            source = lookup("dataset", self.dataset, DATASETS)
            whole = source.splits[:1] if source.splits[0] == "all" else source.splits
            found = [source.read(root, split, split_seed=self.split_seed).images for split in whole]
            self.images.extract(root, list({image.id: image for images in found for image in images}.values()))

    def read(self, split: str, root: DataRoot) -> Dataset:
        """A split of the dataset, "train" being `train_split`; DataError if it has none of what the task needs.

        Args:
            split: name of the split.
            root: directory of published data, or a `DataDirectory`; None for embedded data.
        """
        name = self.split_name(split)
        source = lookup("dataset", self.dataset, DATASETS)
        reads = self.images.reads_images
        fold = (self.fold, self.folds) if self.folds > 1 else None
        data = source.read(root, name, count=self.limit, need_images=reads, split_seed=self.split_seed, fold=fold)
        if not getattr(data, self.content):
            raise DataError(
                f"{self.dataset}: expected {self.content} in the split {name}, got none; check --data and the split"
            )
        if self.tokenizer == "foveate":  # readers tokenize captions this way
            return data
        return data.retokenized(self.tokenize)
