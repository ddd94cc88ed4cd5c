"""The tokenizer's rules and the alignment of other tokenizers' words."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foveate.lab.data.tokenizers import align, pair_sentences
from foveate.lab.data.vocabulary import tokenize


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", []),
        ("...", []),
        ("A Dog", ["a", "dog"]),
        ("What color is it?", ["what", "color", "is", "it"]),
        ("man's hat", ["man", "'s", "hat"]),
        ("a man 's hat", ["a", "man", "'s", "hat"]),
        ("the men’s hat", ["the", "men", "'s", "hat"]),
        ("isn't", ["is", "n't"]),
        ("is n't", ["is", "n't"]),
        ("can't won't", ["ca", "n't", "wo", "n't"]),
        ("couldn't've", ["could", "n't", "'ve"]),
        ("they're I'm you'll he'd", ["they", "'re", "i", "'m", "you", "'ll", "he", "'d"]),
        ("the boys' dog", ["the", "boys", "dog"]),
        ("o'clock", ["o'clock"]),
        ("'slide' signs", ["slide", "signs"]),
        ("t-shirt", ["t", "shirt"]),
        ("merry-go-round", ["merry", "go", "round"]),
        ("3.5 and 1,000.", ["3.5", "and", "1,000"]),
        ("10:30", ["10", "30"]),
        ("2nd 3d", ["2nd", "3d"]),
        ("snake_case", ["snake", "case"]),
        ("black&white", ["black", "white"]),
        ("café Ünï", ["café", "ünï"]),
        ("ﬁne", ["fine"]),
        ("狗 run", ["狗", "run"]),
        ('"Little Italy?"?', ["little", "italy"]),
    ],
)
def test_each_rule(text, tokens):
    assert list(tokenize(text)) == tokens


@settings(deadline=None)  # the first call compiles the patterns
@given(st.text(max_size=30))
def test_tokens_are_lower_case_words_and_stable(text):
    tokens = tokenize(text)
    assert all(any(c.isalnum() for c in token) and not any(c.isspace() for c in token) for token in tokens)
    assert tokenize(" ".join(tokens)) == tokens


def test_align_follows_letters_not_separators():
    tokens = ("the", "t", "shirt", "is", "n't", "john", "'s", "schoolgirls")
    words = ["The", "T-shirt", ",", "isn't", "John's", "school", "girls", "."]
    assert align(words, tokens) == [(0, 1), (1, 3), None, (3, 5), (5, 7), (7, 8), (7, 8), None]


def test_align_bridges_other_spellings():
    assert align(["A", "blond", "girl"], ("a", "blonde", "girl")) == [(0, 1), (1, 2), (2, 3)]
    assert align(["three", "wheels"], ("3", "wheels")) == [(0, 1), (1, 2)]
    assert align(["a", "dog", "runs"], ("a", "runs")) == [(0, 1), None, (1, 2)]
    assert align(["a", "dog"], ("a", "big", "dog")) == [(0, 1), (2, 3)]


def test_align_edges():
    assert align([], ("a",)) == []
    assert align(["a", "."], ()) == [None, None]


@given(st.lists(st.text(alphabet="ab1'-.", min_size=1, max_size=5), max_size=8))
def test_aligned_words_have_the_letters_of_their_tokens(words):
    tokens = tokenize(" ".join(words))
    for word, span in zip(words, align(words, tokens), strict=True):
        letters = "".join(c for c in word if c.isalnum())
        assert (span is None) == (not letters)
        if span:
            assert letters in "".join(c for token in tokens[slice(*span)] for c in token if c.isalnum())


def test_sentences_are_paired_by_letters_then_by_likeness():
    left = ["Two dogs play .", "A school girl", "Zebras at noon"]
    right = ["A schoolgirl .", "something else entirely", "two dog plays"]
    assert pair_sentences(left, right) == [2, 0, None]
    assert pair_sentences(["same", "same"], ["same", "same"]) == [0, 1]
    assert pair_sentences(["abcd"], ["abxy"], min_ratio=0.9) == [None]
    assert pair_sentences(["abcd"], ["abxy"], min_ratio=0.4) == [0]
    assert pair_sentences([], []) == []
