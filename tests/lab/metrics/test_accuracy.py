from __future__ import annotations

from itertools import combinations

import pytest
import torch

from foveate.errors import DataError, ShapeError, UnknownName
from foveate.lab.data.samples import Question
from foveate.lab.data.vocabulary import AnswerVocabulary
from foveate.lab.metrics import AnswerAccuracy, choose_answers, lenient_accuracy, official_accuracy


@pytest.mark.parametrize("matches", range(11))
def test_official_accuracy_leaves_each_person_out(matches: int) -> None:
    answers = ["cat"] * matches + ["dog"] * (10 - matches)
    others = list(combinations(answers, 9))
    slow = sum(min(nine.count("cat") / 3, 1) for nine in others) / len(others)
    assert official_accuracy("cat", answers) == pytest.approx(slow)


@pytest.mark.parametrize(("matches", "expected"), [(0, 0), (1, 1 / 3), (2, 2 / 3), (3, 1), (10, 1)])
def test_lenient_accuracy_is_a_third_a_person(matches: int, expected: float) -> None:
    assert lenient_accuracy("cat", ["cat"] * matches + ["dog"] * (10 - matches)) == pytest.approx(expected)


def test_spelling_does_not_matter_but_agreement_is_taken_as_written() -> None:
    assert official_accuracy("Two.", ["2", "two"] + ["a 2"] * 8) == 1.0
    assert official_accuracy("two", ["2"] * 10) == 0.0  # all ten wrote the same: compared as written
    assert official_accuracy("2", ["2"] * 10) == 1.0


@pytest.mark.parametrize("rule", [official_accuracy, lenient_accuracy])
def test_one_known_answer_is_equality(rule) -> None:
    assert rule("The Cat", ["cat"]) == 1.0
    assert rule("dog", ["cat"]) == 0.0


def question(number: int, answer: str, **more: object) -> Question:
    return Question(number, 1, "?", (answer,) * 10, **more)  # type: ignore[arg-type]


def test_accuracy_by_type_and_tag() -> None:
    accuracy = AnswerAccuracy()
    accuracy.update(
        ["yes", "no", "2", "red"],
        [
            question(1, "yes", answer_type="yes/no", question_type="exist"),
            question(2, "yes", answer_type="yes/no", question_type="same", tags=frozenset({"two-distant"})),
            question(3, "2", answer_type="number", question_type="count"),
            question(4, "red"),
        ],
    )
    assert accuracy.compute() == {
        "accuracy": 0.75,
        "accuracy/yes/no": 0.5,
        "accuracy/number": 1.0,
        "accuracy/exist": 1.0,
        "accuracy/same": 0.0,
        "accuracy/count": 1.0,
        "accuracy/two-distant": 0.0,
    }
    assert accuracy.means.counts()["accuracy/yes/no"] == 2


def test_the_rule_counts() -> None:
    asked = [Question(1, 1, "?", ("yes", "yes", "yes", *["no"] * 7))]
    official, lenient = AnswerAccuracy(), AnswerAccuracy("lenient")
    for accuracy in (official, lenient):
        accuracy.update(["yes"], asked)
    assert official.compute()["accuracy"] == pytest.approx(0.9)
    assert lenient.compute()["accuracy"] == 1.0


def test_errors() -> None:
    with pytest.raises(DataError, match=r"AnswerAccuracy: expected human answers to question 7, got none; a split"):
        AnswerAccuracy().update(["yes"], [Question(7, 1, "?")])
    with pytest.raises(UnknownName, match="did you mean 'official'"):
        AnswerAccuracy("offical").update([], [])  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"choose_answers: expected scores \(B, 2\), got \(1, 3\)"):
        choose_answers(torch.zeros(1, 3), AnswerVocabulary(("a", "b")))


def test_multiple_choice_takes_the_best_candidate_as_written() -> None:
    words = AnswerVocabulary(("yes", "no", "2", "red"))
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(4, 4)
    choices = [["Red", "two", "blue"], ["blue", "green"], [], ["No!", "yes."]]
    assert choose_answers(scores, words, choices) == ["two", "blue", "yes", "yes."]
    assert choose_answers(scores, words) == ["yes"] * 4
