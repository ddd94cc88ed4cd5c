"""Words to numbers and back."""

import pytest

from foveate.errors import DataError
from foveate.lab.data.vocabulary import BOS, EOS, PAD, SPECIAL, UNKNOWN, Vocabulary, tokenize

SENTENCES = [["a", "dog", "runs"], ["a", "cat"], ["a", "dog"]]


def test_words_are_ordered_by_count_then_alphabet():
    assert Vocabulary.from_tokens(SENTENCES).words == (*SPECIAL, "a", "dog", "cat", "runs")
    assert Vocabulary.from_tokens(reversed(SENTENCES)) == Vocabulary.from_tokens(SENTENCES)


def test_minimum_count_drops_rare_words():
    words = Vocabulary.from_tokens(SENTENCES, min_count=2)
    assert words.words[4:] == ("a", "dog")
    assert words.unknown(SENTENCES) == {"cat": 1, "runs": 1}
    assert Vocabulary.from_tokens([]).words == SPECIAL


def test_encode_and_decode():
    words = Vocabulary.from_tokens(SENTENCES)
    assert words.encode(["a", "bird", "runs"]) == [4, UNKNOWN, 7]
    assert words.encode(["a"], bos=True) == [BOS, 4]
    assert words.encode(["a"], eos=True) == [4, EOS]
    assert words.encode(["a", "dog", "runs"], eos=True, max_tokens=2) == [4, 5, EOS]
    assert words.encode([]) == []
    assert words.decode([BOS, 4, 5, EOS, 6, PAD]) == ["a", "dog"]
    assert words.decode([4, PAD, PAD]) == ["a"]
    assert words.decode(words.encode(["a", "bird"])) == ["a", "<unknown>"]
    assert words.index("dog") == 5
    assert words.index("bird") == UNKNOWN
    assert "dog" in words
    assert "bird" not in words
    assert len(words) == 8


def test_decode_refuses_a_foreign_number():
    with pytest.raises(
        ValueError, match=r"expected token ids in \[0, 3\], got 4; decode with the vocabulary used to encode"
    ):
        Vocabulary(SPECIAL).decode([4])


def test_save_and_load(tmp_path):
    words = Vocabulary.from_tokens([["naïve", "n't", '"']])
    words.save(tmp_path / "words.json")
    assert Vocabulary.load(tmp_path / "words.json") == words


def test_a_failed_save_leaves_the_old_file(tmp_path):
    path = tmp_path / "words.json"
    Vocabulary(SPECIAL).save(path)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        Vocabulary((*SPECIAL, "\ud800")).save(path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"Vocabulary: expected JSON in .*words.json, got .*; it may be truncated"),
        ('{"kind": "answers", "answers": []}', "expected .'kind': 'words', 'words'"),
        ('{"kind": "words", "words": "abcd"}', "use a file written by Vocabulary.save"),
        ('{"kind": "words", "words": ["a"]}', "expected the words to begin with <pad>, <unknown>, <start>, <end>"),
        ('{"kind": "words", "words": ["<pad>", "<unknown>", "<start>", "<end>", 5]}', "expected strings"),
        ('{"kind": "words", "words": ["<pad>", "<unknown>", "<start>", "<end>", "a", "a"]}', "got 'a' twice; keep one"),
    ],
)
def test_load_refuses_other_files(tmp_path, content, message):
    (tmp_path / "words.json").write_text(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.load(tmp_path / "words.json")


def test_load_refuses_text_that_is_not_utf8(tmp_path):
    (tmp_path / "words.json").write_bytes(b'{"kind": "\xff"}')
    with pytest.raises(DataError, match=r"expected JSON in UTF-8 in .*words.json"):
        Vocabulary.load(tmp_path / "words.json")


def test_minimum_count_is_checked():
    with pytest.raises(ValueError, match="expected min_count >= 1, got 0; 1 keeps every word"):
        Vocabulary.from_tokens([], min_count=0)


def test_what_is_no_text_is_named():
    with pytest.raises(TypeError, match="tokenize: expected a string, got int; pass one text"):
        tokenize(3)
