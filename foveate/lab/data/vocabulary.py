"""From text to token ids and back: the tokenizer, the vocabulary of tokens, and VQA's answers as it counts them."""

from __future__ import annotations

import re
import sys
import unicodedata
from abc import ABC
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.errors import DataError, WrongType, WrongValue
from foveate.io import is_encodable, read_json, write_json
from foveate.lab.data.samples import Question

if TYPE_CHECKING:
    from typing_extensions import Self

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(NUMBER_WORDS)}
ARTICLES = frozenset({"a", "an", "the"})

# Each is also recognised with any one of its apostrophes missing ("dont", "couldnt've").
CONTRACTED = """
    ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've hasn't haven't he'd he'd've
    he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't mightn't've must've mustn't needn't not've
    o'clock oughtn't 'ow's'at shan't she'd've should've shouldn't shouldn't've somebody'd've somebody'll somebody's
    someone'd someone'd've someone'll someone's something'd something'd've something'll that's there'd there'd've
    there're there's they'd they'd've they'll they're they've 'twas wasn't we'd've we've weren't what'll what're what's
    what've when's where'd where's where've who'd who'd've who'll who's who've why'll why're why's won't would've
    wouldn't wouldn't've y'all y'all'll y'all'd've you'd you'd've you'll you're you've
""".split()  # noqa: SIM905 (a list of words reads better than a list of literals)
CONTRACTIONS = {
    word[:i] + word[i + 1 :]: word for word in CONTRACTED for i, letter in enumerate(word) if letter == "'"
} | {"somebody'd": "somebodyd"}  # the evaluator's own exception, reversed

_NUMBER_COMMA = re.compile(r"\d,\d")
_LONE_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS_DROPPED = 32  # the evaluator passes a flag where a count belongs, so it stops after 32


@lru_cache(maxsize=65536)
def normalise_answer(text: str) -> str:
    """Normalise an answer as the official VQA evaluator does.

    In this order: line breaks and tabs become spaces; each character of `PUNCTUATION` is removed if it occurs next to a
    space anywhere in the answer (or the answer has a comma between digits, "1,000"), and otherwise becomes a space;
    periods are removed unless a digit follows; lower case; number words up to ten, and "none", become digits; articles
    are removed; contractions without their apostrophe get it back. Colons, apostrophes and other characters stay.

    Reference: Antol et al. 2015 and the evaluation code released with VQA, from 2017 on.

    >>> normalise_answer("The two-door, RED car."), normalise_answer("1,000"), normalise_answer("dont know")
    ('2 door red car', '1000', "don't know")
    """
    text = _one_line(text)
    joined = _NUMBER_COMMA.search(text) is not None
    clean = text
    for mark in PUNCTUATION:
        if mark in text:
            clean = clean.replace(mark, "" if joined or mark + " " in text or " " + mark in text else " ")
    clean = _LONE_PERIOD.sub("", clean, count=_PERIODS_DROPPED)
    words = (DIGITS.get(word, word) for word in clean.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def normalise_answers(answers: Sequence[str]) -> list[str]:
    """Normalise the annotators' answers to one question; like the evaluator, keep them as written if all agree.

    A single answer is normalised.

    >>> normalise_answers(["Two", "2", "two"]), normalise_answers(["Two", "Two"]), normalise_answers(["Two"])
    (['2', '2', '2'], ['Two', 'Two'], ['2'])
    """
    lines = [_one_line(answer) for answer in answers]
    return lines if _agree(lines) else [normalise_answer(line) for line in lines]


def normalise_pair(prediction: str, answers: Sequence[str]) -> tuple[str, list[str]]:
    """Normalise a predicted answer and the annotators' answers as the evaluator does.

    >>> normalise_pair("the dog", ["dog", "a dog"]), normalise_pair("the dog", ["dog", "dog"])
    (('dog', ['dog', 'dog']), ('the dog', ['dog', 'dog']))
    """
    kept = _one_line(prediction)
    agreed = _agree([_one_line(answer) for answer in answers])
    return (kept if agreed else normalise_answer(kept)), normalise_answers(answers)


def agreement(matches: int, annotators: int) -> float:
    """Return the official accuracy of an answer given by `matches` of the annotators, leaving out each in turn.

    The mean over annotators of min(matches among the others / 3, 1): 0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten.
    With a single annotator it is 1 for a match.

    >>> [agreement(n, 10) for n in range(6)]
    [0.0, 0.3, 0.6, 0.9, 1.0, 1.0]
    """
    if annotators < 1 or not 0 <= matches <= annotators:
        raise WrongValue(
            f"agreement: expected 0 <= matches <= annotators and annotators >= 1, got {matches} of {annotators}; "
            "count the answers"
        )
    if annotators == 1:
        return float(matches)
    # Leaving out one of the matching annotators removes a match, leaving out another one does not.
    missing_one, all_of_them = min(matches - 1, 3), min(matches, 3)
    return (matches * missing_one + (annotators - matches) * all_of_them) / (3 * annotators) if matches else 0.0


def answer_scores(answers: Sequence[str]) -> dict[str, float]:
    """Return each distinct normalised answer with its official accuracy, the soft target of training.

    Answers are always normalised here, even if all agree, so that they are found in the vocabulary.

    >>> answer_scores(["two"] * 3 + ["2"] * 6 + ["a few"])
    {'2': 1.0, 'few': 0.3}
    """
    counts = Counter(map(normalise_answer, answers))
    return {answer: agreement(count, len(answers)) for answer, count in counts.items()}


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _agree(lines: list[str]) -> bool:
    return len(lines) > 1 and len(set(lines)) == 1


def agreed_answer(question: Question) -> str | None:
    """The consensus answer of a question, normalised; None if it has no answers."""
    if question.answer is not None:
        return normalise_answer(question.answer)
    counts = Counter(map(normalise_answer, question.answers))
    return counts.most_common(1)[0][0] if counts else None


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
        raise WrongType(f"tokenize: expected a string, got {type(text).__name__}; pass one text")
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
                raise WrongValue(
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
