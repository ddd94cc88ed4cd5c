"""What CONTRIBUTING says about adding a model, done in a temporary package: one file and one row."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from foveate.apps.cli import main
from foveate.attention import MECHANISMS
from foveate.lab import hub
from foveate.lab.data.scenes import make_scenes
from foveate.lab.models import MODELS, AnsweringModel, AnsweringSettings
from foveate.lab.train import read_run
from tests.contract.test_models import (
    check_gradients,
    check_independent_examples,
    check_learns_by_heart,
    check_saved_and_loaded,
)

NAME = "glance"
MODULE = '''"""Glance: one look at the image, guided by the mean of the words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foveate.attention import mechanism
from foveate.lab.encoders import TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models.answering import Answered, AnsweringModel, AnyImageEncoder, Reading
from foveate.lab.models.families import AnsweringSettings


@dataclass(frozen=True)
class GlanceSettings(AnsweringSettings):
    """Glance: one look at the image, guided by the mean of the words.

    Attributes:
        hidden: size of all layers.
    """

    hidden: int = 32

    def build(
        self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module, *, answers: int
    ) -> Glance:
        return Glance(TextEncoder(vocabulary, word_dim=word_dim, hidden=self.hidden), image, attend, answers)


class Glance(AnsweringModel):
    """Answers from one attention over the words and one over the image."""

    def __init__(self, text: TextEncoder, image: AnyImageEncoder, attend: nn.Module, answers: int) -> None:
        super().__init__()
        self.text, self.image, self.attend, self.attend_words = text, image, attend, mechanism("softmax")
        self.features, self.words = nn.Linear(image.dim, text.dim), nn.Linear(text.dim, 1)
        self.scores, self.answers = nn.Linear(text.dim, 1), nn.Linear(2 * text.dim, answers)

    def forward(
        self, images: ImageFeatures | Tensor, tokens: Tensor, mask: Tensor, index: Tensor | None = None
    ) -> Answered:
        seen = self.image(images)
        seen = seen if index is None else seen[index]
        states, values = self.text(tokens, mask).states, self.features(seen.values)
        question = self.attend_words(self.words(states).squeeze(-1), states, mask=mask)
        scores = self.scores((values + question.context[:, None]).tanh()).squeeze(-1)
        look = self.attend(scores, values, grid=seen.grid, mask=seen.mask)
        reading = Reading(question.context, scores, values, seen.mask, self.answer, self.attend)
        return Answered(self.answer(question.context, look.context), (look,), (question,), reading)

    def answer(self, question: Tensor, context: Tensor) -> Tensor:
        return self.answers(torch.cat([question, context], -1))
'''
SMALL = ["hidden=16", "word_dim=8", "limit=4", "batch_size=2", "training.steps=2", "min_count=1", "guidance=0"]


@pytest.fixture
def glance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[AnsweringSettings]:
    """The settings of the new model, in the table for one test."""
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    settings: type[AnsweringSettings] = importlib.import_module(NAME).GlanceSettings
    monkeypatch.setitem(MODELS, NAME, settings)
    monkeypatch.chdir(tmp_path)
    return settings


@pytest.mark.parametrize("attend", MECHANISMS)
def test_every_parameter_gets_a_gradient(glance: type[AnsweringSettings], attend: str) -> None:
    check_gradients(glance, attend)


def test_the_other_laws_hold(glance: type[AnsweringSettings], tmp_path: Path) -> None:
    check_saved_and_loaded(glance, tmp_path / "model.safetensors")
    check_learns_by_heart(glance)
    check_independent_examples(glance)


@pytest.mark.usefixtures("glance")
def test_it_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "models"]) == 0
    out = capsys.readouterr().out
    assert NAME in out
    assert "Glance: one look at the image, guided by the mean of the words." in out


@pytest.mark.usefixtures("glance")
def test_the_command_line_offers_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "vqa-mcan-scenes", "--help"]) == 0
    assert f"(mcan or rdan or {NAME})" in capsys.readouterr().out
    assert main(["train", "vqa-mcan-scenes", "model=glanse"]) == 2
    assert "got 'glanse'; did you mean 'glance'?" in capsys.readouterr().err
    assert main(["train", "captioning-lstm-scenes", f"model={NAME}"]) == 2  # it is of another family
    assert "settings.model: expected a known name, got 'glance'" in capsys.readouterr().err


def test_it_is_trained_loaded_asked_and_evaluated(
    glance: type[AnsweringSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "vqa-mcan-scenes", f"model={NAME}", "mechanism=tvmax", "ccr=1", "ccs=1", *SMALL]
    assert main([*train, "--out", "run", "--quiet"]) == 0
    assert json.loads(Path("run/config.json").read_text())["settings"]["model"] == {"hidden": 16, "kind": NAME}
    assert read_run("run")[0].settings.model == glance(hidden=16)
    image = make_scenes(split="val", count=1).images[0].pixels()
    found = hub.load("run").answer(image, "What colour is the star?")
    assert found.attention.map().shape == (1, 7, 7)
    capsys.readouterr()
    assert main(["evaluate", "run", "mechanism=multimodal", "--batch-size", "2"]) == 0
    assert "accuracy" in capsys.readouterr().out


class Broken(AnsweringModel):
    """A network with a fault: a layer that nothing uses, examples that see each other, or scores that say nothing."""

    def __init__(self, whole: nn.Module, fault: str) -> None:
        super().__init__()
        self.whole, self.fault = whole, fault
        self.text, self.image = whole.text, whole.image
        self.layer = nn.Linear(1, 2) if fault == "unused" else nn.Identity()

    def forward(self, *inputs: Any) -> Any:
        answered = self.whole(*inputs)
        scores = {
            "unused": answered.scores,
            "mixed": answered.scores - answered.scores.mean(0),
            "silent": 0 * answered.scores,
        }
        return replace(answered, scores=scores[self.fault])


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("unused", lambda kind: check_gradients(kind, "softmax")),
        ("mixed", check_independent_examples),
        ("silent", check_learns_by_heart),
    ],
)
def test_the_laws_notice_a_broken_network(glance: type[AnsweringSettings], fault: str, law: Any) -> None:
    @dataclass(frozen=True)
    class BrokenSettings(glance):  # type: ignore[misc, valid-type]
        def build(self, *sizes: Any, **options: Any) -> AnsweringModel:
            return Broken(super().build(*sizes, **options), fault)

    with pytest.raises(AssertionError):
        law(BrokenSettings)
