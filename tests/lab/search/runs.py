"""Small substitutes for trained runs: images are their mean colour, texts the colours they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from foveate.attention import Attended
from foveate.io import decode_image

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255), "white": (255, 255, 255)}


def colour_of(image: Any) -> Tensor:
    pixels = image if isinstance(image, np.ndarray) else decode_image(image)
    return torch.from_numpy(pixels).float().mean((0, 1)) / 255


class InMemory:
    """A tensor (N, D) as `nearest` searches it."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors, self.dim = vectors, vectors.shape[1]

    def __len__(self) -> int:
        return len(self.vectors)

    def blocks(self, rows: int) -> Iterator[tuple[int, Tensor]]:
        for start in range(0, len(self), rows):
            yield start, self.vectors[start : start + rows]


class Colours:
    """Embeds images and texts by colour."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def encode_image(self, images: Sequence[Any]) -> Tensor:
        self.batches.append(len(images))
        return torch.stack([colour_of(image) for image in images])

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        named = [[COLOURS[word] for word in text.split() if word in COLOURS] or [(0, 0, 0)] for text in texts]
        return torch.stack([torch.tensor(rows).float().mean(0) / 255 for rows in named])


class Contrary:
    """Matches a text with the images whose colour is furthest from it, and counts what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def match(self, images: Sequence[Any], texts: Sequence[str]) -> Tensor:
        self.asked.append((len(images), len(texts)))
        space = Colours()
        return -space.encode_image(images) @ space.encode_text(texts).T


class Looks(NamedTuple):
    words: tuple[str, ...]
    attention: Attended


class Looking(Contrary):
    """Looks at the upper left of four cells with every word."""

    words_attend = True

    def look(self, image: Any, text: str) -> Looks:
        words = tuple(text.split())
        weights = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, len(words), 4)
        return Looks(words, Attended(torch.zeros(1, len(words), 2), weights, grid=(2, 2)))


def paint(directory: Path, shades: int = 3) -> list[str]:
    """Images of each colour in several shades, and the paths in order."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, colour in COLOURS.items():
        for shade in range(shades):
            scaled = tuple(round(part * (1 - shade / 10)) for part in colour)
            Image.new("RGB", (8, 6), scaled).save(directory / f"{name}{shade}.png")
    return [str(path) for path in sorted(directory.resolve().glob("*.png"))]
