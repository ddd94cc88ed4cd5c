"""SCAN that starts from a dual encoder, and the ranking of its two parts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from foveate.attention import mechanism
from foveate.errors import DataError, UnknownName
from foveate.lab.encoders import StoredFeatures
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import ranking_hinge
from foveate.lab.models import Dual, DualSettings, FragmentMatcher, SCANSettings
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.matching.task import start_from_dual
from tests.lab.tasks.matching.small import MODELS, SMALL, WORDS, batch_of

DUAL = DualSettings(hidden=8, text="minilm")
STATES = 384


def built(settings: SCANSettings | DualSettings) -> FragmentMatcher | Dual:
    return settings.build(len(WORDS), 4, StoredFeatures(6), mechanism("softmax")).eval()


def written(dual: Dual, directory: Path, words: tuple[str, ...] = WORDS.words) -> Path:
    save_file(dual.state_dict(), directory / "model.safetensors")
    (directory / "vocabulary.json").write_text(json.dumps({"words": {"kind": "words", "words": words}}))
    return directory


def test_the_layers_of_a_dual_encoder_compare_words_with_locations(tmp_path: Path) -> None:
    torch.manual_seed(0)
    dual, model = built(DUAL), built(SCANSettings(hidden=8, text="minilm", roots=True, whole=DUAL))
    assert isinstance(dual, Dual)
    assert isinstance(model, FragmentMatcher)
    assert model.whole is not None
    start_from_dual(model, written(dual, tmp_path), WORDS)
    tokens, mask = torch.tensor([[2, 5, 6, 3]]), torch.ones(1, 4, dtype=torch.bool)
    states, images = torch.randn(1, 4, STATES), ImageFeatures(torch.rand(2, 3, 6), grid=(3, 1))
    torch.testing.assert_close(model.whole(images, tokens, mask, states), dual(images, tokens, mask, states))
    roots = torch.rand(6)
    both = torch.cat([roots, torch.zeros(6)])
    torch.testing.assert_close(model.features(roots), dual.pooled.project(both))
    vectors = model.text(tokens, mask, torch.zeros_like(states)).states[0, 1:3].sum(0)
    torch.testing.assert_close(
        vectors + dual.text.project.bias, dual.text.project(dual.text.words(tokens[0, 1:3]).sum(0))
    )


def test_runs_that_do_not_fit(tmp_path: Path) -> None:
    model = built(SCANSettings(hidden=8, text="minilm"))
    assert isinstance(model, FragmentMatcher)
    with pytest.raises(DataError, match=r"dual_start: expected the file .*model.safetensors, got none; pass a run of"):
        start_from_dual(model, tmp_path, WORDS)
    dual = built(DUAL)
    assert isinstance(dual, Dual)
    with pytest.raises(DataError, match=r"expected the vocabulary of the data in .*, got another"):
        start_from_dual(model, written(dual, tmp_path, WORDS.words[:-1]), WORDS)
    wide = built(replace(DUAL, hidden=10))
    assert isinstance(wide, Dual)
    with pytest.raises(DataError, match=r"expected weights \(8, 4\) in .*, got \(10, 4\); use the same hidden"):
        start_from_dual(model, written(wide, tmp_path), WORDS)
    words = built(replace(DUAL, text="words"))
    assert isinstance(words, Dual)
    with pytest.raises(DataError, match=r"expected a dual encoder with text=minilm in .*, got no text.states"):
        start_from_dual(model, written(words, tmp_path), WORDS)
    with pytest.raises(ValueError, match=r"words and locations with text=minilm for dual_start, got another"):
        MatchingSettings(model=SCANSettings(), dual_start="runs/dual")


def test_the_setting_is_used(tmp_path: Path) -> None:
    settings = SCANSettings(hidden=8, text="minilm")
    task = Matching.from_data(replace(SMALL, word_dim=4), None)
    chosen = replace(task, settings=replace(task.settings, model=settings, dual_start=str(tmp_path)))
    model = chosen.build_model()
    size = len(task.inputs.words)
    dual = DUAL.build(size, 4, model.image, mechanism("softmax"))
    save_file(dual.state_dict(), tmp_path / "model.safetensors")
    words = {"words": {"kind": "words", "words": task.inputs.words.words}}
    (tmp_path / "vocabulary.json").write_text(json.dumps(words))
    chosen.initialise(model)
    torch.testing.assert_close(model.text.words.weight, dual.text.words.weight)


def test_attention_alone_is_ranked_and_trained() -> None:
    scenes = Matching.from_data(SMALL, None)
    ranking = Ranking(parts="fragments")
    task = replace(scenes, settings=replace(SMALL, model=MODELS["scan with the whole"], ranking=ranking))
    torch.manual_seed(0)
    model = task.build_model().eval()
    assert isinstance(model, FragmentMatcher)
    assert model.whole is not None
    batch = batch_of(task)
    images, texts = task.embed(model, batch)
    words = ranking_hinge(model.scorer(replace(images, whole=None), texts), batch.owner)
    loss = task.loss(model, batch, 0).total
    torch.testing.assert_close(loss, words)
    loss.backward()
    assert all(p.grad is not None for p in [model.features.weight, *model.image.parameters()])
    assert all(not p.requires_grad and p.grad is None for p in [*model.whole.pooled.parameters(), model.balance])
    added = replace(task, settings=replace(task.settings, ranking=Ranking()))
    assert not torch.allclose(added.loss(model, batch, 0).total, words)
    assert all(p.requires_grad for p in added.build_model().parameters())
    with pytest.raises(UnknownName, match="parts: expected a known name, got 'both'"):
        Ranking(parts="both")


def test_the_dual_encoder_counts_with_its_weight() -> None:
    torch.manual_seed(0)
    one = built(SCANSettings(hidden=8, text="minilm", whole=DUAL))
    four = built(SCANSettings(hidden=8, text="minilm", whole=DUAL, whole_weight=4.0))
    assert isinstance(one, FragmentMatcher)
    assert isinstance(four, FragmentMatcher)
    four.load_state_dict({**one.state_dict(), "balance": four.state_dict()["balance"]})
    tokens, mask = torch.tensor([[2, 5, 6, 3]]), torch.ones(1, 4, dtype=torch.bool)
    states, images = torch.randn(1, 4, STATES), ImageFeatures(torch.rand(2, 3, 6), grid=(3, 1))
    assert one.whole is not None
    dual = one.whole(images, tokens, mask, states)
    torch.testing.assert_close(four(images, tokens, mask, states), one(images, tokens, mask, states) + 3 * dual)
    with pytest.raises(ValueError, match="whole_weight"):
        SCANSettings(whole_weight=0.0)


def test_pretrained_states_are_dropped_once() -> None:
    model = built(SCANSettings(hidden=8, text="minilm", dropout=0.5))
    assert isinstance(model, FragmentMatcher)
    model.train()
    model.text.eval()  # what the encoder itself drops is another matter
    tokens, mask, states = torch.tensor([[2, 5, 6, 3]]), torch.ones(1, 4, dtype=torch.bool), torch.randn(1, 4, STATES)
    first, second = (model.embed_text(tokens, mask, states).values for _ in range(2))
    torch.testing.assert_close(first, second)
