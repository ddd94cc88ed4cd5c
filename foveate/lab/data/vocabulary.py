"""From text to token ids and back: the tokenizer, the vocabulary of tokens and the vocabulary of answers."""

from __future__ import annotations

import re
import sys
import unicodedata
from abc import ABC
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.errors import DataError
from foveate.io import is_encodable, read_json, write_json
from foveate.lab.data.answers import agreed_answer, answer_scores, normalise_answer
from foveate.lab.data.samples import Question

if TYPE_CHECKING:
    from typing_extensions import Self

SPECIAL = ("<pad>", "<unknown>", "<start>", "<end>")
PAD, UNKNOWN, BOS, EOS = range(4)
_CLITIC = r"'(?:s|re|ve|ll|d|m)\b"
_WORD = r"[^\W_]+"
_TOKEN = re.compile(
    rf"n't\b|{_CLITIC}|\d+(?:[.,]\d+)+|{_WORD}(?=n't\b)|{_WORD}(?={_CLITIC})|{_WORD}(?:'{_WORD})*",
)


def tokenize(text: str) -> tuple[str, ...]:
    """Split a sentence into lower-case tokens.

    Rules: compatibility characters and typographic apostrophes are normalised and the text is lower-cased; a token is a
    run of letters and digits in any script; "n't", "'s", "'re", "'ve", "'ll", "'d" and "'m" are separate tokens, as in
    the usual word vectors; other apostrophes inside a word stay ("o'clock"); periods and commas between digits stay
    ("3.5"); hyphens separate ("t-shirt" is two tokens, the same as "t shirt"); all other punctuation is dropped.

    >>> tokenize("The dogs' T-shirt isn't John's; it costs $3.50!")
    ('the', 'dogs', 't', 'shirt', 'is', "n't", 'john', "'s", 'it', 'costs', '3.50')
    """
    if not isinstance(text, str):
        raise TypeError(f"tokenize: expected a string, got {type(text).__name__}; pass one text")
    return tuple(map(sys.intern, _TOKEN.findall(plain_text(text))))


def plain_text(text: str) -> str:
    """Lower-case text with compatibility characters and typographic apostrophes normalised."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    return text.lower()


class StringTable(ABC):
    """Distinct strings, each known by its position: what the vocabularies of tokens and of answers share.

    Class attributes:
        field: name of the attribute that holds the strings, and their name in JSON.
    """

    field: ClassVar[str]

    if TYPE_CHECKING:  # the dataclasses below define it

        def __init__(self, strings: tuple[str, ...]) -> None: ...

    @property
    def _strings(self) -> tuple[str, ...]:
        strings: tuple[str, ...] = getattr(self, self.field)
        return strings

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {string: position for position, string in enumerate(self._strings)}

    def __post_init__(self) -> None:
        name = type(self).__name__
        if not all(isinstance(string, str) for string in self._strings):
            raise DataError(f"{name}: expected strings, got other values; pass the {self.field} as str")
        if len(self._positions) != len(self._strings):
            twice = next(string for string, count in Counter(self._strings).items() if count > 1)
            raise DataError(f"{name}: expected different {self.field}, got {twice!r} twice; keep one")

    def __len__(self) -> int:
        return len(self._strings)

    def __contains__(self, string: str) -> bool:
        return string in self._positions

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"kind": self.field, self.field: list(self._strings)}

    @classmethod
    def from_json(cls, data: Any, path: Path | None = None) -> Self:
        """Build from the output of `to_json`; raises DataError for anything else."""
        found = data.get(cls.field) if isinstance(data, dict) and data.get("kind") == cls.field else None
        if not isinstance(found, list) or any(isinstance(item, str) and not is_encodable(item) for item in found):
            raise DataError(
                f"{cls.__name__}: expected {{'kind': {cls.field!r}, {cls.field!r}: [...]}} in {path or 'the data'}, "
                f"got {data!r:.60}; use a file written by {cls.__name__}.save"
            )
        return cls(tuple(found))

    def save(self, path: Path) -> None:
        """Write as JSON, atomically."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file written by `save`."""
        return cls.from_json(read_json(cls.__name__, path, f"{cls.__name__}.save writes it"), path)


