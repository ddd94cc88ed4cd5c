"""The constraints of captions, against the model asked again word by word."""

from __future__ import annotations

import pytest
import torch

from foveate.attention import mechanism
from foveate.lab.encoders import StoredFeatures
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Captioner
from foveate.lab.tasks.captioning.constraints import SampledWords, sample_one_word, word_resourcing, word_swapping

V = 12


def read(attend: str = "softmax") -> tuple[SampledWords, ImageFeatures, torch.Tensor]:
    torch.manual_seed(0)
    model = Captioner(StoredFeatures(5), mechanism(attend), vocabulary=V, word_dim=4, hidden=6).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    features = ImageFeatures(torch.randn(3, 6, 5), (2, 3))
    tokens = torch.tensor([[2, 4, 5, 6], [2, 7, 8, 0], [2, 9, 0, 0], [2, 10, 11, 4]])
    targets = torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0], [9, 3, 0, 0], [10, 11, 4, 5]])
    mask = tokens > 0
    index = torch.tensor([0, 0, 1, 2])
    return sample_one_word(model, model(features, tokens, mask, index), tokens, targets, index), features, tokens


def test_draws_words_between_words() -> None:
    places = set()
    for seed in range(20):
        torch.manual_seed(seed)
        drawn, _, tokens = read()
        torch.manual_seed(seed)
        captioned = drawn.captioned
        targets = torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0], [9, 3, 0, 0], [10, 11, 4, 5]])
        drawn = sample_one_word(drawn.model, captioned, tokens, targets, torch.tensor([0, 0, 1, 2]))
        # the third caption has one word, between bos and eos
        assert drawn.rows.tolist() == [0, 1, 3]
        assert drawn.images.tolist() == [0, 0, 2]
        assert torch.equal(drawn.before, tokens[drawn.rows, drawn.places])
        assert torch.equal(drawn.targets, targets[drawn.rows, drawn.places])
        places |= {(row, place) for row, place in zip(drawn.rows.tolist(), drawn.places.tolist(), strict=True)}
    assert places == {(0, 1), (0, 2), (1, 1), (3, 1), (3, 2), (3, 3)}


def chance(drawn: SampledWords, i: int, context: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    return drawn.model.next_scores(context, state).softmax(-1)[drawn.targets[i]]


@pytest.mark.parametrize("attend", ["softmax", "sparsemax"])
def test_resourcing_compares_what_both_groups_give(attend: str) -> None:
    drawn, _, _ = read(attend)
    expected, seen = 0.0, drawn.captioned
    for i, (row, place) in enumerate(zip(drawn.rows, drawn.places, strict=True)):
        weights, scores, v = seen.image.weights[row, place], seen.image_scores[row, place], seen.values[row]
        kept = weights > 1 / 6
        contexts = [scores[group].softmax(0) @ v[group] for group in (kept, ~kept)]
        attended, ignored = (chance(drawn, i, context, seen.states[row, place]) for context in contexts)
        expected += (ignored - attended + 0.3).clamp_min(0)
    torch.testing.assert_close(word_resourcing(drawn, margin=0.3), expected)


def test_swapping_asks_again_after_another_word() -> None:
    drawn, features, tokens = read()
    seen, expected, model = drawn.captioned, 0.0, drawn.model
    vectors = torch.nn.functional.normalize(model.words.weight[drawn.before].detach(), dim=-1)
    for i, (row, place) in enumerate(zip(drawn.rows, drawn.places, strict=True)):
        near = [
            float(vectors[i] @ vectors[j]) if drawn.images[i] != drawn.images[j] else 9.0 for j in range(len(vectors))
        ]
        other = int(torch.tensor(near).argmin())
        sentence = tokens[row, : place + 1].clone()
        sentence[-1] = drawn.before[other]
        features_of_one = ImageFeatures(features.values[drawn.images[i]][None], (2, 3))
        again = model(features_of_one, sentence[None], torch.ones(1, len(sentence), dtype=torch.bool))
        context = seen.image.context[row, place]
        own = chance(drawn, i, context, seen.states[row, place])
        expected += (chance(drawn, i, context, again.states[0, -1]) - own + 0.3).clamp_min(0)
    torch.testing.assert_close(word_swapping(drawn, margin=0.3), expected)


@pytest.mark.parametrize("constraint", [word_resourcing, word_swapping])
def test_gradients_reach_the_attention(constraint) -> None:
    drawn, _, _ = read()
    constraint(drawn, margin=1.0).backward()
    grad = drawn.model.out_scores.weight.grad
    assert grad is not None
    assert grad.isfinite().all()
    assert grad.any()
