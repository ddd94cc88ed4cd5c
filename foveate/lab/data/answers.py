"""Answer normalisation and scores of the official VQA evaluator, and the vocabulary of answers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from foveate.lab.data.samples import Question

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
        raise ValueError(
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
