"""Questions as examples and batches: pictures or stored features, words, soft targets, and where one must look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from foveate.data.answers import AnswerVocabulary
from foveate.data.features import FeatureStore, ImageFeatures, PictureFeatures, stack_features
from foveate.data.hat import read_hat, to_grid
from foveate.data.samples import Dataset, Id, Picture, Question
from foveate.data.scenes import make_scenes
from foveate.data.tokens import tokenize
from foveate.data.vocabulary import PAD, Vocabulary
from foveate.data.vqa import read_vqa
from foveate.encoders import PictureEncoder, Preprocess
from foveate.errors import DataError
from foveate.registry import lookup

# Decoded pictures, or their features, are kept in memory up to so many bytes, which holds all of Scenes.
CACHE_BYTES = 400_000_000


def _scenes(root: Path | None, split: str, limit: int | None, need_pictures: bool, size: str) -> Dataset:
    return make_scenes(size, split, count=limit, root=root)


def _published(root: Path | None, split: str, limit: int | None, need_pictures: bool, read: Callable) -> Dataset:
    data = read(root, split, need_pictures=need_pictures)
    return data if limit is None else _first(data, limit)


Source = Callable[[Path | None, str, int | None, bool], Dataset]
SOURCES: Mapping[str, Source] = MappingProxyType(
    {
        "scenes": partial(_scenes, size="scenes"),
        "scenes-large": partial(_scenes, size="scenes-large"),
        "vqa": partial(_published, read=read_vqa),
        "vqa-v1": partial(_published, read=partial(read_vqa, version=1)),
        "vqa-v2": partial(_published, read=partial(read_vqa, version=2)),
        "vqa-v1-choice": partial(_published, read=partial(read_vqa, version=1, task="choice")),
        "vqa-hat": partial(_published, read=read_hat),
    }
)


def load_split(name: str, root: Path | None, split: str, limit: int | None, *, need_pictures: bool) -> Dataset:
    """A split of the data of a name; DataError when it has no questions.

    Args:
        name: a row of `SOURCES`.
        root: folder of published data; embedded data need none.
        split: of that data.
        limit: only the first so many pictures.
        need_pictures: refuse questions whose picture is not on disk.
    """
    data = lookup("data", name, SOURCES)(root, split, limit, need_pictures)
    if not data.questions:
        raise DataError(f"vqa: expected questions in {data.name} {split}, got none; check the folder and the split")
    return data


def _first(data: Dataset, limit: int) -> Dataset:
    pictures = data.pictures[:limit]
    kept = {picture.id for picture in pictures}
    questions = tuple(question for question in data.questions if question.image_id in kept)
    return replace(data, pictures=pictures, questions=questions)


@dataclass(frozen=True)
class VQAExample:
    """A picture with one or several questions about it.

    Attributes:
        picture: (3, h, w) uint8, or its stored features.
        questions: about it.
        region: (questions, H, W) share of each cell that must be looked at, zeros where unknown; None when not needed.
        people: one list a question of (H, W) maps, one a person.
    """

    picture: Tensor | PictureFeatures
    questions: tuple[Question, ...]
    region: Tensor | None = None
    people: tuple[tuple[Tensor, ...], ...] = ()


@dataclass(frozen=True)
class VQABatch:
    """B questions about P pictures.

    Attributes:
        pictures: (P, 3, h, w) uint8, or stored features.
        index: (B,) which picture each question is about.
        tokens, mask: (B, T) word numbers, and True where there is a word.
        targets: (B, A) accuracy of each answer.
        questions: as they were asked.
        region: (B, H, W) share of each cell that must be looked at, zeros where unknown, None when not needed.
        people: (B, L, H, W) where people looked, zeros where fewer than L did, None when nobody did.
    """

    pictures: Tensor | ImageFeatures
    index: Tensor
    tokens: Tensor
    mask: Tensor
    targets: Tensor
    questions: list[Question]
    region: Tensor | None = None
    people: Tensor | None = None

    def target_map(self) -> Tensor | None:
        """(B, H, W) where attention should go: people's mean map, or the region spread evenly; zeros where unknown."""
        mass = self.region if self.people is None else self.people.sum(1)
        if mass is None:
            return None
        total = mass.sum((-2, -1), keepdim=True)
        return mass / total.where(total > 0, 1)


