"""The pages that need runs of other tasks, with runs that have learnt nothing."""

from __future__ import annotations

import numpy as np
import pytest

from foveate import hub
from foveate.errors import DataError, UnknownName
from foveate.search import build_index
from foveate.studio import Shelf, caption, picker, search


@pytest.fixture
def captioned(untrained, tmp_path):
    untrained("captioning-lstm-scenes", "tells")
    shelf = Shelf(tmp_path)
    told, html, words = caption.write(shelf, "tells", picker.example_pixels("0"), 2)
    return shelf, told, html, words


def test_a_caption_has_a_map_a_word(captioned):
    _, told, html, words = captioned
    assert told.words
    assert 'class="fv-answer"' in html
    assert html.count("<li>") == 1  # of two beams the second
    assert words.count("data-pick=") == len(told.words) + 1
    drawn = caption.maps(told)
    assert drawn.count("<figure") == len(told.words) + 1
    assert caption.maps(told, "0").count("<figure") == 2
    assert f"1. {told.words[0]}" in caption.maps(told, "0")
    for nonsense in ("99", None, "x"):
        assert caption.maps(told, nonsense) == drawn


def test_a_caption_needs_a_picture(captioned):
    with pytest.raises(DataError, match="caption: expected a picture, got none; pick an example or choose a file"):
        caption.write(captioned[0], "tells", None, 1)
    assert caption.maps(caption.Told()) == ""


def test_a_picture_is_taken_or_told_what_is_wrong():
    told, html = caption.take(picker.example_pixels, "1")
    assert np.array_equal(told.pixels, picker.example_pixels("1"))
    assert "data:image/png" in html
    told, html = caption.take(picker.example_pixels, "99")
    assert told.pixels is None
    assert "expected one of 8 examples" in html


@pytest.fixture
def matching(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "GALLERY", 8)
    search.gallery.cache_clear()
    folder = untrained("matching-scan-scenes", "fits")
    yield Shelf(tmp_path), folder
    search.gallery.cache_clear()


def test_a_text_finds_pictures_and_its_words_look(matching):
    shelf, _ = matching
    heard = []
    hits = search.find(shelf, "fits", search.SCENES, "a red circle", lambda share, what: heard.append((share, what)))
    predictor = shelf.predictor("fits")
    scores = predictor.match([p.pixels() for p in search.gallery().pictures], ["a red circle"])[:, 0]
    best = search.gallery().pictures[int(scores.argmax())]
    assert np.array_equal(hits[0].pixels, best.pixels())
    assert hits[0].words == ("a", "red", "circle")
    assert "reading pictures" in {what for _, what in heard}
    assert all(0 <= share <= 1 for share, _ in heard)
    assert search.draw(hits).count("<h4>") == search.TOP
    assert search.draw(hits, "1") != search.draw(hits)
    assert search.words_of(hits).count("data-pick=") == 4
    assert search.words_of(()).count("data-pick=") == 1


def test_the_gallery_is_read_once(matching):
    shelf, _ = matching
    heard = []
    for _ in range(2):
        search.find(shelf, "fits", search.SCENES, "a star", lambda share, what: heard.append(what))
    assert heard.count("reading pictures") == 1


def test_a_picture_finds_captions(matching):
    html = search.describe(matching[0], "fits", picker.example_pixels("0"))
    assert html.count("<li>") == search.TOP


def test_an_index_of_ones_own_is_searched(matching, untrained, tmp_path):
    from PIL import Image

    shelf, _ = matching
    folder = untrained("matching-mdan-scenes", "makes")
    names = []
    for number, picture in enumerate(search.gallery().pictures):
        names.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(picture.pixels()).save(names[-1])
    build_index(tmp_path / "mine", hub.load(folder), names, run=str(folder))
    assert list(shelf.indexes()) == ["mine"]
    hits = search.find(shelf, "fits", "mine", "a red circle", lambda share, what: None)
    own = search.find(shelf, "fits", search.SCENES, "a red circle", lambda share, what: None)
    assert np.array_equal(hits[0].pixels, own[0].pixels)


def test_what_cannot_be_searched_is_told(matching, untrained, tmp_path):
    shelf, _ = matching

    def find(where, text):
        return search.find(shelf, "fits", where, text, lambda share, what: None)

    with pytest.raises(DataError, match="ask: expected a text, got none"):
        find(search.SCENES, " ")
    with pytest.raises(DataError, match="at most 300 characters"):
        find(search.SCENES, "a" * 301)
    with pytest.raises(UnknownName, match="index: expected a known name"):
        find("../elsewhere", "a star")
    maker = untrained("matching-mdan-scenes", "makes")
    build_index(tmp_path / "texts", hub.load(maker), ["a star"], kind="texts", run=str(maker))
    with pytest.raises(DataError, match="expected an index of pictures made by a run that is here, got one of texts"):
        find("texts", "a star")