@dataclass(frozen=True)
class Vocabulary(StringTable):
    """The words a model knows. The token id of a word is its position; the first four are `SPECIAL`.

    0 pads short sentences, 1 stands for unknown words, 2 (bos) and 3 (eos) begin and end a sentence.

    >>> words = Vocabulary.from_tokens([["a", "dog"], ["a", "cat"]], min_count=2)
    >>> words.words, words.encode(["a", "bird"], eos=True), words.decode([4, 1, 3, 0])
    (('<pad>', '<unknown>', '<start>', '<end>', 'a'), [4, 1, 3], ['a', '<unknown>'])
    """

    field: ClassVar[str] = "words"

    words: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL)] != SPECIAL:
            raise DataError(
                f"Vocabulary: expected the words to begin with {', '.join(SPECIAL)}, "
                f"got {self.words[: len(SPECIAL)]!r}; build it with Vocabulary.from_tokens"
            )
        super().__post_init__()

    @classmethod
    def from_tokens(cls, sentences: Iterable[Sequence[str]], min_count: int = 1) -> Vocabulary:
        """Build the vocabulary of words seen at least `min_count` times, by falling frequency, ties alphabetically."""
        return cls.from_counts(Counter(word for sentence in sentences for word in sentence), min_count)

    @classmethod
    def from_counts(cls, counts: Mapping[str, int], min_count: int = 1) -> Vocabulary:
        """Build the vocabulary of `from_tokens` from how often each word was seen."""
        check_number("Vocabulary", "min_count", min_count, least=1, advice="1 keeps every word")
        kept = sorted((w for w, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls(SPECIAL + tuple(kept))

    def index(self, word: str) -> int:
        """Return the token id of a word, that of `<unknown>` if it is not in the vocabulary."""
        return self._positions.get(word, UNKNOWN)

    def encode(
        self, tokens: Sequence[str], *, bos: bool = False, eos: bool = False, max_tokens: int | None = None
    ) -> list[int]:
        """Return the token ids of a sentence.

        Args:
            tokens: its words.
            bos, eos: add these tokens around it.
            max_tokens: truncate the sentence to this many tokens, not counting bos and eos.
        """
        body = [self._positions.get(token, UNKNOWN) for token in tokens[:max_tokens]]
        return [BOS] * bos + body + [EOS] * eos

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the words up to the first eos, without bos and padding."""
        words = []
        for index in ids:
            if index == EOS:
                break
            if not 0 <= index < len(self.words):
                raise ValueError(
                    f"Vocabulary: expected token ids in [0, {len(self.words) - 1}], got {index}; "
                    "decode with the vocabulary used to encode"
                )
            if index not in (PAD, BOS):
                words.append(self.words[index])
        return words

    def unknown(self, sentences: Iterable[Sequence[str]]) -> Counter[str]:
        """Count the words of the sentences that are not in the vocabulary.

        >>> Vocabulary(SPECIAL + ("a",)).unknown([["a", "dog"], ["dog"]])
        Counter({'dog': 2})
        """
        return Counter(word for sentence in sentences for word in sentence if word not in self._positions)


@dataclass(frozen=True)
class AnswerVocabulary(StringTable):
    """The answers a model chooses from, normalised; the position of an answer is its class.

    >>> questions = [Question(i, 1, "How many?", ("two",) * 10) for i in range(9)]
    >>> vocabulary = AnswerVocabulary.from_questions(questions)
    >>> vocabulary.answers, vocabulary.target(["2", "two", "2", *"3333333"]).tolist()
    (('2',), [0.8999999761581421])
    """

    field: ClassVar[str] = "answers"

    answers: tuple[str, ...]

    @classmethod
    def from_questions(cls, questions: Iterable[Question], min_count: int = 9) -> AnswerVocabulary:
        """Build the vocabulary of consensus answers of at least `min_count` questions, by falling frequency.

        A question counts once, for its `answer` or, if that is None, for the most frequent of its `answers` (the first
        of equals). Ties are sorted alphabetically. With 9, train and val of VQA v2 yield 3129 answers.
        """
        check_number("AnswerVocabulary", "min_count", min_count, least=1, advice="1 keeps every answer")
        counts = Counter(answer for question in questions if (answer := agreed_answer(question)) is not None)
        kept = sorted((a for a, count in counts.items() if count >= min_count), key=lambda a: (-counts[a], a))
        return cls(tuple(kept))

    def index(self, answer: str) -> int | None:
        """Return the class of an answer after normalisation, None if it is not in the vocabulary."""
        return self._positions.get(normalise_answer(answer))

    def target(self, answers: Sequence[str]) -> Tensor:
        """Return the (A,) soft target: the official accuracy of each answer, 1 if only one answer is known."""
        target = torch.zeros(len(self.answers))
        for answer, score in answer_scores(answers).items():
            position = self._positions.get(answer)
            if position is not None:
                target[position] = score
        return target
