"""Every rule of the official evaluator, soft targets and the answer vocabulary."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foveate.errors import DataError
from foveate.lab.data.samples import Question
from foveate.lab.data.vocabulary import (
    CONTRACTED,
    CONTRACTIONS,
    PUNCTUATION,
    AnswerVocabulary,
    agreement,
    answer_scores,
    normalise_answer,
    normalise_answers,
    normalise_pair,
)


@pytest.mark.parametrize(
    ("raw", "normal"),
    [
        ("  yes\n", "yes"),
        ("hot\tdog", "hot dog"),
        ("hot\ndog", "hot dog"),
        ("Hot DOG", "hot dog"),
        ("hot   dog", "hot dog"),
        ("dog.", "dog"),
        ("st. paul", "st paul"),
        ("3.5", "3.5"),
        (".5", ".5"),
        ("5.", "5"),
        ("1.0.", "1.0"),
        ("1,000", "1000"),
        ("1,000-2,000", "10002000"),  # a comma between digits makes every mark vanish
        ("red,blue", "red blue"),
        ("red, blue", "red blue"),
        ("two-door", "2 door"),
        ("two - door", "2 door"),
        ("yes/no", "yes no"),
        ("yes /no", "yes no"),
        ("a/b /c", "ab c"),  # one slash beside a space: all slashes vanish
        ("10:30", "10:30"),
        ("men's", "men's"),
        ("black & white", "black & white"),
        ("none", "0"),
        ("Zero", "0"),
        ("ten", "10"),
        ("eleven", "eleven"),
        ("one hundred", "1 hundred"),
        ("twofold", "twofold"),
        ("a dog", "dog"),
        ("an apple", "apple"),
        ("on the table", "on table"),
        ("the", ""),
        ("dont know", "don't know"),
        ("don't", "don't"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("couldntve", "couldntve"),  # two missing apostrophes are not recognised
        ("y'alld've", "y'all'd've"),
        ("twas", "'twas"),
        ("somebody'd", "somebodyd"),
        ("im", "im"),  # the evaluator's "Im" never meets a lower-case word
        ("", ""),
    ],
)
def test_each_rule_of_normalisation(raw, normal):
    assert normalise_answer(raw) == normal


@pytest.mark.parametrize("mark", PUNCTUATION)
def test_each_mark_becomes_a_space_inside_and_vanishes_beside_one(mark):
    assert normalise_answer(f"cat{mark}dog") == "cat dog"
    assert normalise_answer(f"cat{mark} dog{mark}x") == "cat dogx"


def test_number_words_in_order():
    words = ["none", "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    assert [normalise_answer(word) for word in words] == ["0", *map(str, range(11))]


def test_contractions_have_exactly_one_apostrophe_left_out():
    assert len(CONTRACTIONS) == 114
    for wrong, right in CONTRACTIONS.items():
        if wrong != "somebody'd":
            assert right in CONTRACTED
            assert wrong.count("'") == right.count("'") - 1
            assert wrong.replace("'", "") == right.replace("'", "")


def test_only_so_many_periods_are_dropped():
    assert normalise_answer("." * 40 + "x") == "." * 8 + "x"


@given(st.text(alphabet="abct he.,-'1 ", max_size=12))
def test_normal_text_has_single_spaces_and_no_articles(text):
    words = normalise_answer(text).split(" ")
    assert not {"a", "the"} & set(words)
    assert words == [""] or all(words)


def test_answers_that_all_agree_stay_as_written():
    assert normalise_answers(["The Dog "] * 10) == ["The Dog"] * 10
    assert normalise_answers(["The Dog"] * 9 + ["dog"]) == ["dog"] * 10
    assert normalise_answers(["The Dog"]) == ["dog"]
    assert normalise_answers([]) == []


def test_a_prediction_is_treated_like_the_answers():
    assert normalise_pair("The dog.", ["dog"] * 10) == ("The dog.", ["dog"] * 10)
    assert normalise_pair("The dog.", ["dog"] * 9 + ["cat"]) == ("dog", ["dog"] * 9 + ["cat"])
    assert normalise_pair("The dog.", ["a dog"]) == ("dog", ["dog"])


@pytest.mark.parametrize("people", [2, 3, 5, 10])
def test_agreement_is_the_mean_over_people_left_out(people):
    for matches in range(people + 1):
        given_answers = [1] * matches + [0] * (people - matches)
        slow = sum(min(sum(given_answers[:i] + given_answers[i + 1 :]) / 3, 1) for i in range(people)) / people
        assert agreement(matches, people) == pytest.approx(slow, abs=1e-12)


def test_soft_targets_of_ten_and_of_one():
    answers = ["4"] * 4 + ["three"] * 3 + ["two"] * 2 + ["a 1"]
    assert answer_scores(answers) == {"4": 1.0, "3": 0.9, "2": 0.6, "1": 0.3}
    assert answer_scores(["Two"]) == {"2": 1.0}
    assert answer_scores([]) == {}


def test_agreement_refuses_impossible_counts():
    with pytest.raises(
        ValueError, match=r"agreement: expected 0 <= matches <= annotators .* got 3 of 2; count the answers"
    ):
        agreement(3, 2)


def make(answers, answer=None):
    return Question(0, 0, "?", tuple(answers), answer)


def test_vocabulary_counts_questions_by_agreed_answer():
    questions = [make(["cat"] * 10, "A cat")] * 9 + [make(["dog"] * 6 + ["cat"] * 4)] * 10 + [make(["x"])] * 8
    vocabulary = AnswerVocabulary.from_questions(questions)
    assert vocabulary.answers == ("dog", "cat")
    assert AnswerVocabulary.from_questions(questions, min_count=8).answers == ("dog", "cat", "x")
    assert AnswerVocabulary.from_questions([make([])]).answers == ()
    assert "dog" in vocabulary
    assert "x" not in vocabulary
    assert len(vocabulary) == 2


def test_vocabulary_gives_classes_and_targets():
    vocabulary = AnswerVocabulary(("yes", "2"))
    assert vocabulary.index("Two") == 1
    assert vocabulary.index("no") is None
    torch.testing.assert_close(vocabulary.target(["yes"] * 2 + ["two"] * 8), torch.tensor([0.6, 1.0]))
    torch.testing.assert_close(vocabulary.target(["Yes."]), torch.tensor([1.0, 0.0]))
    torch.testing.assert_close(vocabulary.target(["no"]), torch.zeros(2))


def test_vocabulary_survives_saving(tmp_path):
    vocabulary = AnswerVocabulary(("yes", "café", "don't"))
    vocabulary.save(tmp_path / "answers.json")
    assert AnswerVocabulary.load(tmp_path / "answers.json") == vocabulary
    assert [path.name for path in tmp_path.iterdir()] == ["answers.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[1]",
            r"expected \{'kind': 'answers', 'answers': \[...\]\} in .*answers.json, got \[1\]; use a file written by",
        ),
        ('{"kind": "words", "words": []}', r"expected \{'kind': 'answers'"),
        ('{"kind": "answers", "answers": [1]}', "expected strings, got other values"),
        ('{"kind": "answers", "answers": ["a", "a"]}', "expected different answers, got 'a' twice; keep one"),
        ('{"kind": "answers", ', r"expected JSON in .*answers.json, got .* it may be truncated"),
    ],
)
def test_vocabulary_refuses_other_files(tmp_path, content, message):
    (tmp_path / "answers.json").write_text(content)
    with pytest.raises(DataError, match=message):
        AnswerVocabulary.load(tmp_path / "answers.json")


def test_vocabulary_refuses_a_missing_file_and_a_count_of_zero(tmp_path):
    with pytest.raises(DataError, match=r"expected the file .*none.json, got no such file; AnswerVocabulary.save"):
        AnswerVocabulary.load(tmp_path / "none.json")
    with pytest.raises(ValueError, match="expected min_count >= 1, got 0; 1 keeps every answer"):
        AnswerVocabulary.from_questions([], min_count=0)


def test_vocabulary_is_plain_json():
    vocabulary = AnswerVocabulary(("yes",))
    assert AnswerVocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
