from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.errors import DataError
from foveate.lab.models import Fragments
from foveate.lab.search import AveragedMatcher, Index, build_index, search_by_image, search_by_text
from tests.lab.search.runs import COLOURS, Colours, Contrary, Looking, paint


@pytest.fixture
def images(tmp_path: Path) -> Index:
    return build_index(tmp_path / "i", Colours(), paint(tmp_path / "photos", shades=10), dtype="float32").index


@pytest.fixture
def texts(tmp_path: Path) -> Index:
    return build_index(tmp_path / "t", Colours(), [f"a {name} thing" for name in COLOURS], kind="texts").index


def names(found: list) -> list[str]:
    return [Path(one.name).stem for one in found]


def test_images_by_text(images: Index) -> None:
    found = search_by_text(images, "something blue", Colours(), top=3)
    assert names(found) == ["blue0", "white0", "blue1"]
    assert found[0].score == found[0].similarity == pytest.approx(1)
    assert found[0].attention is None


def test_texts_by_image(texts: Index) -> None:
    green = np.zeros((4, 4, 3), np.uint8)
    green[..., 1] = 200
    green[..., 0] = 30
    found = search_by_image(texts, green, Colours(), top=4)
    assert [one.name for one in found] == ["a white thing", "a green thing", "a red thing", "a blue thing"]


def test_the_same_kind_by_similarity(images: Index, texts: Index) -> None:
    assert names(search_by_image(images, np.array([[[0, 9, 90]]], np.uint8), Colours(), top=2)) == ["white0", "blue0"]
    assert search_by_text(texts, "red", Colours(), top=1)[0].name == "a red thing"
    for search, index, query in ((search_by_image, images, images.name(0)), (search_by_text, texts, "red")):
        with pytest.raises(DataError, match="search: expected to re-rank images by a text or texts by an image, got"):
            search(index, query, Colours(), reranker=Contrary())  # type: ignore[operator]


def test_the_first_are_ranked_again(images: Index) -> None:
    plain = search_by_text(images, "blue", Colours(), top=40)
    matcher = Contrary()
    again = search_by_text(images, "blue", Colours(), top=40, reranker=matcher, first=35)
    assert matcher.asked == [(32, 1), (3, 1)]
    scores = [one.score for one in again[:35]]
    assert scores == sorted(scores, reverse=True)
    assert {one.name for one in again[:35]} == {one.name for one in plain[:35]}
    assert [one.name for one in again[35:]] == [one.name for one in plain[35:]]
    assert again[0].score == pytest.approx(-again[0].similarity, abs=1e-6)
    assert again[0].similarity == min(one.similarity for one in plain[:35])
    few = search_by_text(images, "blue", Colours(), top=2, reranker=Contrary(), first=5)
    assert {one.name for one in few} <= {one.name for one in plain[:5]}
    assert len(few) == 2


def test_texts_are_ranked_again_too(texts: Index) -> None:
    matcher = Contrary()
    found = search_by_image(texts, np.full((2, 2, 3), 255, np.uint8), Colours(), reranker=matcher)
    assert matcher.asked == [(1, 4)]
    assert found[-1].name == "a white thing"


def test_equal_scores_stay_in_the_order_of_similarity(images: Index) -> None:
    class Alike(Contrary):
        def match(self, seen, texts):
            return torch.zeros(len(seen), len(texts))

    plain = search_by_text(images, "blue", Colours(), top=5)
    again = search_by_text(images, "blue", Colours(), top=5, reranker=Alike())
    assert names(again) == names(plain)


def test_attention_of_what_is_returned(images: Index, texts: Index) -> None:
    found = search_by_text(images, "a blue thing", Colours(), top=2, reranker=Looking(), first=10)
    for one in found:
        assert one.attention is not None
        assert one.words == ("a", "blue", "thing")
        assert one.attention.weights.shape == (1, 3, 4)
        assert one.attention.map()[0, 0].tolist() == [[1, 0], [0, 0]]
    assert search_by_text(images, "blue", Colours(), top=1, reranker=Contrary())[0].attention is None
    assert search_by_image(texts, images.name(0), Colours(), top=1, reranker=Looking())[0].attention is not None


def test_words_that_do_not_look(images: Index) -> None:
    class Blind(Looking):
        words_attend = False

    class Broken(Looking):
        def look(self, image, text):
            raise ValueError("shapes do not fit")  # torch's own errors are not taken for words that do not look

    assert search_by_text(images, "blue", Colours(), top=1, reranker=Blind())[0].attention is None
    both = AveragedMatcher((Blind(), Looking()))
    assert search_by_text(images, "blue", Colours(), top=1, reranker=both)[0].attention is not None
    none = AveragedMatcher((Blind(), Contrary()))
    assert search_by_text(images, "blue", Colours(), top=1, reranker=none)[0].attention is None
    with pytest.raises(ValueError, match="shapes do not fit"):
        search_by_text(images, "blue", Colours(), top=1, reranker=Broken())


def test_one_fragment_is_a_vector_and_several_are_not(images: Index) -> None:
    class Pieces(Colours):
        pieces = 1

        def encode_text(self, texts):
            return Fragments(super().encode_text(texts)[:, None].expand(-1, self.pieces, -1))

    assert search_by_text(images, "blue", Pieces()) == search_by_text(images, "blue", Colours())
    many = Pieces()
    many.pieces = 7
    with pytest.raises(
        DataError, match=r"search: expected a run that embeds an image or a text as one vector, got \(7, 3"
    ):
        search_by_text(images, "blue", many)


def test_errors(images: Index) -> None:
    class Silent(Contrary):
        def match(self, seen, texts):
            return torch.full((len(seen), len(texts)), torch.nan)

    with pytest.raises(DataError, match="search: expected one score for each of 7 candidates, got 7, 7 of them NaN"):
        search_by_text(images, "blue", Colours(), reranker=Silent(), first=7, top=3)
    with pytest.raises(ValueError, match="search: expected first >= 1, got 0; 100 is a good start"):
        search_by_text(images, "blue", Colours(), first=0)
    with pytest.raises(ValueError, match="search: expected top >= 1, got 0; 10 is usual"):
        search_by_text(images, "blue", Colours(), top=0, reranker=Contrary())
