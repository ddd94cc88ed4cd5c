"""The pages Models, with a tiny random model on disk, and Compare."""

from __future__ import annotations

import re
import subprocess
import sys
from html import unescape
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from foveate.apps.studio import RunCatalogue, picker
from foveate.apps.studio import compare_page as compare
from foveate.apps.studio import models_page as models
from foveate.errors import DataError, FoveateError


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    if find_spec("transformers") is None:
        pytest.skip("the extra hf is not installed")
    from tests.watch.test_look import llava

    directory = tmp_path_factory.mktemp("models")
    model, processor = llava()
    model.save_pretrained(directory / "tiny")
    processor.save_pretrained(directory / "tiny")
    return RunCatalogue(directory)


@pytest.fixture(scope="module")
def view(catalogue):
    return models.look_with(catalogue, models.ModelView(picker.choose_example("2")), "tiny", "what is this")


def test_every_word_has_its_map_and_ellipses(view):
    assert view.seen.words
    assert models.words_html(view, 1).count("data-pick=") == len(view.seen.words)
    shown = models.maps(view, 0, 0, 0)
    assert shown.count("<figure") == 3  # image, attention, ellipses
    # the words of an untrained model differ too little to see: a head of one word is not the mean over its heads
    assert any(models.maps(view, 0, layer, head) != shown for layer in (1, 2) for head in (1, 2))
    first, second = (models.attention_of(view.seen, word, 0, 0).weights for word in (0, 1))
    assert not torch.equal(first, second)


def test_the_sliders_choose_layer_and_head(view):
    L, M = view.seen.layers.shape[:2]
    assert f'max="{L}"' in models.sliders_html(view)
    one = models.attention_of(view.seen, 0, 2, 3)
    assert torch.allclose(one.map(), view.seen.layout.attended(_share(view.seen.layers[1, 2, :1])).map(), atol=1e-6)
    whole = models.attention_of(view.seen, 0, 0, 0)
    assert torch.equal(whole.map(), view.seen.words[0].attention.map())
    assert not torch.allclose(one.map(), whole.map())
    models.attention_of(view.seen, 0, L + 99, M + 99)  # a slider of another model


def test_the_map_is_put_to_the_test_in_one_sentence_and_one_curve(view):
    from foveate.apps.studio.widgets import believe_html

    shown = believe_html(view.seen, [(0.0, 0.0, 0.5, 0.5)])
    assert re.search(r"Removing the 20 % that it looks at most costs -?[\d.]+ bits, a random 20 % -?[\d.]+ bits", shown)
    assert shown.count("data:image/png") == 1


def _share(rows):
    return rows / rows.sum(-1, keepdim=True)


def test_the_models_on_disk_are_offered(catalogue):
    assert list(catalogue.models()) == ["tiny"]
    assert "tiny" not in catalogue.runs()  # it has weights and a configuration, but no task
    assert catalogue.model_source("tiny").endswith("/tiny")
    assert catalogue.model_source("owner/name") == "owner/name"
    closed = RunCatalogue(catalogue.directory, any_model=False)
    assert closed.model_source("tiny").endswith("/tiny")
    for name in ("owner/name", "/etc", "../tiny"):
        with pytest.raises(DataError, match="models: expected one of tiny, got"):
            closed.model_source(name)


def test_what_is_no_model_shows_a_sentence(catalogue, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    first = models.ModelView(picker.choose_example("0"))
    for name, message in (
        (" ", "got none"),
        (None, "got none"),
        ("a" * 400, "got none"),
        ("no/such-model", "look: expected"),
    ):
        with pytest.raises(DataError, match=message):
            models.look_with(catalogue, first, name, "what is this")
    with pytest.raises(DataError, match="expected a text"):
        models.look_with(catalogue, first, "tiny", "")
    with pytest.raises(DataError, match="at most 300 characters"):
        models.look_with(catalogue, first, "tiny", "a" * 301)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return RunCatalogue(tmp_path_factory.mktemp("runs"))


def test_two_sides_lie_over_each_other(runs):
    image = picker.choose_example("0")
    question = compare.suggestions_for(image)[0]
    html = compare.compare_html(runs, image, question, "softmax", "multimodal")
    assert html.count('class="fv-over') == 2
    assert html.count("fv-ramp") == 1
    assert "fv-truth" in html
    own = compare.compare_html(runs, image, question, "tvmax", f"scenes-vqa: {compare.OWN_ATTENTION}")
    assert "scenes-vqa, trained on Scenes, generated shapes, answers" in own
    assert set(compare.sides(runs)) >= {"softmax", f"scenes-vqa: {compare.OWN_ATTENTION}"}
    with pytest.raises(FoveateError):
        compare.compare_html(runs, image, question, "nonsense", "softmax")
    assert "fv-truth" not in compare.compare_html(
        runs, picker.ChosenImage(np.zeros((9, 9, 3), np.uint8)), question, "softmax", "tvmax"
    )
    assert "inside the true region" in html
    assert html.count('data-title="') == 2


def test_the_code_of_a_comparison_makes_both_maps(runs, tmp_path):
    image = picker.choose_example("0")
    question = compare.suggestions_for(image)[0]
    own = f"scenes-vqa: {compare.OWN_ATTENTION}"
    for left, right in (("softmax", "tvmax"), ("tvmax", own), (own, own)):
        bar = compare.share(runs, image, question, left, right)
        code = unescape(re.search("<pre[^>]*>(.*?)</pre>", bar, re.DOTALL)[1])
        check = f"\nassert list(maps) == {list(dict.fromkeys([left, right]))!r}, list(maps)"
        done = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert 'data-share="png"' in bar


def test_the_link_and_the_code_of_a_model_name_the_view(catalogue, view):
    bar = unescape(models.share(catalogue, view, 1, (2, 3)))
    assert "word=1&layer=2&head=3" in bar
    assert f"fv.look({catalogue.model_source('tiny')!r}, image" in bar
    assert 'value="2"' in models.sliders_html(view, (2, 3))
