"""Tokenizers of the released code, and captions under another tokenizer."""

from __future__ import annotations

import pytest

from foveate.errors import UnknownName
from foveate.lab.data import DATASETS
from foveate.lab.data.samples import Caption, Phrase
from foveate.lab.data.tokenizers import openvqa_tokens, retokenize, treebank_tokens
from foveate.lab.tasks.matching import Matching, MatchingSettings
from foveate.lab.tasks.vqa.settings import VQASettings

SENTENCES = {
    'A "no parking" sign.': ("a", "``", "no", "parking", "''", "sign", "."),
    "It's 3.5 miles; don't run!": ("it", "'s", "3.5", "miles", ";", "do", "n't", "run", "!"),
    "The dogs' bowls (two) -- empty...": ("the", "dogs", "'", "bowls", "(", "two", ")", "--", "empty", "..."),
    "He cannot wait, they're gonna go .": ("he", "can", "not", "wait", ",", "they", "'re", "gon", "na", "go", "."),
    "a black-and-white dog & 1,000 cats": ("a", "black-and-white", "dog", "&", "1,000", "cats"),
    "": (),
}


@pytest.mark.parametrize("text", SENTENCES)
def test_treebank_tokens(text: str) -> None:
    assert treebank_tokens(text) == SENTENCES[text]


@pytest.mark.parametrize("text", SENTENCES)
def test_treebank_tokens_are_those_of_nltk(text: str) -> None:
    nltk = pytest.importorskip("nltk.tokenize", reason="NLTK is not installed")
    assert list(treebank_tokens(text)) == nltk.NLTKWordTokenizer().tokenize(text.lower())


def test_openvqa_tokens_drop_punctuation() -> None:
    assert openvqa_tokens("Isn't it a well-known and/or (old) bus, #5?") == (
        *("isnt", "it", "a", "well", "known", "and", "or", "old", "bus", "5"),
    )


def test_phrases_follow_the_tokens() -> None:
    phrases = (Phrase(0, 2, 1, unlinked="scene"), Phrase(3, 6, 2, unlinked="scene"))
    caption = Caption(
        1, 1, "Two dogs, a black-and-white cat.", ("two", "dogs", "a", "black", "and", "white", "cat"), phrases
    )
    changed = retokenize(caption, treebank_tokens)
    assert [changed.words(phrase) for phrase in changed.phrases] == [("two", "dogs"), ("black-and-white",)]
    assert changed.tokens[-1] == "."


def test_the_setting_reaches_captions_and_questions() -> None:
    assert VQASettings(tokenizer="openvqa").tokenize("What's this?") == ("whats", "this")
    with pytest.raises(UnknownName, match="treebank"):
        VQASettings(tokenizer="treebnk")
    plain, other = (
        Matching.from_data(MatchingSettings(tokenizer=name, limit=2, min_count=1), None)
        for name in ("foveate", "treebank")
    )
    assert DATASETS["scenes"].read(None, "train", count=2).captions[0].text.endswith(".")
    assert "." not in plain.inputs.words
    assert "." in other.inputs.words
    assert other.collate([other.examples("train", None)[0]]).captions[0].tokens[-1] == "."
