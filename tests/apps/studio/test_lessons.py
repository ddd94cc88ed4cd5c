"""The parts of the page Explain: every slider moves something, every task can be done."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys

import pytest
import torch

from foveate.apps.studio import explain_page as explain
from foveate.apps.studio.attention_maps import preset, preset_scores
from foveate.apps.studio.lessons import LESSONS, find_patches, fit_steps
from foveate.apps.studio.share import read_link
from foveate.ops import entmax

STARS = preset_scores(explain.FIRST)


def draw(name, **knobs):
    usual = {key: knob.value for key, knob in LESSONS[name].knobs.items()}
    return LESSONS[name].draw(STARS, {**usual, **knobs})


@pytest.mark.parametrize(("name", "knob"), [(name, knob) for name, one in LESSONS.items() for knob in one.knobs])
def test_every_slider_moves_its_part(name, knob):
    row = LESSONS[name].knobs[knob]
    assert draw(name, **{knob: row.low})[0] != draw(name, **{knob: row.high})[0]


@pytest.mark.parametrize("name", list(LESSONS))
def test_painting_moves_every_part(name):
    usual = {key: knob.value for key, knob in LESSONS[name].knobs.items()}
    assert LESSONS[name].draw(preset_scores("ring"), usual)[0] != draw(name)[0]
    LESSONS[name].draw(torch.zeros(196), usual)  # nothing painted is no error


@pytest.mark.parametrize(
    ("name", "done"),
    [
        ("threshold", {"alpha": 1.5}),
        ("fusing", {"smoothness": 0.4}),
        ("gaussian", {"count": 3}),
        ("steps", {"step": 12}),
        ("choice", {"penalty": 1.0}),
    ],
)
def test_every_task_can_be_done_and_is_not_done_at_first(name, done):
    assert not draw(name)[1]
    assert draw(name, **done)[1]
    start = preset(explain.FIRST)
    assert 'data-done="false"' in explain.lesson_html(name, start, "")
    assert 'data-done="true"' in explain.lesson_html(name, start, json.dumps(done))


def test_the_threshold_is_that_of_entmax():
    shown = float(re.search(r"τ = (-?[\d.]+)", draw("threshold", alpha=1.5)[0])[1])
    kept = entmax(STARS, alpha=1.5) > 0
    assert STARS[~kept].max() <= shown + 0.01
    assert STARS[kept].min() >= shown - 0.01
    assert f"{int(kept.sum())} of 196 cells keep weight" in draw("threshold", alpha=1.5)[0]
    assert "no threshold" in draw("threshold", alpha=1.0)[0]


def test_stars_fuse_only_when_both_are_inside():
    assert len(find_patches(torch.eye(3, dtype=torch.bool))) == 3
    assert not draw("fusing", smoothness=0.0)[1]


def test_steps_raise_the_likelihood():
    weights = STARS.softmax(-1)
    values = [float(fit_steps(weights, 2, n, True).log_likelihood) for n in (1, 4, 12)]
    assert values == sorted(values)
    assert fit_steps(weights, 2, 3, False).background is None


def test_nonsense_from_the_sliders_means_the_initial_values():
    for text in (None, "{", "[]", '{"alpha": "x"}', '{"alpha": true}'):
        assert explain.read_knobs("threshold", text) == {"alpha": 1.0}


def test_a_link_keeps_scores_and_sliders_and_the_code_runs(tmp_path):
    values = dict.fromkeys(LESSONS, "") | {"fusing": '{"smoothness": 0.4}'}
    bar = explain.share(preset("ring"), values)
    fields = read_link(html.unescape(re.search(r'data-link="([^"]*)"', bar)[1]))
    assert explain._link_knobs("fusing", fields) == {"smoothness": 0.4}
    assert fields["scores"].count(".") == 195
    code = html.unescape(re.search(r"<pre[^>]*>(.*)</pre>", bar, re.DOTALL)[1])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "attention.png").stat().st_size > 1000
