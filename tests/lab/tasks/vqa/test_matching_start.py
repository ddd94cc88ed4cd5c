"""An r-DAN that starts from an m-DAN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foveate.attention import mechanism
from foveate.errors import DataError
from foveate.lab.data.vocabulary import SPECIAL, Vocabulary
from foveate.lab.encoders import StoredFeatures
from foveate.lab.features import ImageFeatures
from foveate.lab.models import MatchingDAN, MatchingDANSettings, MCANSettings, ReasoningDAN, ReasoningDANSettings
from foveate.lab.tasks.vqa.settings import VQASettings
from foveate.lab.tasks.vqa.task import start_from_matching

THEIRS, OWN = (*SPECIAL, "dog", "red", "ball"), (*SPECIAL, "what", "ball", "dog")


def written(directory: Path, hidden: int = 8) -> MatchingDAN:
    model = MatchingDANSettings(hidden=hidden).build(len(THEIRS), 4, StoredFeatures(6), mechanism("softmax"))
    save_file(model.state_dict(), directory / "model.safetensors")
    (directory / "vocabulary.json").write_text(json.dumps({"words": {"kind": "words", "words": THEIRS}}))
    return model.eval()


def answering() -> ReasoningDAN:
    torch.manual_seed(1)
    settings = ReasoningDANSettings(hidden=8)
    return settings.build(len(OWN), 4, StoredFeatures(6), mechanism("softmax"), answers=3).eval()


def test_an_answering_model_reads_words_and_images_as_the_matching_model_does(tmp_path: Path) -> None:
    matching, model = written(tmp_path), answering()
    untouched = model.text.words.weight[OWN.index("what")].clone()
    copied = start_from_matching(model, tmp_path, Vocabulary(OWN))
    assert copied == len(SPECIAL) + 2
    torch.testing.assert_close(model.text.words.weight[OWN.index("what")], untouched)
    mask = torch.ones(1, 2, dtype=torch.bool)
    own, theirs = torch.tensor([[OWN.index("dog"), OWN.index("ball")]]), torch.tensor([[4, 6]])
    torch.testing.assert_close(model.text(own, mask).states, matching.text(theirs, mask).states)
    images, memory = ImageFeatures(torch.rand(1, 4, 6), grid=(2, 2)), torch.rand(1, 8)
    torch.testing.assert_close(
        model.looks[0].score(images.values, memory), matching.looks[0].score(images.values, memory)
    )


def test_a_run_of_other_sizes(tmp_path: Path) -> None:
    written(tmp_path, hidden=16)
    with pytest.raises(DataError, match=r"matching_start: expected text\.\S+ \(.*got \(.*the same hidden"):
        start_from_matching(answering(), tmp_path, Vocabulary(OWN))
    with pytest.raises(DataError, match=r"matching_start: expected the file .*got none; pass a run of m-DAN"):
        start_from_matching(answering(), tmp_path / "none", Vocabulary(OWN))


def test_only_an_r_dan_can_start_from_matching() -> None:
    with pytest.raises(ValueError, match=r"expected model=rdan for matching_start"):
        VQASettings(model=MCANSettings(), matching_start="runs/mdan")
