"""Words and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from foveate.checks import check_number
from foveate.data.files import read_json
from foveate.data.writing import write_json
from foveate.errors import DataError

SPECIAL = ("<pad>", "<unknown>", "<start>", "<end>")
PAD, UNKNOWN, START, END = range(4)


@dataclass(frozen=True)
class Vocabulary:
    """The words a model knows; the number of a word is its position, after the four marks of `SPECIAL`.

    0 fills up short sentences, 1 stands for any unknown word, 2 and 3 begin and end a sentence.

    >>> words = Vocabulary.from_tokens([["a", "dog"], ["a", "cat"]], min_count=2)
    >>> words.words, words.encode(["a", "bird"], end=True), words.decode([4, 1, 3, 0])
    (('<pad>', '<unknown>', '<start>', '<end>', 'a'), [4, 1, 3], ['a', '<unknown>'])
    """

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise DataError(
                f"Vocabulary: expected the words to begin with {', '.join(SPECIAL)}, "
                f"got {self.words[: len(SPECIAL)]!r}; build it with Vocabulary.from_tokens"
            )
        if not all(isinstance(word, str) for word in self.words):
            raise DataError("Vocabulary: expected strings, got other values; pass the words as text")
        if len(self._positions) != len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"Vocabulary: expected different words, got {twice!r} twice; keep one")

    @classmethod
    def from_tokens(cls, sentences: Iterable[Sequence[str]], min_count: int = 1) -> Vocabulary:
        """The words seen at least `min_count` times, most frequent first, equal counts in alphabetical order."""
        check_number("Vocabulary", "min_count", min_count, least=1, advice="1 keeps every word")
        counts = Counter(word for sentence in sentences for word in sentence)
        kept = sorted((w for w, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls(SPECIAL + tuple(kept))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._positions

    def index(self, word: str) -> int:
        """The number of a word, that of `<unknown>` when it is not in the list."""
        return self._positions.get(word, UNKNOWN)

    def encode(
        self, tokens: Sequence[str], *, start: bool = False, end: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """The numbers of a sentence.

        Args:
            tokens: its words.
            start, end: put the marks around it.
            max_tokens: cut the sentence after so many words; the marks come on top.
        """
        body = [self._positions.get(token, UNKNOWN) for token in tokens[:max_tokens]]
        return [START] * start + body + [END] * end

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """The words up to the first end mark, without start marks and padding."""
        words = []
        for number in numbers:
            if number == END:
                break
            if not 0 <= number < len(self.words):
                raise ValueError(
                    f"Vocabulary: expected numbers in [0, {len(self.words) - 1}], got {number}; "
                    "decode with the vocabulary that encoded"
                )
            if number not in (PAD, START):
                words.append(self.words[number])
        return words

    def unknown(self, sentences: Iterable[Sequence[str]]) -> Counter[str]:
        """The words of the sentences that are not in the list, with their counts.

        >>> Vocabulary(SPECIAL + ("a",)).unknown([["a", "dog"], ["dog"]])
        Counter({'dog': 2})
        """
        return Counter(word for sentence in sentences for word in sentence if word not in self._positions)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"kind": "words", "words": list(self.words)}

    @classmethod
    def from_json(cls, data: Any, path: Path | None = None) -> Vocabulary:
        """From what `to_json` gave; DataError when it is something else."""
        found = data.get("words") if isinstance(data, dict) and data.get("kind") == "words" else None
        if not isinstance(found, list):
            raise DataError(
                f"Vocabulary: expected {{'kind': 'words', 'words': [...]}} in {path or 'the data'}, "
                f"got {data!r:.60}; name a file that Vocabulary.save wrote"
            )
        return cls(tuple(found))

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Vocabulary:
        """Read what `save` wrote."""
        return cls.from_json(read_json("Vocabulary", path, "Vocabulary.save writes it"), path)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {word: position for position, word in enumerate(self.words)}
