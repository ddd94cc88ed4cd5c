"""Matching: examples, batches, the loss and its parts, metrics over a split."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from foveate.attention import mechanism
from foveate.data.features import PictureFeatures
from foveate.data.samples import Box, Caption, Phrase
from foveate.data.vocabulary import END, SPECIAL, START, UNKNOWN, Vocabulary
from foveate.errors import DataError, UnknownName
from foveate.losses import choose_swaps, content_resourcing, ranking_hinge
from foveate.metrics import retrieval_metrics
from foveate.models import BFAN, SCAN, Fragments, LogSumExp, MatchingDAN, Mean
from foveate.tasks.matching import Matching
from foveate.tasks.matching_constraints import draw, resourcing, swapping, told
from foveate.tasks.matching_data import MatchingBatch, MatchingExample, collate, forget
from foveate.tasks.matching_metrics import MatchingPrediction
from foveate.tasks.matching_settings import Bfan, MatchingSettings, Mdan, Scan
from foveate.tasks.pictures import Conv

SMALL = MatchingSettings(model=Scan(hidden=8), images=Conv((8, 8, 8, 8)), word_dim=6, min_count=1, limit=4)
MODELS = {"scan": Scan(hidden=8), "bfan": Bfan(hidden=8), "m-dan": Mdan(hidden=8)}


@pytest.fixture(scope="module")
def scenes() -> Matching:
    return Matching.from_data(SMALL, None)


def caption(number: int, image: str, text: str, *phrases: Phrase) -> Caption:
    return Caption(number, image, text, tuple(text.split()), phrases)


def features(identity: str, value: float = 1.0) -> PictureFeatures:
    return PictureFeatures(identity, np.full((4, 3), value, np.float32), grid=(2, 2))


WORDS = Vocabulary.from_tokens([["a", "red", "disc", "dog", "left"]])


def test_examples_are_pictures_with_some_captions_in_training_and_all_beyond(scenes: Matching) -> None:
    one = scenes.examples("train", None)
    assert len(one) == 20
    assert [len(one[number].captions) for number in range(6)] == [1] * 6
    two = replace(scenes, settings=replace(SMALL, captions_each=2)).examples("train", None)
    assert [len(two[number].captions) for number in range(6)] == [2, 2, 1, 2, 2, 1]
    assert len({two[number].id for number in range(3)}) == 1
    val = scenes.examples("val", None)
    assert [len(val[number].captions) for number in range(len(val))] == [5] * 4
    assert one.fingerprint() == two.fingerprint() != val.fingerprint()


def test_a_batch_holds_every_picture_once() -> None:
    examples = [
        MatchingExample("x", features("x"), (caption(1, "x", "a disc"), caption(2, "x", "a red disc"))),
        MatchingExample("y", features("y", 2.0), (caption(3, "y", "dog"),)),
        MatchingExample("x", features("x"), (caption(4, "x", "left of a disc"),)),
    ]
    batch = collate(examples, WORDS, 3, marks=True)
    assert batch.pictures.values.shape == (2, 4, 3)
    assert batch.owner.tolist() == [0, 0, 1, 0]
    assert [c.id for c in batch.captions] == [1, 2, 3, 4]
    assert batch.tokens[2, :3].tolist() == [START, WORDS.index("dog"), END]
    assert batch.mask.sum(-1).tolist() == [4, 5, 3, 5]  # the last one is cut after three words
    assert collate(examples, WORDS, 9, marks=False).mask.sum(-1).tolist() == [2, 3, 1, 4]


def batch_of(task: Matching, count: int = 4, split: str = "val") -> MatchingBatch:
    examples = task.examples(split, None)
    return task.collate([examples[number] for number in range(count)])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_has_a_loss_with_a_gradient_and_metrics(scenes: Matching, name: str) -> None:
    task = replace(scenes, settings=replace(SMALL, model=MODELS[name]))
    torch.manual_seed(0)
    model = task.build_model()
    batch = batch_of(task)
    loss = task.loss(model, batch)
    assert loss.count == 20
    loss.total.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    metrics = task.metrics()
    with torch.no_grad():
        metrics.update(task.predict(model.eval(), batch), batch)
    found = metrics.compute()
    assert 0 <= found["rsum"] <= 600
    assert ("attention_f1" in found) == (name != "m-dan")


def test_the_loss_is_equation_9(scenes: Matching) -> None:
    torch.manual_seed(0)
    model, batch = scenes.build_model(), batch_of(scenes)
    plain = scenes.loss(model, batch)
    assert set(plain.parts) == {"ranking"}
    settings = replace(SMALL, ccr=2.0, ccs=3.0, ccr_margin=0.4, ccs_margin=0.5)
    torch.manual_seed(5)
    both = replace(scenes, settings=settings).loss(model, batch)
    assert set(both.parts) == {"ranking", "ccr", "ccs"}
    torch.testing.assert_close(both.parts["ranking"], plain.total)
    torch.testing.assert_close(both.total, plain.total + 2 * both.parts["ccr"] + 3 * both.parts["ccs"])
    images, texts = scenes.embed(model, batch)
    torch.testing.assert_close(plain.total, ranking_hinge(model.scorer(images, texts), batch.owner))
    looks = model.scorer.cross(images.take(batch.owner), texts)
    torch.testing.assert_close(both.parts["ccr"], resourcing(looks, model.scorer.aggregate, 0.4))
    torch.manual_seed(5)
    ccs = swapping(looks, lambda tokens: model.embed_text(tokens, batch.mask).values, batch.tokens, batch.owner, 0.5)
    torch.testing.assert_close(both.parts["ccs"], ccs)


@pytest.mark.parametrize(("field", "value"), [("margin", 0.7), ("negatives", "all"), ("mechanism", "sparsemax")])
def test_fields_change_the_loss(scenes: Matching, field: str, value: object) -> None:
    torch.manual_seed(0)
    other = replace(scenes, settings=replace(SMALL, **{field: value}))
    model, batch = other.build_model(), batch_of(scenes)
    torch.manual_seed(0)
    assert scenes.loss(scenes.build_model(), batch).total.item() != pytest.approx(other.loss(model, batch).total.item())


def test_the_first_batches_are_easy(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, easy_batches=2))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    losses = [task.loss(model, batch).total.item() for _ in range(3)]
    assert losses[0] == losses[1] > losses[2]
    assert model.state_dict()["batches"] == 3
    assert losses[2] == pytest.approx(scenes.loss(model, batch).total.item())
    soft = replace(scenes, settings=replace(SMALL, easy_batches=6, easy="soft"))
    always = replace(scenes, settings=replace(SMALL, negatives="soft"))
    assert soft.loss(model, batch).total.item() == pytest.approx(always.loss(model, batch).total.item())
    assert soft.loss(model, batch).total.item() == pytest.approx(scenes.loss(model, batch).total.item())


def test_word_vectors_begin_as_large_as_asked(scenes: Matching) -> None:
    small = replace(scenes, settings=replace(SMALL, word_std=0.1))
    torch.manual_seed(0)
    model = small.build_model()
    before = model.text.words.weight.detach().clone()
    small.initialise(model)
    torch.testing.assert_close(model.text.words.weight, before * 0.1)


def test_the_constraints_can_begin_later(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, ccr=1.0, ccr_after=1, ccs=1.0, ccs_after=2))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    parts = [task.loss(model, batch).parts for _ in range(3)]
    assert all(set(part) == {"ranking", "ccr", "ccs"} for part in parts)  # alike, so that batches can be joined
    assert [(part["ccr"].item() > 0, part["ccs"].item() > 0) for part in parts] == [
        (False, False),
        (True, False),
        (True, True),
    ]


def test_swapped_captions_are_read_without_dropout(scenes: Matching) -> None:
    torch.manual_seed(0)
    model = replace(scenes, settings=replace(SMALL, model=replace(SMALL.model, dropout=0.5))).build_model()
    batch = batch_of(scenes)
    again = [model.embed_text(batch.tokens, batch.mask, dropout=False).values for _ in range(2)]
    torch.testing.assert_close(again[0], again[1])
    torch.testing.assert_close(again[0], model.eval().embed_text(batch.tokens, batch.mask).values)
    assert not torch.equal(again[0], model.train().embed_text(batch.tokens, batch.mask).values)


def test_forgotten_words_are_read_as_unknown_in_training_alone(scenes: Matching) -> None:
    task = replace(scenes, settings=replace(SMALL, forget=1.0))
    torch.manual_seed(0)
    model, batch = task.build_model(), batch_of(task)
    words = batch.tokens >= len(SPECIAL)
    unknown = replace(batch, tokens=batch.tokens.masked_fill(words, UNKNOWN))
    torch.testing.assert_close(task.loss(model, batch).total, scenes.loss(model, unknown).total)
    assert not torch.equal(task.predict(model, batch).texts.values, task.predict(model, unknown).texts.values)
    torch.manual_seed(0)
    shares = (forget(torch.full((100, 100), 7), 0.3) == UNKNOWN).float().mean()
    assert shares.item() == pytest.approx(0.3, abs=0.02)


def looks_of(scorer: SCAN | BFAN) -> tuple:
    torch.manual_seed(3)
    images = Fragments(torch.randn(3, 4, 6).requires_grad_(), torch.arange(4) < torch.tensor([4, 3, 2])[:, None]).unit()
    texts = Fragments(torch.randn(3, 5, 6).requires_grad_(), torch.arange(5) < torch.tensor([5, 3, 4])[:, None]).unit()
    return scorer.cross(images, texts)


def soft() -> torch.nn.Module:
    return mechanism("softmax")


def test_resourcing_reads_both_directions_of_a_model() -> None:
    looks = looks_of(BFAN(soft(), soft(), temperature=5.0))
    total = sum(
        content_resourcing(
            look.queries.values,
            look.keys.values,
            look.scores,
            look.attended,
            margin=1.0,
            mask=look.keys.mask,
            asked=look.queries.mask,
            aggregate=Mean(),
        )
        for look in looks
    )
    assert total > 0
    torch.testing.assert_close(resourcing(looks, Mean(), 1.0), total)
    assert resourcing(looks, LogSumExp(5.0), 1.0) != total


TOKENS = torch.tensor([[2, 7, 8, 10, 3], [2, 10, 3, 0, 0], [2, 11, 12, 3, 0]])
OWNER = torch.tensor([0, 1, 2])
ONE, TWO = math.log(3), math.log(3 / 2)  # what words of one and of two captions tell
TELLS = torch.tensor([[0, ONE, ONE, TWO, 0], [0, TWO, 0, 0, 0], [0, ONE, ONE, 0, 0]])


def test_words_are_drawn_by_what_they_tell() -> None:
    torch.testing.assert_close(told(TOKENS).where(TOKENS > 3, 0), TELLS)
    torch.manual_seed(0)
    rows, drawn, some = draw(TELLS.repeat(4000, 1))
    shares = torch.nn.functional.one_hot(drawn, 5).view(4000, 3, 5).float().mean(0)
    torch.testing.assert_close(shares, TELLS / TELLS.sum(-1, keepdim=True), atol=0.03, rtol=0)
    assert some.all()
    assert rows[-1] == 11999
    assert not draw(torch.zeros(2, 3))[2].any()


def reread(tokens: torch.Tensor) -> torch.Tensor:
    """States of words that depend on the words before, so that a swapped word is told from one in another sentence."""
    vectors = torch.randn(13, 6, generator=torch.Generator().manual_seed(1))
    return vectors[tokens] + 0.5 * vectors[tokens].cumsum(1)


def drawn_and_swapped(states: torch.Tensor) -> tuple[torch.Tensor, list[bool], torch.Tensor, bool]:
    """The drawn words, whether each has one to be swapped for, the states of those in their own sentence, and whether
    the swaps are the same when words that are said of the picture are allowed."""
    drawn = (torch.empty(3, 5).exponential_() / TELLS).argmin(-1)
    words = TOKENS[torch.arange(3), drawn]
    swaps = choose_swaps(states[torch.arange(3), drawn], words, OWNER, TOKENS)
    others = []
    for p, other in enumerate(swaps.index):
        sentence = TOKENS[p].clone()
        sentence[drawn[p]] = words[other]
        others.append(reread(sentence[None])[0, drawn[p]])
    free = choose_swaps(states[torch.arange(3), drawn], words, OWNER)
    return drawn, swaps.found.tolist(), torch.stack(others), torch.equal(swaps.index, free.index)


def test_swapping_swaps_the_drawn_word_in_its_own_sentence() -> None:
    (look,) = looks_of(SCAN(soft()))
    said = []
    for seed in range(8):
        torch.manual_seed(seed)
        ours = swapping((look,), reread, TOKENS, OWNER, 1.0)
        torch.manual_seed(seed)
        drawn, found, others, same = drawn_and_swapped(look.queries.values)
        said.append(same)
        slow = torch.zeros(())
        for p, t in enumerate(drawn):
            if found[p]:
                read = look.weights[p, t] @ look.keys.values[p]
                own = torch.cosine_similarity(reread(TOKENS)[p, t], read, dim=0)
                slow = slow + (torch.cosine_similarity(others[p], read, dim=0) - own + 1).clamp(0)
        torch.testing.assert_close(ours, slow)
    assert not all(said)  # word 10 is never swapped for one of the first caption, which has it


def test_a_forgotten_word_is_still_said_of_its_picture() -> None:
    (look,) = looks_of(SCAN(soft()))
    tokens = torch.tensor([[2, 7, UNKNOWN, 3, 0], [2, 10, 3, 0, 0], [2, UNKNOWN, UNKNOWN, 3, 0]])
    free = swapping((look,), reread, tokens, OWNER, 2.0)
    kept = swapping((look,), reread, tokens, OWNER, 2.0, said=TOKENS)  # the first caption has word 10
    second = swapping((look,), reread, tokens, OWNER, 2.0, said=tokens.index_fill(0, torch.tensor(0), 10))
    assert 0 < kept < free
    torch.testing.assert_close(kept, second)


def test_swapping_changes_a_word_of_what_a_location_reads() -> None:
    (look,) = looks_of(SCAN(soft(), direction="i2t", temperature=4.0))
    torch.manual_seed(0)
    ours = swapping((look,), reread, TOKENS, OWNER, 1.0)
    torch.manual_seed(0)
    drawn, found, others, _ = drawn_and_swapped(look.keys.values)
    slow = torch.zeros(())
    for p, t in enumerate(drawn):
        if found[p]:
            locations = [n for n in range(4) if look.queries.mask[p, n]]
            n = max(locations, key=lambda n, p=p, t=t: look.weights[p, n, t].item())
            q, words = look.queries.values[p, n], look.keys.values[p].clone()
            own = torch.cosine_similarity(q, look.weights[p, n] @ words, dim=0)
            words[t] += others[p] - reread(TOKENS)[p, t]
            slow = slow + (torch.cosine_similarity(q, look.weights[p, n] @ words, dim=0) - own + 1).clamp(0)
    assert slow > 0
    torch.testing.assert_close(ours, slow)


@pytest.mark.parametrize("scorer", [SCAN(soft()), BFAN(soft(), soft())])
def test_swapping_of_one_pair_or_of_marks_alone_is_nothing(scorer: SCAN | BFAN) -> None:
    looks = looks_of(scorer)
    assert swapping(looks, reread, TOKENS, torch.zeros(3, dtype=torch.long), 1.0).item() == 0
    assert swapping(looks, reread, torch.full_like(TOKENS, 2), OWNER, 1.0).item() == 0


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


def test_sizes_and_names_of_models_are_checked() -> None:
    with pytest.raises(UnknownName, match="aggregate: expected a known name, got 'max'"):
        Scan(aggregate="max")
    with pytest.raises(UnknownName, match="directions: expected a known name, got 'sum'"):
        Bfan(directions="sum")
    with pytest.raises(ValueError, match="matching: expected an even hidden to concatenate two halves, got 9"):
        Scan(hidden=9, directions="concatenate")


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


def test_retrieval_is_that_of_the_scores(scenes: Matching) -> None:
    torch.manual_seed(0)
    model, batch = scenes.build_model().eval(), batch_of(scenes)
    metrics = scenes.metrics()
    with torch.no_grad():
        metrics.update(scenes.predict(model, batch), batch)
        scores = model.scorer(*scenes.embed(model, batch))
    found = metrics.compute()
    expected = retrieval_metrics(lambda rows: scores[rows], batch.owner, 4)
    assert {key: found[key] for key in expected} == pytest.approx(expected)
    folded = replace(scenes, settings=replace(SMALL, folds=2)).metrics()
    with torch.no_grad():
        folded.update(scenes.predict(model, batch), batch)
    assert "rsum/2 folds" in folded.compute()


def test_words_are_judged_by_the_boxes_of_their_phrases() -> None:
    """One picture of 2x2 cells; the phrase "red disc" lies in the first cell, to which only its words attend."""
    phrase = Phrase(1, 3, "disc", (), (Box(0.0, 0.0, 0.5, 0.5),))
    spoken = caption(1, "x", "a red disc", phrase)
    task = Matching(SMALL, WORDS, 3)
    batch = task.collate([MatchingExample("x", features("x"), (spoken,))])
    attended = torch.zeros(1, 5, 4, dtype=torch.bool)
    attended[0, [0, 1, 4], 3] = True  # the marks and "a"
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


def test_predicts_what_the_model_counts_as_attended(scenes: Matching) -> None:
    torch.manual_seed(0)
    for kind in (Scan(hidden=8), Bfan(hidden=8, temperature=3.0)):
        task = replace(scenes, settings=replace(SMALL, model=kind))
        model, batch = task.build_model().eval(), batch_of(task)
        with torch.no_grad():
            prediction = task.predict(model, batch)
            images, texts = task.embed(model, batch)
            look = model.scorer.look(images.take(batch.owner), texts)
        least = 1 / look.weights.shape[-1] if isinstance(kind, Scan) else 0.0
        assert torch.equal(prediction.attended, look.weights > least)
        assert prediction.locations == [(7, 7)] * 4
    locations_look = replace(scenes, settings=replace(SMALL, model=Scan(hidden=8, direction="i2t")))
    with torch.no_grad():
        assert locations_look.predict(locations_look.build_model(), batch_of(scenes)).attended is None


def test_goes_through_json_and_back(scenes: Matching) -> None:
    again = Matching.from_vocabulary(SMALL, json.loads(json.dumps(scenes.vocabulary())))
    assert again == scenes
    assert isinstance(replace(scenes, settings=replace(SMALL, model=Mdan(hidden=8))).build_model(), MatchingDAN)


def test_model_settings_reach_the_model() -> None:
    attend = SMALL.attention()
    scan = Scan(direction="i2t", temperature=4.0, lse=5.0).scorer(attend)
    assert (scan.direction, scan.attention.temperature, scan.aggregate) == ("i2t", 4.0, LogSumExp(5.0))
    assert Scan(aggregate="mean").scorer(attend).aggregate == Mean()
    bfan = Bfan(focal="equal", temperature=7.0, word_mechanism="sparsemax").scorer(attend)
    assert bfan.over_locations.temperature == bfan.over_words.temperature == 7.0
    assert bfan.over_locations.focus.__name__ == "focus_equal"
    assert (bfan.over_locations.attend.name, bfan.over_words.attend.name) == ("softmax", "sparsemax")
    sides = {
        kind: Scan(hidden=8, directions=kind).build(9, 4, Conv((8, 8, 8, 8)).encoder(None), attend)
        for kind in ("average", "concatenate")
    }
    assert {kind: model.text.hidden for kind, model in sides.items()} == {"average": 8, "concatenate": 4}
    assert {model.text.dim for model in sides.values()} == {8}
    bfan = Bfan(hidden=8, directions="concatenate", dropout=0.3)
    matcher = bfan.build(9, 4, Conv((8,)).encoder(None), attend)
    assert (matcher.text.dim, matcher.dropout.p) == (8, 0.3)
    dan = Mdan(hidden=8, steps=3, word_mechanism="sparsemax").build(9, 4, Conv((8,)).encoder(None), attend)
    assert len(dan.looks) == 3
    assert dan.reads[0].attend.name == "sparsemax"


def test_word_vectors_must_fit(scenes: Matching, tmp_path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(f"{word} 1 2 3 4 5 6" for word in scenes.words.words[4:]))
    task = replace(scenes, settings=replace(SMALL, words=str(path)))
    model = task.build_model()
    task.initialise(model)
    assert model.text.words.weight[5].tolist() == [1, 2, 3, 4, 5, 6]
    wrong = replace(scenes, settings=replace(SMALL, words=str(path), word_dim=5))
    with pytest.raises(DataError, match=r"matching: expected word vectors of 5 numbers, got 6 .* set word_dim=6"):
        wrong.initialise(wrong.build_model())


def test_messages() -> None:
    with pytest.raises(ValueError, match="matching: expected ccr=0 and ccs=0 for m-DAN, got 1 and 0; use model=scan"):
        MatchingSettings(model=Mdan(), ccr=1.0)
    with pytest.raises(ValueError, match="matching: expected a mechanism with discrete weights, got 'multimodal'"):
        MatchingSettings(mechanism="multimodal")
    assert MatchingSettings(model=Mdan(), mechanism="multimodal")
    with pytest.raises(ValueError, match="matching: expected captions_each >= 1, got 0"):
        MatchingSettings(captions_each=0)
    with pytest.raises(ValueError, match=r"matching: expected forget <= 1, got 1\.5; give a probability"):
        MatchingSettings(forget=1.5)
    with pytest.raises(ValueError, match="matching: expected margin >= 0, got -1"):
        MatchingSettings(margin=-1)
    with pytest.raises(UnknownName, match="data with captions: expected a known name, got 'vqa-v2'"):
        MatchingSettings(data="vqa-v2")
    with pytest.raises(UnknownName, match="mechanism: expected a known name, got 'sofmax'; did you mean 'softmax'"):
        Bfan(word_mechanism="sofmax")
