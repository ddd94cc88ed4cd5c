"""The same scores for all mechanisms, and every knob turns what it says."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import foveate as fv
from foveate.attention import MECHANISMS, Attended
from foveate.data.scenes import make_scenes
from foveate.errors import UnknownName
from foveate.studio.looks import KNOBS, attend, scores_of, with_softmax
from foveate.train.folder import CONFIG, run_folder

SCORES = torch.tensor(
    [[4.0, 3.6, 0.0, 0.0], [3.0, 0.5, 0.0, 1.0], [0.0, 0.0, 2.0, 3.0], [0.0, 1.0, 3.2, 3.5]]
).flatten()


def maps(name: str, **knobs: float) -> torch.Tensor:
    return attend(SCORES, (4, 4), [name], knobs)[name].map(8, 8)


@pytest.mark.parametrize(("knob", "name"), [(k, name) for k, row in KNOBS.items() for name in row.options])
def test_every_knob_turns_its_mechanisms(knob, name):
    row = KNOBS[knob]
    assert not torch.allclose(maps(name, **{knob: row.low}), maps(name, **{knob: row.high}), atol=1e-4)


def test_the_penalty_decides_how_many_components():
    used = [
        attend(SCORES, (4, 4), ["multimodal"], {"penalty": penalty})["multimodal"].density.components_used.item()
        for penalty in (KNOBS["penalty"].low, KNOBS["penalty"].high)
    ]
    assert used[0] > used[1] == 1


def test_a_knob_that_is_not_for_a_mechanism_does_nothing():
    everything = {name: row.high for name, row in KNOBS.items()}
    for name in ("softmax", "sparsemax", "continuous-softmax", "continuous-sparsemax"):
        assert torch.equal(maps(name, **everything), maps(name))


def test_knobs_stay_within_their_ends():
    assert torch.equal(maps("entmax", alpha=99), maps("entmax", alpha=KNOBS["alpha"].high))
    assert torch.equal(maps("k-mca", components=-3), maps("k-mca", components=1))


def test_all_mechanisms_attend_in_evaluation_mode():
    looks = attend(SCORES, (4, 4), MECHANISMS, {name: row.value for name, row in KNOBS.items()})
    again = attend(SCORES, (4, 4), MECHANISMS, {name: row.value for name, row in KNOBS.items()})
    for name, seen in looks.items():
        assert seen.map().sum().item() == pytest.approx(1, abs=1e-4)
        assert torch.equal(seen.map(), again[name].map())


def test_unknown_names_are_refused():
    with pytest.raises(UnknownName, match="did you mean 'tvmax'"):
        attend(SCORES, (4, 4), ["tvmx"], {})
    with pytest.raises(UnknownName, match="did you mean 'alpha'"):
        attend(SCORES, (4, 4), ["entmax"], {"alfa": 2})


def test_scores_come_back_from_softmax_up_to_a_constant():
    seen = Attended(torch.zeros(1, 1), SCORES.softmax(-1)[None])
    shift = scores_of(seen) - SCORES
    assert torch.allclose(shift, shift[0].expand_as(shift), atol=1e-5)
    assert scores_of(Attended(torch.zeros(1, 1), torch.tensor([[1.0, 0.0]]))).isfinite().all()


def test_the_scores_of_a_run_with_another_attention(tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(run_folder("scenes-vqa"), folder)
    config = json.loads((folder / CONFIG).read_text())
    config["settings"] |= {"mechanism": "tvmax", "mechanism_options": {"smoothness": 0.3}}
    (folder / CONFIG).write_text(json.dumps(config))
    data = make_scenes(split="test", count=1)
    pixels, text = data.pictures[0].pixels(), data.questions[0].text
    seen = with_softmax(str(folder)).answer(pixels, text).attention
    own = fv.load(folder).answer(pixels, text).attention
    assert torch.allclose(attend(scores_of(seen), (7, 7), ["tvmax"], {"smoothness": 0.3})["tvmax"].weights, own.weights)
