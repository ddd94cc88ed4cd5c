"""Accuracy of answers as the evaluation server counts it, and the variant of the dual attention paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from foveate.data.answers import AnswerVocabulary, agreement, normalise_pair
from foveate.data.samples import Question
from foveate.errors import DataError, ShapeError
from foveate.metrics.means import Averaged
from foveate.registry import lookup


def official_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """The evaluation server's accuracy of an answer: each person in turn left out.

    mean over persons i of min(#{j ≠ i who said it} / 3, 1): 0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of ten.

    Both sides are normalised unless all people wrote the same. With one known answer it is equality.

    Reference: Antol et al. 2015 and the evaluation code released with VQA.

    >>> official_accuracy("two", ["2", "2.", "two", "a couple"] + ["3"] * 6)
    0.9
    """
    matches = _matches(prediction, answers)
    return agreement(matches, len(answers))


def lenient_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """`min(n / 3, 1)` where n people gave the answer; nobody is left out. One known answer: equality.

    Reference: Nam et al. 2017, eq. 23.

    >>> lenient_accuracy("two", ["2", "2.", "two", "a couple"] + ["3"] * 6)
    1.0
    """
    matches = _matches(prediction, answers)
    return min(matches / min(3, len(answers)), 1.0)


RULES: Mapping[str, Callable[[str, Sequence[str]], float]] = MappingProxyType(
    {"official": official_accuracy, "lenient": lenient_accuracy}
)
Rule = Literal["official", "lenient"]


def choose_answers(
    scores: Tensor, vocabulary: AnswerVocabulary, choices: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """The answers with the highest scores, of the whole list or of each question's own candidates.

    Args:
        scores: (B, A) one score an answer of the vocabulary.
        vocabulary: the list of answers.
        choices: for multiple choice, B lists of candidates, returned as written; an empty list leaves the question
            open. Candidates outside the vocabulary have no score: they are taken only where all are, the first then.

    >>> words = AnswerVocabulary(("yes", "no", "2"))
    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> choose_answers(scores, words), choose_answers(scores, words, [["maybe", "two", "no"]])
    (['yes'], ['no'])
    """
    if scores.ndim != 2 or scores.shape[1] != len(vocabulary):
        raise ShapeError(
            f"choose_answers: expected scores (B, {len(vocabulary)}), got {tuple(scores.shape)}; "
            "give one score an answer of the vocabulary"
        )
    best = [vocabulary.answers[i] for i in scores.argmax(-1).tolist()]
    if choices is None:
        return best
    return [_chosen(row, vocabulary, own) or top for row, own, top in zip(scores, choices, best, strict=True)]


def _chosen(scores: Tensor, vocabulary: AnswerVocabulary, choices: Sequence[str]) -> str | None:
    known = [(choice, place) for choice in choices if (place := vocabulary.index(choice)) is not None]
    if not known:
        return choices[0] if choices else None
    return max(known, key=lambda pair: scores[pair[1]].item())[0]


@dataclass
class AnswerAccuracy(Averaged):
    """Accuracy over a whole split: overall, by answer type, by question type and by tag.

    Names: "accuracy", "accuracy/<answer type>", "accuracy/<question type>", "accuracy/<tag>". Feeding a split in parts
    gives the same as feeding it at once.

    Args:
        rule: "official", or "lenient" for `min(n / 3, 1)`.

    >>> accuracy = AnswerAccuracy()
    >>> accuracy.update(["yes"], [Question(1, 1, "Is it?", ("yes",) * 10, answer_type="yes/no")])
    >>> accuracy.compute()
    {'accuracy': 1.0, 'accuracy/yes/no': 1.0}
    """

    rule: Rule = "official"

    def update(self, predictions: Sequence[str], questions: Sequence[Question]) -> None:
        """Count the answers predicted to questions; a question without known answers raises DataError."""
        score = lookup("rule", self.rule, RULES)
        for question in questions:
            if not question.answers:
                raise DataError(
                    f"AnswerAccuracy: expected people's answers to question {question.id!r}, got none; "
                    "a split without answers can be predicted, not evaluated"
                )
        pairs = zip(predictions, questions, strict=True)
        scores = torch.tensor([score(prediction, question.answers) for prediction, question in pairs])
        self.means.add({"accuracy": scores.double()}, [groups_of(question) for question in questions])


def groups_of(question: Question) -> tuple[str, ...]:
    """The subsets in which a question is reported apart.

    >>> groups_of(Question(1, 1, "Is it?", answer_type="yes/no", tags=frozenset({"small"})))
    ('yes/no', 'small')
    """
    kinds = (question.answer_type, question.question_type, *sorted(question.tags))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def _matches(prediction: str, answers: Sequence[str]) -> int:
    found, given = normalise_pair(prediction, answers)
    return sum(answer == found for answer in given)
