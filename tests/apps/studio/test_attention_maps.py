"""The same scores for all mechanisms, and every knob changes what it says."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import foveate as fv
from foveate.apps.studio.attention_maps import KNOBS, attend, scores_of, with_softmax
from foveate.attention import MECHANISMS, Attended
from foveate.errors import UnknownName
from foveate.lab.data.scenes import make_scenes
from foveate.lab.train.recipe import run_directory
from foveate.lab.train.records import CONFIG
from foveate.ops import cell_centres

GRID = (7, 7)
_AWAY = torch.cdist(cell_centres(*GRID), torch.tensor([[0.25, 0.3], [0.75, 0.7]]))
# two bumps of different height on a little noise
SCORES = (torch.tensor([5.0, 4.0]) * torch.exp(-((_AWAY / 0.15) ** 2))).sum(-1)
SCORES = SCORES + 0.1 * torch.randn(49, generator=torch.Generator().manual_seed(0))


def maps(name: str, **knobs: float) -> torch.Tensor:
    return attend(SCORES, GRID, [name], knobs)[name].map(8, 8)


@pytest.mark.parametrize(("knob", "name"), [(k, name) for k, row in KNOBS.items() for name in row.options])
def test_every_knob_changes_its_mechanisms(knob, name):
    row = KNOBS[knob]
    assert not torch.allclose(maps(name, **{knob: row.low}), maps(name, **{knob: row.high}), atol=1e-4)


def test_the_penalty_decides_how_many_components():
    used = [
        attend(SCORES, GRID, ["multimodal"], {"penalty": penalty})["multimodal"].density.components_used.item()
        for penalty in (KNOBS["penalty"].low, KNOBS["penalty"].high)
    ]
    assert used[0] > 0 == used[1]  # no structure is worth the highest penalty


def test_a_knob_that_is_not_for_a_mechanism_does_nothing():
    everything = {name: row.high for name, row in KNOBS.items()}
    for name in ("softmax", "sparsemax", "continuous-softmax", "continuous-sparsemax"):
        assert torch.equal(maps(name, **everything), maps(name))


def test_knobs_stay_within_their_ends():
    assert torch.equal(maps("entmax", alpha=99), maps("entmax", alpha=KNOBS["alpha"].high))
    assert torch.equal(maps("k-mca", components=-3), maps("k-mca", components=1))


def test_all_mechanisms_attend_in_evaluation_mode():
    attended = attend(SCORES, GRID, MECHANISMS, {name: row.value for name, row in KNOBS.items()})
    again = attend(SCORES, GRID, MECHANISMS, {name: row.value for name, row in KNOBS.items()})
    for name, seen in attended.items():
        assert seen.map().sum().item() == pytest.approx(1, abs=1e-4)
        assert torch.equal(seen.map(), again[name].map())


def test_unknown_names_raise_an_error():
    with pytest.raises(UnknownName, match="did you mean 'tvmax'"):
        attend(SCORES, GRID, ["tvmx"], {})
    with pytest.raises(UnknownName, match="did you mean 'alpha'"):
        attend(SCORES, GRID, ["entmax"], {"alfa": 2})


def test_scores_come_back_from_softmax_up_to_a_constant():
    seen = Attended(torch.zeros(1, 1), SCORES.softmax(-1)[None])
    shift = scores_of(seen) - SCORES
    assert torch.allclose(shift, shift[0].expand_as(shift), atol=1e-5)
    assert scores_of(Attended(torch.zeros(1, 1), torch.tensor([[1.0, 0.0]]))).isfinite().all()


def test_the_scores_of_a_run_with_another_attention(tmp_path):
    directory = tmp_path / "run"
    shutil.copytree(run_directory("scenes-vqa"), directory)
    config = json.loads((directory / CONFIG).read_text())
    config["settings"] |= {"mechanism": "tvmax", "mechanism_options": {"smoothness": 0.3}}
    (directory / CONFIG).write_text(json.dumps(config))
    data = make_scenes(split="test", count=1)
    pixels, text = data.images[0].pixels(), data.questions[0].text
    seen = with_softmax(str(directory)).answer(pixels, text).attention
    own = fv.load(directory).answer(pixels, text).attention
    assert torch.allclose(attend(scores_of(seen), (7, 7), ["tvmax"], {"smoothness": 0.3})["tvmax"].weights, own.weights)
