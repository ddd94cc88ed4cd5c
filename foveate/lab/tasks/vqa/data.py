"""Questions as examples and batches: images or features, token ids, soft targets, and where to look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.io import read_json
from foveate.lab.data.feature_store import FeatureRecord
from foveate.lab.data.samples import DataDirectory, DataRoot, Dataset, Question
from foveate.lab.data.vocabulary import AnswerVocabulary
from foveate.lab.encoders.views import array_of_view
from foveate.lab.features import ImageFeatures
from foveate.lab.tasks.images import ImageReader, ImageSource, stack_images
from foveate.lab.tasks.inputs import Inputs, choose_min_count
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.ops.resample import resample_map, to_distribution

SOURCE = "openvqa publishes answer_dict.json; a plain JSON list of answers works too"


@dataclass(frozen=True)
class VQAExample:
    """An image with one or several questions about it.

    Attributes:
        image: (3, h, w) uint8, or its features.
        questions: about it.
        region: (questions, H, W) fraction of each cell in the true region, zeros if unknown; None if not needed.
        human_maps: per question, one (H, W) attention map per annotator.
    """

    image: Tensor | FeatureRecord
    questions: tuple[Question, ...]
    region: Tensor | None = None
    human_maps: tuple[tuple[Tensor, ...], ...] = ()


@dataclass(frozen=True)
class VQABatch:
    """B questions about P images.

    Attributes:
        images: (P, 3, h, w) uint8, or features.
        index: (B,) the image of each question; None if question b is about image b.
        tokens, mask: (B, T) token ids, and True where there is a token.
        targets: (B, A) accuracy of each answer.
        questions: as they were asked.
        region: (B, H, W) fraction of each cell in the true region, zeros if unknown; None if not needed.
        human_maps: (B, L, H, W) attention maps of up to L annotators, padded with zeros; None if there are none.
    """

    images: Tensor | ImageFeatures
    index: Tensor | None
    tokens: Tensor
    mask: Tensor
    targets: Tensor
    questions: list[Question]
    region: Tensor | None = None
    human_maps: Tensor | None = None

    def target_map(self) -> Tensor | None:
        """(B, H, W) where attention should be: the mean human map, or the region spread evenly; zeros if unknown."""
        mass = self.region if self.human_maps is None else self.human_maps.sum(1)
        if mass is None:
            return None
        total = mass.sum((-2, -1), keepdim=True)
        return mass / total.where(total > 0, 1)


class QuestionExamples:
    """The questions of a split with their images, by position; see `VQAExample`.

    Args:
        data: the split.
        source: where images come from, see `ImageReader`.
        views: views of an image; the examples of one view follow those of another.
        group: an example is an image with all its questions; otherwise one question.
        map_size: rows and columns of the maps of where to look; None leaves them out.
    """

    def __init__(
        self, data: Dataset, source: ImageSource, *, group: bool, map_size: tuple[int, int] | None, views: int = 1
    ) -> None:
        self.data, self.images, self.map_size = data, ImageReader(source, views), map_size
        groups = (data.questions_of(image.id) for image in data.images)
        self.rows = [own for own in groups if own] if group else [(question,) for question in data.questions]

    def __len__(self) -> int:
        return len(self.rows) * self.images.views

    def __getitem__(self, number: int) -> VQAExample:
        view, row = self.images.locate(number, len(self.rows))
        questions = self.rows[row]
        image = self.images(self.data.image(questions[0]), view)
        if self.map_size is None:
            return VQAExample(image, questions)
        H, W = self.map_size
        region = _regions(questions, H, W, view)
        human_maps = tuple(
            tuple(to_distribution(_float64(load()), H, W).float() for load in question.human_maps)
            for question in questions
        )
        return VQAExample(image, questions, region, human_maps)

    def fingerprint(self) -> str:
        """See `ImageReader.fingerprint`."""
        return self.images.fingerprint(self.data)


def _regions(questions: Sequence[Question], H: int, W: int, view: int) -> Tensor:
    """(Q, H, W) fraction of each cell of a view inside the region of each question; zeros where it is unknown."""
    regions = torch.zeros(len(questions), H, W)
    known = [n for n, question in enumerate(questions) if question.region is not None]
    if known:
        loaded = [load() for n in known if (load := questions[n].region) is not None]
        masks = [_float64(array_of_view(mask, view) if view else mask) for mask in loaded]
        # The mass of a cell in pixels, times cells per pixel, is the fraction of the cell inside the region.
        regions[known] = (resample_map(torch.stack(masks), H, W) * (H * W / masks[0].numel())).float()
    return regions


def _float64(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float64))


def collate(
    examples: Sequence[VQAExample], inputs: Inputs, answers: AnswerVocabulary, settings: VQASettings
) -> VQABatch:
    """One batch of examples; see `VQABatch`."""
    questions = [question for example in examples for question in example.questions]
    index = torch.tensor([row for row, example in enumerate(examples) for _ in example.questions])
    sentences = [settings.tokenize(question.text) for question in questions]
    tokens, mask = inputs.encode(sentences, settings.max_tokens)
    targets = torch.stack([answers.target(question.answers) for question in questions])
    regions = [example.region for example in examples if example.region is not None]
    region = torch.cat(regions) if len(regions) == len(examples) else None
    maps = None if region is None else _stack_maps([own for e in examples for own in e.human_maps], region)
    images = stack_images([example.image for example in examples])
    return VQABatch(images, index, tokens, mask, targets, questions, region, maps)


def _stack_maps(maps: Sequence[Sequence[Tensor]], region: Tensor) -> Tensor | None:
    """(B, L, H, W), padded with zeros; None if no question has a map."""
    most = max(map(len, maps), default=0)
    if most == 0:
        return None
    stacked = region.new_zeros(len(maps), most, *region.shape[1:])
    for row, own in zip(stacked, maps, strict=True):
        for place, one in enumerate(own):
            row[place] = one
    return stacked


def choose_vocabulary(settings: VQASettings, questions: Sequence[Question], root: DataRoot) -> AnswerVocabulary:
    """The answers of the settings.

    Args:
        settings: with `answer_list`, `answer_split`, `min_count` and `max_answers`.
        questions: of the training split.
        root: directory of the data.
    """
    if settings.answer_list is not None:
        return AnswerVocabulary(read_answers(settings.answer_list, root)[: settings.max_answers])
    if settings.answer_split is not None:
        counted = replace(settings, train_split=settings.answer_split)
        questions = counted.read("train", root).questions
    found = AnswerVocabulary.from_questions(questions, choose_min_count(settings.min_count, len(questions)))
    return AnswerVocabulary(found.answers[: settings.max_answers])


def read_answers(name: str, root: DataRoot) -> tuple[str, ...]:
    """The answers of a file in their order: a list, a mapping from answers to positions, or openvqa's pair of mappings.

    Args:
        name: the file, as named or in the directory of the data.
        root: directory of the data.
    """
    path = Path(name).expanduser()
    home = DataDirectory.of(root).path
    if home is not None and not path.is_file():
        path = home / path
    content: Any = read_json("answers", path, SOURCE)
    if isinstance(content, list) and content and isinstance(content[0], dict):
        content = content[0]  # openvqa: answers to positions, then positions to answers
    answers = sorted(content, key=content.__getitem__) if isinstance(content, dict) else content
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise DataError(f"answers: expected a list of answers in {path}, got {content!r:.60}; {SOURCE}")
    return tuple(answers)
