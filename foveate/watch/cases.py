"""A text about an image with a known place: boxes, or human maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foveate.metrics import relevant_cells
from foveate.ops.boxes import Box
from foveate.ops.resample import to_distribution

Loader: TypeAlias = Callable[[], np.ndarray]


class Pixels(Protocol):
    """An image with a name, such as a record of a dataset."""

    @property
    def id(self) -> int | str: ...

    def pixels(self) -> np.ndarray:
        """(H, W, 3) uint8."""
        ...


@dataclass(frozen=True)
class Case:
    """A text about an image, and where one must look for it.

    Attributes:
        image: the image.
        text: a phrase, the name of an object, or a question.
        boxes: what the text is about.
        human_maps: one loader per annotator, in place of boxes.
        is_question: the text is a question rather than a phrase.
        caption: the whole caption that a phrase stands in, for models that read it word by word; None without one.
        words: first word of the phrase in the caption and the one after its last.
    """

    image: Pixels
    text: str
    boxes: tuple[Box, ...] = ()
    human_maps: tuple[Loader, ...] = ()
    is_question: bool = False
    caption: str | None = None
    words: tuple[int, int] = (0, 0)

    @property
    def image_id(self) -> int | str:
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


@dataclass(frozen=True)
class Gaze:
    """Where people looked in one image during one task.

    Attributes:
        image: the image.
        task: the target of a search or the text of a question; empty for free viewing.
        people: per person (P, 2) fixations (x, y) in fractions of the image.
        maps: one loader per map of people, where there are no fixations.
        boxes: of the target, where they are known.
    """

    image: Pixels
    task: str = ""
    people: tuple[np.ndarray, ...] = field(default=(), compare=False)
    maps: tuple[Loader, ...] = field(default=(), compare=False)
    boxes: tuple[Box, ...] = ()
