"""Settings of matching: names and sizes are checked, and reach the model."""

from __future__ import annotations

import pytest

from foveate.errors import UnknownName
from foveate.lab.models import (
    BFANSettings,
    LogSumExp,
    MatchingDANSettings,
    Mean,
    SCANSettings,
)
from foveate.lab.tasks.images import Conv
from foveate.lab.tasks.matching.settings import MatchingSettings, Ranking
from foveate.lab.tasks.task_settings import Constraint
from tests.lab.tasks.matching.small import SMALL


def test_sizes_and_names_of_models_are_checked() -> None:
    with pytest.raises(UnknownName, match="aggregate: expected a known name, got 'max'"):
        SCANSettings(aggregate="max")
    with pytest.raises(UnknownName, match="bidirectional: expected a known name, got 'sum'"):
        BFANSettings(bidirectional="sum")
    with pytest.raises(ValueError, match="matching: expected an even hidden for concatenated directions, got 9; add"):
        SCANSettings(hidden=9, bidirectional="concatenate")


def test_model_settings_reach_the_model() -> None:
    attend = SMALL.attention()
    scan = SCANSettings(direction="i2t", temperature=4.0, lse=5.0).scorer(attend)
    assert (scan.direction, scan.attention.temperature, scan.aggregate) == ("i2t", 4.0, LogSumExp(5.0))
    assert SCANSettings(aggregate="mean").scorer(attend).aggregate == Mean()
    bfan = BFANSettings(focal="equal", temperature=7.0, word_mechanism="sparsemax").scorer(attend)
    assert bfan.over_locations.temperature == bfan.over_words.temperature == 7.0
    assert bfan.over_locations.focus.__name__ == "focus_equal"
    assert (bfan.over_locations.attend.name, bfan.over_words.attend.name) == ("softmax", "sparsemax")
    sides = {
        kind: SCANSettings(hidden=8, bidirectional=kind).build(9, 4, Conv((8, 8, 8, 8)).build_encoder(None), attend)
        for kind in ("average", "concatenate")
    }
    assert {kind: model.text.hidden for kind, model in sides.items()} == {"average": 8, "concatenate": 4}
    assert {model.text.dim for model in sides.values()} == {8}
    bfan = BFANSettings(hidden=8, bidirectional="concatenate", dropout=0.3)
    matcher = bfan.build(9, 4, Conv((8,)).build_encoder(None), attend)
    assert (matcher.text.dim, matcher.dropout.p) == (8, 0.3)
    dan = MatchingDANSettings(hidden=8, reasoning_steps=3, word_mechanism="sparsemax").build(
        9, 4, Conv((8,)).build_encoder(None), attend
    )
    assert len(dan.looks) == 3
    assert dan.reads[0].attend.name == "sparsemax"


def test_the_ranking_and_the_constraints_are_checked() -> None:
    with pytest.raises(ValueError, match="matching: expected margin >= 0, got -1"):
        Ranking(margin=-1)
    with pytest.raises(ValueError, match="matching: expected warmup_steps >= 0, got -1; use zero or more"):
        Ranking(warmup_steps=-1)
    with pytest.raises(ValueError, match=r"matching: expected softness > 0, got 0; 0\.05 is a good start for cosines"):
        Ranking(softness=0)
    for field in ("negatives", "warmup_negatives"):
        with pytest.raises(UnknownName, match="negatives: expected a known name, got 'hard'; did you mean 'hardest'"):
            Ranking(**{field: "hard"})
    for field in ("weight", "margin", "after"):
        with pytest.raises(ValueError, match=f"Constraint: expected {field} >= 0, got -1; use zero or more"):
            Constraint(**{field: -1})


def test_models_without_cross_attention_have_no_constraints() -> None:
    message = "matching: expected ccr=0 and ccs=0 for a model without cross attention, got {}; use model=scan"
    with pytest.raises(ValueError, match=message.format("1 and 0")):
        MatchingSettings(model=MatchingDANSettings(), ccr=Constraint(1.0))
    with pytest.raises(ValueError, match=message.format("0 and 2")):
        MatchingSettings(model=MatchingDANSettings(), ccs=Constraint(2.0))
    assert MatchingSettings(model=MatchingDANSettings(), ccs=Constraint(after=375))


def test_messages() -> None:
    with pytest.raises(ValueError, match="matching: expected a mechanism with discrete weights, got 'multimodal'"):
        MatchingSettings(mechanism="multimodal")
    assert MatchingSettings(model=MatchingDANSettings(), mechanism="multimodal")
    for field in ("captions_per_example", "max_words", "rank_parts", "min_count"):
        with pytest.raises(ValueError, match=f"expected {field} (as a whole number )?>= 1, got 0"):
            MatchingSettings(**{field: 0})
    for field in ("word_std", "word_dropout"):
        with pytest.raises(ValueError, match=f"matching: expected {field} >= 0, got -1"):
            MatchingSettings(**{field: -1})
    with pytest.raises(ValueError, match=r"matching: expected word_dropout <= 1, got 1\.5; pass a probability"):
        MatchingSettings(word_dropout=1.5)
    with pytest.raises(UnknownName, match="dataset with captions: expected a known name, got 'vqa-v2'"):
        MatchingSettings(dataset="vqa-v2")
    with pytest.raises(UnknownName, match="mechanism: expected a known name, got 'sofmax'; did you mean 'softmax'"):
        BFANSettings(word_mechanism="sofmax")
