"""Answers as the official VQA evaluator reads them, and the list of answers that a model chooses from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveate.checks import check_number
from foveate.data.files import read_json
from foveate.data.samples import Question
from foveate.data.writing import write_json
from foveate.errors import DataError

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
DIGITS = {"none": "0"} | {word: str(number) for number, word in enumerate(NUMBER_WORDS)}
ARTICLES = frozenset({"a", "an", "the"})

# Each is also recognised with any one of its apostrophes left out ("dont", "couldnt've").
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
} | {"somebody'd": "somebodyd"}  # the evaluator's own exception, the wrong way round

_NUMBER_COMMA = re.compile(r"\d,\d")
_LONE_PERIOD = re.compile(r"\.(?!\d)")
_PERIODS_DROPPED = 32  # the evaluator passes a flag where a count belongs, so it stops after so many


def normalise_answer(text: str) -> str:
    """An answer as the official VQA evaluator compares it.

    In this order: line breaks and tabs become spaces; each mark of `PUNCTUATION` is removed where the answer has it
    beside a space (or holds a comma between digits, "1,000"), otherwise becomes a space; periods go unless a digit
    follows; lower case; number words up to ten, and "none", become digits; articles go; contractions without their
    apostrophe get it back. Colons, apostrophes and other marks stay.

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
    """People's answers to one question as the evaluator compares them: as written when several people all agree.

    One answer alone is normalised: nobody was there to agree with.

    >>> normalise_answers(["Two", "2", "two"]), normalise_answers(["Two", "Two"]), normalise_answers(["Two"])
    (['2', '2', '2'], ['Two', 'Two'], ['2'])
    """
    lines = [_one_line(answer) for answer in answers]
    return lines if _agree(lines) else [normalise_answer(line) for line in lines]


def normalise_pair(prediction: str, answers: Sequence[str]) -> tuple[str, list[str]]:
    """A predicted answer and people's answers, both as the evaluator compares them.

    >>> normalise_pair("the dog", ["dog", "a dog"]), normalise_pair("the dog", ["dog", "dog"])
    (('dog', ['dog', 'dog']), ('the dog', ['dog', 'dog']))
    """
    kept = _one_line(prediction)
    agreed = _agree([_one_line(answer) for answer in answers])
    return (kept if agreed else normalise_answer(kept)), normalise_answers(answers)


def agreement(matches: int, people: int) -> float:
    """Official accuracy of an answer that `matches` of `people` gave, each person in turn left out.

    Mean over persons of min(matches among the others / 3, 1): 0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten.
    With one person it is 1 for a match.

    >>> [agreement(n, 10) for n in range(6)]
    [0.0, 0.3, 0.6, 0.9, 1.0, 1.0]
    """
    if people < 1 or not 0 <= matches <= people:
        raise ValueError(
            f"agreement: expected 0 <= matches <= people and people >= 1, got {matches} of {people}; count the answers"
        )
    if people == 1:
        return float(matches)
    missing_one, all_of_them = min(matches - 1, 3), min(matches, 3)
    return (matches * missing_one + (people - matches) * all_of_them) / (3 * people) if matches else 0.0


def answer_scores(answers: Sequence[str]) -> dict[str, float]:
    """Each different answer after normalisation with its official accuracy: the soft target of training.

    Every answer is normalised here, also where all agree, so that it is found in the vocabulary.

    >>> answer_scores(["two"] * 3 + ["2"] * 6 + ["a few"])
    {'2': 1.0, 'few': 0.3}
    """
    counts = Counter(map(normalise_answer, answers))
    return {answer: agreement(count, len(answers)) for answer, count in counts.items()}


@dataclass(frozen=True)
class AnswerVocabulary:
    """The answers a model chooses from, normalised and in a fixed order; the position is the class.

    >>> questions = [Question(i, 1, "How many?", ("two",) * 10) for i in range(9)]
    >>> vocabulary = AnswerVocabulary.from_questions(questions)
    >>> vocabulary.answers, vocabulary.target(["2", "two", "2", *"3333333"]).tolist()
    (('2',), [0.8999999761581421])
    """

    answers: tuple[str, ...]

    def __post_init__(self) -> None:
        if not all(isinstance(answer, str) for answer in self.answers):
            raise DataError("AnswerVocabulary: expected strings, got other values; pass the answers as text")
        if len(self._positions) != len(self.answers):
            twice = next(a for a, count in Counter(self.answers).items() if count > 1)
            raise DataError(f"AnswerVocabulary: expected different answers, got {twice!r} twice; keep one")

    @classmethod
    def from_questions(cls, questions: Iterable[Question], min_count: int = 9) -> AnswerVocabulary:
        """The agreed answers of at least `min_count` questions, most frequent first, equal counts by the alphabet.

        A question counts once, for its `answer`, or for the most frequent of its `answers` where there is none
        (the first given of equals). With 9 this gives 3 129 answers on train and val of VQA v2.
        """
        check_number("AnswerVocabulary", "min_count", min_count, least=1, advice="1 keeps every answer")
        counts = Counter(answer for question in questions if (answer := _agreed(question)) is not None)
        kept = sorted((a for a, count in counts.items() if count >= min_count), key=lambda a: (-counts[a], a))
        return cls(tuple(kept))

    def __len__(self) -> int:
        return len(self.answers)

    def __contains__(self, answer: str) -> bool:
        return answer in self._positions

    def index(self, answer: str) -> int | None:
        """The class of an answer after normalisation, None when it is not in the list."""
        return self._positions.get(normalise_answer(answer))

    def target(self, answers: Sequence[str]) -> Tensor:
        """(A,) soft target: the official accuracy of each answer of the list, 1 where only one answer is known."""
        target = torch.zeros(len(self.answers))
        for answer, score in answer_scores(answers).items():
            position = self._positions.get(answer)
            if position is not None:
                target[position] = score
        return target

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"kind": "answers", "answers": list(self.answers)}

    @classmethod
    def from_json(cls, data: Any, path: Path | None = None) -> AnswerVocabulary:
        """From what `to_json` gave; DataError when it is something else."""
        found = data.get("answers") if isinstance(data, dict) and data.get("kind") == "answers" else None
        if not isinstance(found, list):
            raise DataError(
                f"AnswerVocabulary: expected {{'kind': 'answers', 'answers': [...]}} in {path or 'the data'}, "
                f"got {data!r:.60}; name a file that AnswerVocabulary.save wrote"
            )
        return cls(tuple(found))

    def save(self, path: Path) -> None:
        """Write as JSON, whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> AnswerVocabulary:
        """Read what `save` wrote."""
        data = read_json("AnswerVocabulary", path, "AnswerVocabulary.save writes it")
        return cls.from_json(data, path)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {answer: position for position, answer in enumerate(self.answers)}


def _one_line(text: str) -> str:
    return text.replace("\n", " ").replace("\t", " ").strip()


def _agree(lines: list[str]) -> bool:
    return len(lines) > 1 and len(set(lines)) == 1


def _agreed(question: Question) -> str | None:
    if question.answer is not None:
        return normalise_answer(question.answer)
    counts = Counter(map(normalise_answer, question.answers))
    return counts.most_common(1)[0][0] if counts else None
