"""Texts about images with a known place: phrases, objects and questions with boxes, or with human maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foveate.data.samples import Box, Dataset, Id, ImageRecord, Loader
from foveate.errors import DataError
from foveate.metrics import relevant_cells
from foveate.ops.resample import to_distribution
from foveate.registry import lookup


@dataclass(frozen=True)
class Case:
    """A text about an image, and where one must look for it.

    Attributes:
        image: the image.
        text: a phrase, the name of an object, or a question.
        boxes: what the text is about.
        human_maps: one loader per annotator, in place of boxes.
        is_question: the text is a question rather than a phrase.
    """

    image: ImageRecord
    text: str
    boxes: tuple[Box, ...] = ()
    human_maps: tuple[Loader, ...] = ()
    is_question: bool = False

    @property
    def image_id(self) -> Id:
        """The image. Cases of one image are not independent."""
        return self.image.id

    def region(self, H: int, W: int) -> Tensor:
        """(H, W) booleans: the cells inside a box, or the half of the cells that annotators looked at most."""
        if self.boxes:
            return relevant_cells(H, W, torch.tensor([tuple(box) for box in self.boxes])).reshape(H, W)
        truth = self.truth(H, W)
        return truth > truth.flatten().median()

    def truth(self, H: int, W: int) -> Tensor:
        """(H, W) distribution: the region spread evenly, or the mean of the human maps."""
        if not self.boxes:
            return torch.stack(
                [to_distribution(torch.from_numpy(np.asarray(load(), np.float64)), H, W) for load in self.human_maps]
            ).mean(0)
        region = self.region(H, W).double()
        return region / region.sum().clamp(min=1)


def find_cases(dataset: Dataset, limit: int | None = None, kind: str | None = None) -> list[Case]:
    """The cases of a dataset.

    Args:
        dataset: any; what has no place is skipped.
        limit: the largest number of cases, taken evenly from the whole dataset.
        kind: "questions" (with boxes or human maps), "phrases" (of captions, with boxes) or "objects"; None for the
            first of them that the dataset has.

    Raises DataError if nothing has a place.
    """
    if kind is not None:
        lookup("texts", kind, KINDS)
    kinds = KINDS.values() if kind is None else [KINDS[kind]]
    found = next((cases for cases in (list(read(dataset)) for read in kinds) if cases), [])
    if not found:
        raise DataError(
            f"evaluate-attention: expected questions, phrases or objects with boxes, or human maps, in {dataset.name} "
            f"{dataset.split}, got none; use scenes, flickr30k, vqa-hat, or a directory with lines of objects and boxes"
        )
    if limit is None or limit >= len(found):
        return found
    return [found[number * len(found) // limit] for number in range(limit)]


def _questions(dataset: Dataset) -> Iterator[Case]:
    for question in dataset.questions:
        if question.boxes or question.human_maps:
            maps = () if question.boxes else question.human_maps
            yield Case(dataset.image(question), question.text, question.boxes, maps, is_question=True)


def _phrases(dataset: Dataset) -> Iterator[Case]:
    for caption in dataset.captions:
        for phrase in caption.phrases:
            if phrase.boxes:
                yield Case(dataset.image(caption), " ".join(caption.words(phrase)), phrase.boxes)


def _objects(dataset: Dataset) -> Iterator[Case]:
    for image in dataset.images:
        things = dataset.objects_of(image.id)
        for name in dict.fromkeys(thing.name for thing in things):
            yield Case(image, name, tuple(thing.box for thing in things if thing.name == name))


KINDS: dict[str, Callable[[Dataset], Iterator[Case]]] = {
    "questions": _questions,
    "phrases": _phrases,
    "objects": _objects,
}
