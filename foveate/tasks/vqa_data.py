"""Questions as examples and batches: pictures or stored features, words, soft targets, and where one must look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foveate.data.answers import AnswerVocabulary
from foveate.data.features import ImageFeatures, PictureFeatures
from foveate.data.hat import to_grid
from foveate.data.samples import Dataset, Question
from foveate.data.tokens import tokenize
from foveate.data.vocabulary import Vocabulary
from foveate.tasks.examples import PictureReader, pad_words, stack_pictures
from foveate.tasks.pictures import PictureSource


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
        source: PictureSource,
        *,
        group: bool,
        look_size: tuple[int, int] | None,
    ) -> None:
        self.data, self.pictures, self.look_size = data, PictureReader(source), look_size
        groups = (data.questions_of(picture.id) for picture in data.pictures)
        self.rows = [own for own in groups if own] if group else [(question,) for question in data.questions]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> VQAExample:
        questions = self.rows[number]
        picture = self.pictures(self.data.picture(questions[0]))
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
        return self.pictures.fingerprint(self.data)


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
    return VQABatch(
        stack_pictures([example.picture for example in examples]),
        index,
        tokens,
        mask,
        targets,
        questions,
        region,
        people,
    )


def encode_questions(texts: Sequence[str], words: Vocabulary, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Texts as (B, T) word numbers, and (B, T) True where there is a word; T is the longest, at least one.

    >>> encode_questions(["A dog?", "A"], Vocabulary.from_tokens([["a", "dog"]]), max_tokens=14)[0].tolist()
    [[4, 5], [4, 0]]
    """
    return pad_words([words.encode(tokenize(text), max_tokens=max_tokens) for text in texts])


def _stack_people(people: Sequence[Sequence[Tensor]], region: Tensor) -> Tensor | None:
    most = max(map(len, people), default=0)
    if most == 0:
        return None
    stacked = region.new_zeros(len(people), most, *region.shape[1:])
    for row, own in zip(stacked, people, strict=True):
        for place, look in enumerate(own):
            row[place] = look
    return stacked
