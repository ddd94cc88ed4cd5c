"""The pages that need runs of other tasks, with runs that have learnt nothing."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from foveate.apps.studio import RunCatalogue, picker
from foveate.apps.studio import caption_page as caption
from foveate.apps.studio import hits as search
from foveate.apps.studio.picker import read_images
from foveate.apps.studio.share import search_code
from foveate.errors import DataError, UnknownName
from foveate.lab import hub
from foveate.lab.search import build_index


@pytest.fixture
def captioned(untrained, tmp_path):
    untrained("captioning-lstm-scenes", "captioner")
    catalogue = RunCatalogue(tmp_path)
    return catalogue, caption.write(catalogue, "captioner", picker.choose_example("0"), 2)


def test_a_caption_has_one_map_per_word(captioned):
    catalogue, view = captioned
    assert view.words
    html = caption.caption_html(view, catalogue)
    assert html.count("<tr>") == 3  # a head and two beams
    assert "Log-probability" in html
    assert f"{view.score:.2f}" in html
    strip = caption.strip_of_words(view, "0")
    assert strip.count("data-pick=") == len(view.words)
    assert strip.count('aria-pressed="true"') == 1
    assert f"1. {view.words[0]}" in caption.map_of_word(view, "0")
    assert caption.map_of_word(view, "0").count("<figure") == 1
    last = caption.map_of_word(view, str(len(view.words) - 1))
    for nonsense in ("99", None, "x"):
        assert caption.map_of_word(view, nonsense) == last


def test_the_strip_and_the_large_map_share_their_colours(captioned):
    _, view = captioned
    tops = {
        re.search("from 0 to ([0-9.]+) times", caption.map_of_word(view, str(t)))[1] for t in range(len(view.words))
    }
    assert len(tops) == 1


def test_a_captioner_out_of_its_domain_says_so(captioned):
    catalogue, view = captioned
    own = replace(view, image=picker.ChosenImage(np.zeros((8, 8, 3), np.uint8)))
    assert "was trained on Scenes, not on photographs" in caption.caption_html(own, catalogue)
    assert "not on" not in caption.caption_html(view, catalogue)
    assert caption.run_for(catalogue, view.image, "captioner") == "captioner"


@pytest.fixture
def matching(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(search, "GALLERY", 8)
    search.gallery.cache_clear()
    directory = untrained("matching-scan-scenes", "fits")
    yield RunCatalogue(tmp_path), directory
    search.gallery.cache_clear()


def test_a_text_finds_images_and_its_words_look(matching):
    catalogue, _ = matching
    heard = []
    hits = search.find(catalogue, "fits", search.SCENES, "a red circle", lambda done, what: heard.append((done, what)))
    predictor = catalogue.predictor("fits")
    scores = predictor.match([p.pixels() for p in search.gallery().images], ["a red circle"])[:, 0]
    best = search.gallery().images[int(scores.argmax())]
    assert np.array_equal(hits[0].pixels, best.pixels())
    assert hits[0].words == ("a", "red", "circle")
    assert "embedding images" in {what for _, what in heard}
    assert all(0 <= done <= 1 for done, _ in heard)
    assert search.draw(hits).count("<h2>") == search.TOP
    assert search.draw(hits, "1") != search.draw(hits)
    assert search.words_of(hits).count("data-pick=") == 4
    assert search.words_of(()) == ""


def test_the_gallery_is_read_once(matching):
    catalogue, _ = matching
    heard = []
    for _ in range(2):
        search.find(catalogue, "fits", search.SCENES, "a star", lambda done, what: heard.append(what))
    assert heard.count("embedding images") == 1


def test_photographs_are_searched_at_once_if_there_is_a_run_for_them(matching):
    catalogue, _ = matching
    place, run = search.default_place(catalogue)
    assert (place, catalogue.domain(run)) == (search.PHOTOS, "photographs")
    hits = search.find(catalogue, run, place, "a woman in uniform", lambda done, what: None)
    assert 1 <= len(hits) <= search.TOP
    assert hits[0].pixels.shape[-1] == 3


def test_the_code_of_a_search_runs(matching, tmp_path):
    for place, has_words, run in ((search.PHOTOS, False, "photos-search"), (search.SCENES, True, str(matching[1]))):
        code = search_code(run, "a red star", search.CODE[place].replace("count=120", "count=8"), has_words)
        code = code.replace("topk(6)", "topk(1)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "words.png").exists() == has_words


def test_queries_suit_the_photographs_that_are_there(monkeypatch):
    paths = {"flower": "a", "grace_hopper": "b"}
    monkeypatch.setattr(search, "example_photos", lambda: paths)
    assert search.queries_for(search.PHOTOS) == ("an orange flower", "a woman in uniform")
    assert search.queries_for("an index") == ()


def data_url(pixels: np.ndarray) -> str:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_ones_own_images_are_searched(matching):
    catalogue, _ = matching
    addresses = [data_url(image.pixels()) for image in search.gallery().images[:3]]
    own = read_images(json.dumps(["data:image/png;base64,AAAA", *addresses, 7]))
    assert own.addresses == tuple(addresses)
    hits = search.find(catalogue, "fits", search.OWN, "a red circle", lambda done, what: None, own)
    assert len(hits) == 3
    other = read_images(json.dumps(addresses[:1]))
    assert len(search.find(catalogue, "fits", search.OWN, "a red circle", lambda done, what: None, other)) == 1
    with pytest.raises(DataError, match="expected images of yours, got none; drop a folder"):
        search.find(catalogue, "fits", search.OWN, "a red circle", lambda done, what: None)


@pytest.mark.parametrize("text", ["", "{}", "null", "[1]", '["data:image/png;base64,AAAA"]', None, 7, "[" * 10_000])
def test_what_is_no_list_of_images_raises_data_error(text):
    with pytest.raises(DataError, match="expected images that can be decoded, got none"):
        read_images(text)


def test_too_many_images_are_cut_and_too_large_ones_refused(monkeypatch):
    address = data_url(np.zeros((4, 4, 3), np.uint8))
    assert len(read_images(json.dumps([address] * 70)).addresses) == picker.MOST
    monkeypatch.setattr(picker, "MAX_TEXT", 50)
    with pytest.raises(DataError, match="images: expected at most"):
        read_images(json.dumps([address]))


def test_an_image_finds_captions(matching):
    html = search.describe(matching[0], "fits", picker.choose_example("0").pixels)
    assert html.count("<tr>") == search.TOP + 1


def test_an_index_of_ones_own_is_searched(matching, untrained, tmp_path):
    from PIL import Image

    catalogue, _ = matching
    directory = untrained("matching-mdan-scenes", "makes")
    names = []
    for number, image in enumerate(search.gallery().images):
        names.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(image.pixels()).save(names[-1])
    build_index(tmp_path / "mine", hub.load(directory), names, run=str(directory))
    assert list(catalogue.indexes()) == ["mine"]
    hits = search.find(catalogue, "fits", "mine", "a red circle", lambda done, what: None)
    own = search.find(catalogue, "fits", search.SCENES, "a red circle", lambda done, what: None)
    assert np.array_equal(hits[0].pixels, own[0].pixels)
    code = search.code_of(catalogue, "fits", "mine", "a red circle", True)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == search.TOP
    assert done.stdout.split()[0] in names


def test_what_cannot_be_searched_raises_data_error(matching, untrained, tmp_path):
    catalogue, _ = matching

    def find(where, text):
        return search.find(catalogue, "fits", where, text, lambda done, what: None)

    with pytest.raises(DataError, match="ask: expected a text, got none"):
        find(search.SCENES, " ")
    with pytest.raises(DataError, match="at most 300 characters"):
        find(search.SCENES, "a" * 301)
    with pytest.raises(UnknownName, match="index: expected a known name"):
        find("../elsewhere", "a star")
    maker = untrained("matching-mdan-scenes", "makes")
    build_index(tmp_path / "texts", hub.load(maker), ["a star"], kind="texts", run=str(maker))
    with pytest.raises(DataError, match="expected an index of images by a run of this studio, got one of texts"):
        find("texts", "a star")