class QuestionExamples:
    """The questions of a split with their pictures, by number; see `VQAExample`.

    Args:
        data: the split.
        source: how a picture becomes pixels, the store of its features, or the encoder that makes them.
        group: an example is a picture with all its questions; otherwise one question.
        look_size: rows and columns of the maps of where to look; None leaves them out.
    """

    def __init__(
        self,
        data: Dataset,
        source: Preprocess | FeatureStore | PictureEncoder,
        *,
        group: bool,
        look_size: tuple[int, int] | None,
    ) -> None:
        self.data, self.source, self.look_size = data, source, look_size
        groups = (data.questions_of(picture.id) for picture in data.pictures)
        self.rows = [own for own in groups if own] if group else [(question,) for question in data.questions]
        self._kept: dict[Id, Tensor | PictureFeatures] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> VQAExample:
        questions = self.rows[number]
        picture = self._picture(questions[0])
        if self.look_size is None:
            return VQAExample(picture, questions)
        H, W = self.look_size
        region = torch.stack([_region(question, H, W) for question in questions])
        people = tuple(
            tuple(torch.from_numpy(to_grid(look(), H, W)).float() for look in question.looks) for question in questions
        )
        return VQAExample(picture, questions, region, people)

    def fingerprint(self) -> str:
        """That of the annotations, and of the features where there are some."""
        own = self.data.fingerprint()
        if isinstance(self.source, FeatureStore):
            return f"{own}-{self.source.fingerprint}"
        return own if isinstance(self.source, Preprocess) else f"{own}-{self.source.weights()}"

    def _picture(self, question: Question) -> Tensor | PictureFeatures:
        picture = self.data.picture(question)
        if isinstance(self.source, FeatureStore):
            return self.source.get(picture)
        if picture.id not in self._kept:
            made = self._make(picture)
            if (len(self._kept) + 1) * _bytes(made) > CACHE_BYTES:
                return made
            self._kept[picture.id] = made
        return self._kept[picture.id]

    def _make(self, picture: Picture) -> Tensor | PictureFeatures:
        if isinstance(self.source, PictureEncoder):
            seen = self.source.encode([picture.pixels()])
            assert isinstance(seen.grid, tuple)
            return PictureFeatures(str(picture.id), seen.values[0].half().cpu().numpy(), seen.grid)
        assert isinstance(self.source, Preprocess)
        return self.source.pixels(picture.pixels())


def _bytes(made: Tensor | PictureFeatures) -> int:
    return made.nbytes if isinstance(made, Tensor) else made.values.nbytes


def _region(question: Question, H: int, W: int) -> Tensor:
    """(H, W) share of each cell inside the region; zeros when it is not known."""
    if question.region is None:
        return torch.zeros(H, W)
    region = np.asarray(question.region(), np.float64)
    return torch.from_numpy(to_grid(region, H, W) * region.mean() * H * W).float()


def collate(examples: Sequence[VQAExample], words: Vocabulary, answers: AnswerVocabulary, max_tokens: int) -> VQABatch:
    """One batch of examples; see `VQABatch`."""
    questions = [question for example in examples for question in example.questions]
    index = torch.tensor([row for row, example in enumerate(examples) for _ in example.questions])
    tokens, mask = encode_questions([question.text for question in questions], words, max_tokens)
    targets = torch.stack([answers.target(question.answers) for question in questions])
    regions = [example.region for example in examples if example.region is not None]
    region = torch.cat(regions) if len(regions) == len(examples) else None
    people = None if region is None else _stack_people([own for e in examples for own in e.people], region)
    return VQABatch(_stack_pictures(examples), index, tokens, mask, targets, questions, region, people)


def encode_questions(texts: Sequence[str], words: Vocabulary, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Texts as (B, T) word numbers, and (B, T) True where there is a word; T is the longest, at least one.

    >>> encode_questions(["A dog?", "A"], Vocabulary.from_tokens([["a", "dog"]]), max_tokens=14)[0].tolist()
    [[4, 5], [4, 0]]
    """
    rows = [words.encode(tokenize(text), max_tokens=max_tokens) for text in texts]
    T = max([1, *map(len, rows)])
    tokens = torch.tensor([row + [PAD] * (T - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return tokens, torch.arange(T)[None] < lengths[:, None]


def _stack_pictures(examples: Sequence[VQAExample]) -> Tensor | ImageFeatures:
    pictures = [example.picture for example in examples]
    features = [picture for picture in pictures if isinstance(picture, PictureFeatures)]
    if features:
        return stack_features(features)
    return torch.stack([picture for picture in pictures if isinstance(picture, Tensor)])


def _stack_people(people: Sequence[Sequence[Tensor]], region: Tensor) -> Tensor | None:
    most = max(map(len, people), default=0)
    if most == 0:
        return None
    stacked = region.new_zeros(len(people), most, *region.shape[1:])
    for row, own in zip(stacked, people, strict=True):
        for place, look in enumerate(own):
            row[place] = look
    return stacked
