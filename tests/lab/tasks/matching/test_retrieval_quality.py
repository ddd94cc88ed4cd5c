"""Metrics over a split: retrieval, and whether words attend to what they name."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foveate.lab.data.samples import Phrase
from foveate.lab.metrics import retrieval_metrics
from foveate.lab.models import (
    Fragments,
)
from foveate.lab.tasks.inputs import Inputs
from foveate.lab.tasks.matching import Matching
from foveate.lab.tasks.matching.data import MatchingExample
from foveate.lab.tasks.matching.retrieval_quality import MatchingPrediction
from foveate.ops.boxes import Box
from tests.lab.tasks.matching.small import MODELS, SMALL, WORDS, batch_of, caption, features


@pytest.fixture(scope="module")
def scenes() -> Matching:
    return Matching.from_data(SMALL, None)


def test_words_beyond_the_last_that_is_read_attend_to_nothing(scenes: Matching) -> None:
    cut = replace(scenes, settings=replace(SMALL, max_words=2))
    batch = batch_of(cut)
    model = cut.build_model().eval()
    seen = cut.predict(model, batch)
    everywhere = replace(seen, attended=torch.ones_like(seen.attended))
    metrics = cut.metrics()
    metrics.update(everywhere, batch)
    read = [
        any(place < 2 for place in range(phrase.start, phrase.stop))
        for caption in batch.captions
        for phrase in caption.phrases
        if phrase.boxes
    ]
    assert 0 < sum(read) < len(read)
    assert metrics.compute()["attention_recall"] == pytest.approx(sum(read) / len(read))


@pytest.mark.parametrize("name", MODELS)
def test_metrics_do_not_depend_on_batches_or_processes(scenes: Matching, name: str) -> None:
    task = replace(scenes, settings=replace(SMALL, model=MODELS[name]))
    torch.manual_seed(0)
    model, examples = task.build_model().eval(), task.examples("val", None)

    def fed(*parts: list[int]):
        metrics = task.metrics()
        with torch.no_grad():
            for part in parts:
                batch = task.collate([examples[number] for number in part])
                metrics.update(task.predict(model, batch), batch)
        return metrics

    whole = fed([0, 1, 2, 3]).compute()
    assert fed([0], [1, 2], [3]).compute() == pytest.approx(whole)
    merged = task.metrics()
    for part in ([0, 2], [1, 3]):
        merged.merge(fed(part).state())
    assert merged.compute() == pytest.approx(whole)
    assert task.metrics().compute() == {}


@pytest.mark.parametrize("name", MODELS)
def test_retrieval_is_that_of_the_scores(scenes: Matching, name: str) -> None:
    task = replace(scenes, settings=replace(SMALL, model=MODELS[name]))
    torch.manual_seed(0)
    model, batch = task.build_model().eval(), batch_of(task)
    metrics = task.metrics()
    with torch.no_grad():
        metrics.update(task.predict(model, batch), batch)
        scores = model.scorer(*task.embed(model, batch))
    found = metrics.compute()
    expected = retrieval_metrics(lambda rows: scores[rows], batch.owner, 4)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    folded = replace(task, settings=replace(task.settings, rank_parts=2)).metrics()
    with torch.no_grad():
        folded.update(task.predict(model, batch), batch)
    assert "rsum/2 folds" in folded.compute()


def test_words_are_judged_by_the_boxes_of_their_phrases() -> None:
    """One image of 2x2 cells; the phrase "red disc" lies in the first cell, to which only its words attend."""
    phrase = Phrase(1, 3, "disc", (), (Box(0.0, 0.0, 0.5, 0.5),))
    spoken = caption(1, "x", "a red disc", phrase)
    task = Matching(SMALL, Inputs(WORDS, 3))
    batch = task.collate([MatchingExample("x", features("x"), (spoken,))])
    attended = torch.zeros(1, 5, 4, dtype=torch.bool)
    attended[0, [0, 1, 4], 3] = True  # bos, eos and "a"
    attended[0, 2:4, 0] = True  # "red disc"
    metrics = task.metrics()
    seen, read = Fragments(torch.randn(1, 4, 6), grid=(2, 2)).unit(), Fragments(torch.randn(1, 5, 6), batch.mask).unit()
    metrics.update(MatchingPrediction(seen, read, attended, [(2, 2)]), batch)
    assert metrics.compute()["attention_f1"] == 1
    metrics = task.metrics()
    metrics.update(MatchingPrediction(seen, read, attended.roll(1, 1), [(2, 2)]), batch)
    assert metrics.compute()["attention_recall"] == 1
    metrics = task.metrics()
    metrics.update(MatchingPrediction(seen, read, attended.flip(-1), [(2, 2)]), batch)
    assert metrics.compute()["attention_f1"] == 0
