"""r-DAN and m-DAN against their equations, written out one location at a time."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foveate.attention import mechanism
from foveate.lab.encoders import StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models import MatchingDAN, ReasoningDAN


def tiny(attend: str = "softmax", attend_words: str = "softmax", steps: int = 2, dropout: float = 0.0) -> ReasoningDAN:
    torch.manual_seed(0)
    text = TextEncoder(20, word_dim=6, hidden=8, directions="sum")
    parts = mechanism(attend), mechanism(attend_words)
    return ReasoningDAN(text, StoredFeatures(10), *parts, answers=5, steps=steps, dropout=dropout)


def inputs() -> tuple[ImageFeatures, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(7)[None] < torch.tensor([7, 4, 1])[:, None]
    seen = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    grid = torch.tensor([[2, 3], [2, 2], [1, 2]])
    return ImageFeatures(torch.randn(3, 6, 10), grid, seen), torch.randint(4, 20, (3, 7)), mask


def matrix(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """W x, with the bias that the paper leaves out of its equations."""
    return layer.weight @ x + layer.bias


def attention(part: nn.Module, vectors: list[torch.Tensor], m: torch.Tensor) -> torch.Tensor:
    """Equations 4-5 and 8-10: the weighted mean of the vectors."""
    energies = []
    for v in vectors:
        h = torch.tanh(matrix(part.locations, v)) * torch.tanh(matrix(part.memory, m))
        energies.append(matrix(part.scores, h)[0])
    exponentials = [energy.exp() for energy in energies]
    return sum(e / sum(exponentials) * v for e, v in zip(exponentials, vectors, strict=True))


def slow_scores(model: ReasoningDAN, v: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    words = model.text.words(tokens)[None]
    forward, backward = model.text.recurrent(words)[0][0].chunk(2, -1)
    u = list(forward + backward)
    v0 = torch.tanh(matrix(model.first_look, sum(v) / len(v)))  # 13
    u0 = sum(u) / len(u)  # 14
    m = v0 * u0  # 12
    for look, embed, read in zip(model.looks, model.embeds, model.reads, strict=True):
        vk = torch.tanh(matrix(embed, attention(look, v, m)))  # 6
        uk = attention(read, u, m)  # 10
        m = m + vk * uk  # 11
    return matrix(model.answers, m)  # 15, before the softmax


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_follows_equations_3_to_15(steps: int) -> None:
    model = tiny(steps=steps).eval()
    features, tokens, mask = inputs()
    scores = model(features, tokens, mask).scores
    for b in range(3):
        v = list(features.values[b, : int(features.mask[b].sum())])
        slow = slow_scores(model, v, tokens[b, : int(mask[b].sum())])
        torch.testing.assert_close(scores[b], slow, rtol=1e-4, atol=1e-5)


def test_every_step_has_weights_of_its_own() -> None:
    one, two = (sum(p.numel() for p in tiny(steps=steps).parameters()) for steps in (1, 2))
    hidden, image = 8, 10
    looks = image * hidden + hidden + hidden * hidden + hidden + hidden + 1
    reads = 2 * (hidden * hidden + hidden) + hidden + 1
    assert two - one == looks + reads + (image * hidden + hidden)


def test_every_attention_is_returned() -> None:
    answered = tiny(steps=3).eval()(*inputs())
    assert [tuple(a.weights.shape) for a in answered.image] == [(3, 6)] * 3
    assert [tuple(a.weights.shape) for a in answered.question] == [(3, 7)] * 3
    assert answered.image[0].map(4, 4).shape == (3, 4, 4)


def test_both_attentions_are_passed_in() -> None:
    plain = tiny().eval()
    for where, model in (("image", tiny("tvmax").eval()), ("question", tiny(attend_words="sparsemax").eval())):
        model.load_state_dict(plain.state_dict())
        before, after = plain(*inputs()), model(*inputs())
        other = {"image": "question", "question": "image"}[where]
        assert not torch.allclose(getattr(before, where)[0].weights, getattr(after, where)[0].weights)
        torch.testing.assert_close(getattr(before, other)[0].weights, getattr(after, other)[0].weights)


def test_padding_has_no_influence() -> None:
    model, (features, tokens, mask) = tiny().eval(), inputs()
    noise = ImageFeatures(torch.where(features.mask[..., None], features.values, 99.0), features.grid, features.mask)
    torch.testing.assert_close(
        model(features, tokens, mask).scores, model(noise, torch.where(mask, tokens, 3), mask).scores
    )


def test_questions_share_an_image() -> None:
    model, (features, tokens, mask) = tiny().eval(), inputs()
    index = torch.tensor([0, 0, 0])
    one = ImageFeatures(features.values[:1], (2, 3))
    many = ImageFeatures(features.values[:1].expand(3, -1, -1), (2, 3))
    torch.testing.assert_close(model(one, tokens, mask, index).scores, model(many, tokens, mask).scores)


def test_drops_in_training_only() -> None:
    model, given = tiny(dropout=0.5), inputs()
    assert not torch.equal(model(*given).scores, model(*given).scores)
    model.eval()
    assert torch.equal(model(*given).scores, model(*given).scores)


def matching(attend: str = "softmax", steps: int = 2, dropout: float = 0.0) -> MatchingDAN:
    torch.manual_seed(0)
    text = TextEncoder(20, word_dim=6, hidden=8, directions="sum")
    parts = mechanism(attend), mechanism("softmax")
    return MatchingDAN(text, StoredFeatures(10), *parts, steps=steps, dropout=dropout)


def slow_similarity(model: MatchingDAN, v: list[torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    forward, backward = model.text.recurrent(model.text.words(tokens)[None])[0][0].chunk(2, -1)
    u = list(forward + backward)
    vk = m_v = torch.tanh(matrix(model.first_look, sum(v) / len(v)))  # 13
    uk = m_u = sum(u) / len(u)  # 14
    s = vk @ uk  # 18
    for look, embed, read in zip(model.looks, model.embeds, model.reads, strict=True):
        vk = torch.tanh(matrix(embed, attention(look, v, m_v)))  # 6
        uk = attention(read, u, m_u)  # 10
        m_v, m_u = m_v + vk, m_u + uk  # 16-17
        s = s + vk @ uk  # 19
    return s


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_matching_follows_equations_16_to_22(steps: int) -> None:
    model, (features, tokens, mask) = matching(steps=steps).eval(), inputs()
    scores = model(features, tokens, mask)
    seen, read = model.embed_image(features), model.embed_text(tokens, mask)
    torch.testing.assert_close(scores, seen.values[:, 0] @ read.values[:, 0].T)
    assert seen.values.shape == read.values.shape == (3, 1, 8 * (steps + 1))
    for i in range(3):
        v = list(features.values[i, : int(features.mask[i].sum())])
        for c in range(3):
            slow = slow_similarity(model, v, tokens[c, : int(mask[c].sum())])
            torch.testing.assert_close(scores[i, c], slow, rtol=1e-4, atol=1e-5)


def test_matching_returns_every_attention() -> None:
    model, (features, tokens, mask) = matching("tvmax", steps=3).eval(), inputs()
    assert [tuple(a.weights.shape) for a in model.embed_image(features).attention] == [(3, 6)] * 3
    assert [tuple(a.weights.shape) for a in model.embed_text(tokens, mask).attention] == [(3, 7)] * 3
    other = matching(steps=3).eval()
    assert not torch.allclose(
        other.embed_image(features).attention[0].weights, model.embed_image(features).attention[0].weights
    )


def test_matching_drops_in_training_only() -> None:
    model, given = matching(dropout=0.5), inputs()
    assert not torch.equal(model(*given), model(*given))
    model.eval()
    assert torch.equal(model(*given), model(*given))


def test_projected_features_are_read_instead_of_the_features() -> None:
    torch.manual_seed(0)
    text, parts = TextEncoder(20, word_dim=6, hidden=8, directions="sum"), (mechanism("softmax"), mechanism("softmax"))
    model = ReasoningDAN(text, StoredFeatures(10), *parts, answers=5, dropout=0.0, projected=True)
    features, tokens, mask = inputs()
    model(features, tokens, mask)  # collects the statistics of the features
    model.eval()
    seen = features.values[features.mask]
    roots = seen.abs().sqrt() * seen.sign()
    standard = (roots - roots.mean(0)) / (roots.std(0, correction=0) + 1e-5)
    expected = torch.nn.functional.layer_norm(model.project.project(standard).relu(), (8,))
    torch.testing.assert_close(model(features, tokens, mask).reading.values[features.mask], expected)
