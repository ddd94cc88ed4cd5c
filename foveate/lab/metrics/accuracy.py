"""Accuracy of answers as the VQA evaluation server computes it, and the variant of the dual attention paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from foveate.errors import DataError, ShapeError
from foveate.lab.data.samples import Question
from foveate.lab.data.vocabulary import AnswerVocabulary, agreement, normalise_pair
from foveate.metrics.means import ExampleKey, MeanMetric
from foveate.registry import lookup


def official_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """The evaluation server's accuracy of an answer: the mean over leaving each annotator out in turn.

    mean over annotators i of min(#{j ≠ i with the same answer} / 3, 1): 0, .3, .6, .9, 1 for 0, 1, 2, 3, 4 or more of
    ten annotators.

    Both sides are normalised unless all annotators wrote the same. With a single annotator it is equality.

    Reference: Antol et al. 2015 and the evaluation code released with VQA.

    >>> official_accuracy("two", ["2", "2.", "two", "a couple"] + ["3"] * 6)
    0.9
    """
    return agreement(_matches(prediction, answers), len(answers))


def lenient_accuracy(prediction: str, answers: Sequence[str]) -> float:
    """`min(n / 3, 1)` for an answer that n annotators wrote; none is left out. With a single annotator: equality.

    Reference: Nam et al. 2017, eq. 23.

    >>> lenient_accuracy("two", ["2", "2.", "two", "a couple"] + ["3"] * 6)
    1.0
    """
    return min(_matches(prediction, answers) / min(3, len(answers)), 1.0)


RULES: Mapping[str, Callable[[str, Sequence[str]], float]] = MappingProxyType(
    {"official": official_accuracy, "lenient": lenient_accuracy}
)
Rule = Literal["official", "lenient"]


def choose_answers(
    scores: Tensor, vocabulary: AnswerVocabulary, choices: Sequence[Sequence[str]] | None = None
) -> list[str]:
    """The answers with the highest scores, from the whole vocabulary or from the candidates of each question.

    Args:
        scores: (B, A), one score per answer of the vocabulary.
        vocabulary: the A answers.
        choices: for multiple choice, B lists of candidates, returned as written; an empty list leaves the question
            open-ended. Candidates outside the vocabulary have no score: if all are, the first one is returned.

    >>> vocabulary = AnswerVocabulary(("yes", "no", "2"))
    >>> scores = torch.tensor([[3.0, 2.0, 1.0]])
    >>> choose_answers(scores, vocabulary), choose_answers(scores, vocabulary, [["maybe", "two", "no"]])
    (['yes'], ['no'])
    """
    if scores.ndim != 2 or scores.shape[1] != len(vocabulary):
        raise ShapeError(
            f"choose_answers: expected scores (B, {len(vocabulary)}), got {tuple(scores.shape)}; "
            "pass one score per answer of the vocabulary"
        )
    best = [vocabulary.answers[i] for i in scores.argmax(-1).tolist()]
    if choices is None:
        return best
    return [_choose(row, vocabulary, own) or top for row, own, top in zip(scores, choices, best, strict=True)]


def _choose(scores: Tensor, vocabulary: AnswerVocabulary, choices: Sequence[str]) -> str | None:
    """The candidate with the highest score; None without candidates."""
    known = [(choice, place) for choice in choices if (place := vocabulary.index(choice)) is not None]
    if not known:
        return choices[0] if choices else None
    return max(known, key=lambda pair: scores[pair[1]].item())[0]


@dataclass
class AnswerAccuracy(MeanMetric):
    """Accuracy over a split: overall, per answer type, per question type and per tag.

    Names: "accuracy", "accuracy/<answer type>", "accuracy/<question type>", "accuracy/<tag>". A split that is added in
    batches yields the same numbers as one that is added at once.

    Args:
        rule: "official", or "lenient" for `min(n / 3, 1)`.

    >>> accuracy = AnswerAccuracy()
    >>> accuracy.update(["yes"], [Question(1, 1, "Is it?", ("yes",) * 10, answer_type="yes/no")])
    >>> accuracy.compute()
    {'accuracy': 1.0, 'accuracy/yes/no': 1.0}
    """

    rule: Rule = "official"

    def update(self, predictions: Sequence[str], questions: Sequence[Question]) -> None:
        """Add the predicted answers of some questions; raises DataError for a question without human answers."""
        score = lookup("rule", self.rule, RULES)
        for question in questions:
            if not question.answers:
                raise DataError(
                    f"AnswerAccuracy: expected human answers to question {question.id!r}, got none; "
                    "a split without answers can be predicted but not evaluated"
                )
        pairs = zip(predictions, questions, strict=True)
        scores = torch.tensor([score(prediction, question.answers) for prediction, question in pairs])
        subsets = [question_subsets(question) for question in questions]
        self.means.add({"accuracy": scores.double()}, subsets, question_keys(questions))


def question_keys(questions: Sequence[Question]) -> list[ExampleKey]:
    """The keys under which the values of single questions are kept.

    >>> question_keys([Question(5, 1, "Is it?")])
    [('5', '1')]
    """
    return [(str(question.id), str(question.image_id)) for question in questions]


def question_subsets(question: Question) -> tuple[str, ...]:
    """The subsets for which a question is also reported separately.

    >>> question_subsets(Question(1, 1, "Is it?", answer_type="yes/no", tags=frozenset({"small"})))
    ('yes/no', 'small')
    """
    kinds = (question.answer_type, question.question_type, *sorted(question.tags))
    return tuple(dict.fromkeys(kind for kind in kinds if kind))


def _matches(prediction: str, answers: Sequence[str]) -> int:
    """The number of annotators who wrote the predicted answer."""
    predicted, written = normalise_pair(prediction, answers)
    return sum(answer == predicted for answer in written)
