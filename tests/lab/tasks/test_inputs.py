"""What tasks share of their inputs: settings, constraints, tokens, and the origin of features."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.attention import MECHANISMS
from foveate.errors import DataError, UnknownName
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.vocabulary import BOS, EOS, UNKNOWN, Vocabulary
from foveate.lab.encoders import TextEncoder
from foveate.lab.models import MatchingDANSettings
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.captioning.settings import CaptioningSettings
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.inputs import Inputs, pad_tokens
from foveate.lab.tasks.matching.settings import MatchingSettings
from foveate.lab.tasks.task_settings import Constraint, TaskSettings
from foveate.lab.tasks.vqa.settings import VQASettings

INPUTS = Inputs(Vocabulary.from_tokens([["a", "red", "dog"]]))
SETTINGS: list[type[TaskSettings]] = [kind.Settings for kind in TASKS.values()]


def test_a_constraint_is_active_with_a_weight_and_after_its_steps() -> None:
    assert not Constraint().active(10**6)
    assert Constraint(0.1).active(0)
    late = Constraint(0.1, after=3)
    assert [late.active(step) for step in (0, 2, 3, 4)] == [False, False, True, True]
    assert not Constraint(after=3).active(4)


@pytest.mark.parametrize("store", [None, StoreDescription("resnet", weights="abc")])
def test_inputs_go_through_json_and_back(store: StoreDescription | None) -> None:
    inputs = replace(INPUTS, image_dim=None if store is None else 12, store=store)
    assert Inputs.from_json(json.loads(json.dumps(inputs.to_json()))) == inputs


def test_sentences_become_token_ids() -> None:
    words = INPUTS.words
    tokens, mask = INPUTS.encode([["a", "dog"], ["red", "cat", "dog"]], 14)
    assert tokens.tolist() == [
        [words.index("a"), words.index("dog"), 0],
        [words.index("red"), UNKNOWN, words.index("dog")],
    ]
    assert mask.tolist() == [[True, True, False], [True, True, True]]
    short, _ = INPUTS.encode([["a", "red", "dog"]], 2, bos_eos=True)
    assert short.tolist() == [[BOS, words.index("a"), words.index("red"), EOS]]
    assert INPUTS.unknown(["cat", "dog", "cat", "cow"]) == ("cat", "cow")


@pytest.mark.parametrize(("rows", "shape"), [([], (0, 1)), ([[]], (1, 1)), ([[4]], (1, 1)), ([[4, 5], []], (2, 2))])
def test_padding_of_any_size(rows: list[list[int]], shape: tuple[int, int]) -> None:
    tokens, mask = pad_tokens(rows)
    assert mask.shape == shape
    assert mask.sum().item() == sum(map(len, rows))
    assert tokens.numel() == 0 or tokens[~mask].eq(0).all()


@pytest.mark.parametrize("kind", SETTINGS)
def test_names_are_checked(kind: type[TaskSettings]) -> None:
    with pytest.raises(UnknownName, match=r"dataset: expected a known name, got 'scens'; did you mean 'scenes'"):
        kind(dataset="scens")
    with pytest.raises(UnknownName, match=r"mechanism: expected a known name, got 'tvmx'; did you mean 'tvmax'"):
        kind(mechanism="tvmx")


def test_a_dataset_must_have_what_the_task_needs() -> None:
    with pytest.raises(UnknownName, match="dataset with captions: expected a known name, got 'vqa-v2'"):
        CaptioningSettings(dataset="vqa-v2")
    with pytest.raises(UnknownName, match="dataset with questions: expected a known name, got 'flickr30k'"):
        VQASettings(dataset="flickr30k")


@pytest.mark.parametrize(
    "settings", [VQASettings(), CaptioningSettings(), MatchingSettings(model=MatchingDANSettings())]
)
@pytest.mark.parametrize("name", ["softmax", "entmax", "continuous-softmax", "multimodal"])
def test_the_attention_is_the_one_chosen(settings: TaskSettings, name: str) -> None:
    options = {"alpha": 1.25} if name == "entmax" else {}
    attend = replace(settings, mechanism=name, mechanism_options=options).attention()
    out = attend(torch.randn(2, 6), torch.randn(2, 6, 3), grid=(2, 3))
    assert (out.density is not None) == MECHANISMS[name].continuous
    chosen = dict(getattr(attend, "options", {}))
    assert chosen.pop("temperature", 1.0) == 1.0
    assert chosen == options


def test_the_training_split_and_the_limit_are_used() -> None:
    settings = CaptioningSettings(train_split="val", limit=3)
    assert len(settings.read("train", None)) == 3
    assert settings.read("train", None).fingerprint() == settings.read("val", None).fingerprint()
    assert settings.read("test", None).fingerprint() != settings.read("val", None).fingerprint()


def test_word_vectors_are_copied_or_left(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("a 1 2 3\ndog 4 5 6\n")
    settings, image = VQASettings(), Conv((8, 8)).build_encoder(None)
    text = TextEncoder(len(INPUTS.words), word_dim=3, hidden=4)
    before = text.words.weight.detach().clone()
    INPUTS.initialise(settings, image, text, None)
    assert torch.equal(text.words.weight, before)
    INPUTS.initialise(settings, image, text, str(path))
    assert text.words.weight[INPUTS.words.index("dog")].tolist() == [4, 5, 6]
    wide = TextEncoder(len(INPUTS.words), word_dim=4, hidden=4)
    message = r"words: expected word vectors of 4 dimensions, got 3 from .*vectors\.txt; set word_dim=3"
    with pytest.raises(DataError, match=message):
        INPUTS.initialise(settings, image, wide, str(path))
