"""The captioner against its equations, written out one word and one location at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.errors import ShapeError, UnknownName
from foveate.lab.encoders import StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Captioner
from foveate.lab.models.mcan import MCAN
from foveate.lab.models.scores import SCORES, AdditiveScores, ProductScores
from foveate.ops import TRANSFORMS

BOS, EOS, V = 0, 1, 11


def tiny(attend: str = "softmax", dropout: float = 0.0, score_dim: int | None = None) -> Captioner:
    torch.manual_seed(0)
    model = Captioner(
        StoredFeatures(5),
        mechanism(attend),
        vocabulary=V,
        word_dim=4,
        hidden=6,
        score_dim=score_dim,
        dropout=dropout,
    )
    for parameter in model.parameters():  # far from linear, so that every term counts
        nn.init.normal_(parameter, std=0.7)
    return model


def inputs() -> tuple[ImageFeatures, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(5)[None] < torch.tensor([3, 5, 1])[:, None]
    seen = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    grid = torch.tensor([[2, 3], [2, 2], [1, 2]])
    return ImageFeatures(torch.randn(3, 6, 5), grid, seen), torch.randint(2, V, (3, 5)), mask


def affine(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer.weight @ x + (0 if layer.bias is None else layer.bias)


def scores(part: AdditiveScores, v: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """z_i = wᵀ tanh(affine([v_i; h])), the affine map as one matrix."""
    W = torch.cat([part.locations.weight, part.state.weight], 1)
    return torch.stack([part.weight @ torch.tanh(W @ torch.cat([vi, h]) + part.locations.bias) for vi in v])


def lstm(model: Captioner) -> nn.LSTMCell:
    """The recurrence as PyTorch's cell, fed with [word; s]."""
    E, D = model.words.embedding_dim, model.features.out_features
    cell = nn.LSTMCell(E + D, D)
    cell.weight_ih.data = torch.cat([model.word_gates.weight, model.gates.weight[:, :D]], 1)
    cell.weight_hh.data = model.gates.weight[:, D:]
    cell.bias_ih.data, cell.bias_hh.data = model.word_gates.bias, torch.zeros(4 * D)
    return cell


def slow(model: Captioner, features: torch.Tensor, words: torch.Tensor, transform, grid: tuple[int, int]):
    """Section 3 for one caption of one image: log-probabilities and both attentions of every word."""
    v = torch.stack([affine(model.features, f) for f in features])
    cell, h, c = lstm(model), torch.zeros(6), torch.zeros(6)
    rows, before, after = [], [], []
    for word in words:
        alpha = torch.softmax(scores(model.scores, v, h), 0)
        s = sum(a * vi for a, vi in zip(alpha, v, strict=True))
        h, c = (x[0] for x in cell(torch.cat([model.words.weight[word], s])[None], (h[None], c[None])))
        z = scores(model.out_scores, v, h)
        alpha_out = transform(z.reshape(grid)).flatten() if transform is TRANSFORMS["tvmax"].function else transform(z)
        s_out = sum(a * vi for a, vi in zip(alpha_out, v, strict=True))
        r = torch.tanh(affine(model.read, s_out))
        rows.append(torch.log_softmax(affine(model.next_word, torch.cat([r, h])), 0))
        before.append(alpha)
        after.append(alpha_out)
    return torch.stack(rows), torch.stack(before), torch.stack(after)


@pytest.mark.parametrize("attend", ["softmax", "sparsemax", "tvmax"])
@pytest.mark.parametrize("score_dim", [None, 3])
def test_follows_section_3_word_by_word(attend: str, score_dim: int | None) -> None:
    model, (features, tokens, mask) = tiny(attend, score_dim=score_dim).eval(), inputs()
    found = model(features, tokens, mask)
    start = 0
    for b in range(3):
        T, (H, W) = int(mask[b].sum()), features.grid[b].tolist()
        with torch.no_grad():
            rows, before, after = slow(
                model, features.values[b, : H * W], tokens[b, :T], TRANSFORMS[attend].function, (H, W)
            )
        torch.testing.assert_close(found.scores[start : start + T].log_softmax(-1), rows, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.input_weights[b, :T, : H * W], before, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.image.weights[b, :T, : H * W], after, rtol=1e-4, atol=1e-5)
        assert not found.input_weights[b, T:].any()
        assert not found.states[b, T:].any()
        start += T


def test_product_scores_follow_their_formula_for_one_and_for_several_queries() -> None:
    torch.manual_seed(0)
    part, v, h = ProductScores(6, 4), torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    found = part(part.locations(v), part.state(h))
    for b in range(2):
        for q in range(3):
            state = torch.tanh(part.state.weight @ h[b, q] + part.state.bias)
            for n in range(5):
                location = torch.tanh(part.locations[0].weight @ v[b, n] + part.locations[0].bias)
                torch.testing.assert_close(found[b, q, n], (part.weight * location * state).sum())
    torch.testing.assert_close(part(part.locations(v), part.state(h[:, 1])), found[:, 1])


def test_scores_of_table_2_1_follow_their_formulas() -> None:
    """Dot h·s, scaled dot h·s / sqrt(d), general hᵀ W s (Farinhas 2021, table 2.1)."""
    torch.manual_seed(0)
    v, h = torch.randn(2, 5, 6), torch.randn(2, 3, 6)
    dot = torch.einsum("bnd,bqd->bqn", v, h)
    for name, expected in (("dot", dot), ("scaled-dot", dot / 6**0.5)):
        part = SCORES[name](6, 4)
        torch.testing.assert_close(part(part.locations(v), part.state(h)), expected)
        torch.testing.assert_close(part(part.locations(v), part.state(h[:, 1])), expected[:, 1])
    part = SCORES["general"](6, 4)
    expected = torch.einsum("bnd,de,bqe->bqn", v, part.state.weight, h)
    torch.testing.assert_close(part(part.locations(v), part.state(h)), expected)


@pytest.mark.parametrize("kind", list(SCORES))
def test_the_scores_are_a_part_of_captioner_and_mcan(kind: str) -> None:
    """Every parameter gets a gradient, and another kind of scores attends elsewhere."""
    features, tokens = ImageFeatures(torch.randn(2, 4, 6), grid=(2, 2)), torch.tensor([[2, 5, 6], [2, 7, 8]])
    words = torch.ones(2, 3, dtype=torch.bool)
    torch.manual_seed(0)
    model = Captioner(StoredFeatures(6), mechanism("softmax"), vocabulary=10, word_dim=4, hidden=8, scores=kind)
    model(features, tokens, words).scores.square().sum().backward()
    assert all(part.grad is not None for part in model.parameters())
    text = TextEncoder(10, word_dim=4, hidden=8)
    mcan = MCAN(text, StoredFeatures(6), mechanism("softmax"), answers=3, heads=2, layers=1, dropout=0.0, scores=kind)
    answered = mcan(features, tokens, words)
    answered.scores.square().sum().backward()
    assert all(part.grad is not None for part in mcan.flat_image.parameters())
    other = mcan(features, tokens.flip(0), words).image[-1].weights
    assert (other - answered.image[-1].weights).abs().max() > 1e-6


def test_unknown_scores_are_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'general'"):
        Captioner(StoredFeatures(6), mechanism("softmax"), vocabulary=10, word_dim=4, hidden=8, scores="generel")


def test_a_captioner_with_product_scores_follows_the_words() -> None:
    torch.manual_seed(0)
    model = Captioner(StoredFeatures(6), mechanism("softmax"), vocabulary=10, word_dim=4, hidden=8, scores="product")
    features, tokens = ImageFeatures(torch.randn(1, 4, 6), grid=(2, 2)), torch.tensor([[2, 5, 6], [2, 7, 8]])
    twice = features[torch.tensor([0, 0])]
    weights = model.eval()(twice, tokens, torch.ones(2, 3, dtype=torch.bool)).image.weights
    torch.testing.assert_close(weights[0, 0], weights[1, 0])
    assert not torch.allclose(weights[0, 1], weights[1, 1])


def test_score_dim_sets_the_size_of_the_tanh() -> None:
    assert tiny(score_dim=3).scores.weight.shape == (3,)
    assert tiny().out_scores.weight.shape == (6,)


@pytest.mark.parametrize("attend", MECHANISMS)
def test_takes_every_attention_and_every_parameter_gets_a_gradient(attend: str) -> None:
    torch.manual_seed(0)
    model = Captioner(StoredFeatures(5), mechanism(attend), vocabulary=V, word_dim=4, hidden=6)
    features = ImageFeatures(torch.randn(2, 12, 5), grid=(3, 4))
    tokens, mask = torch.randint(2, V, (2, 3)), torch.tensor([[True] * 3, [True, False, False]])
    found = model(features, tokens, mask)
    assert found.image.map(5, 5).shape == (2, 3, 5, 5)
    nn.functional.cross_entropy(found.scores, torch.arange(4)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def test_only_the_output_attention_is_passed_in() -> None:
    plain, sparse = tiny().eval(), tiny("sparsemax").eval()
    first, second = plain(*inputs()), sparse(*inputs())
    torch.testing.assert_close(first.input_weights, second.input_weights)
    torch.testing.assert_close(first.states, second.states)
    assert not torch.allclose(first.image.weights, second.image.weights)


def test_captions_share_an_image() -> None:
    model, (features, tokens, mask) = tiny("tvmax").eval(), inputs()
    one = ImageFeatures(features.values[:1], (2, 3))
    three = ImageFeatures(features.values[:1].expand(3, -1, -1), (2, 3))
    shared = model(one, tokens, mask, torch.tensor([0, 0, 0]))
    apart = model(three, tokens, mask)
    torch.testing.assert_close(shared.scores, apart.scores)
    torch.testing.assert_close(shared.image.weights, apart.image.weights)
    two = ImageFeatures(features.values[:2], (2, 3))
    swapped = model(two, tokens, mask, torch.tensor([1, 0, 1]))
    direct = model(ImageFeatures(features.values[[1, 0, 1]], (2, 3)), tokens, mask)
    torch.testing.assert_close(swapped.scores, direct.scores)


def test_padding_has_no_influence() -> None:
    model, (features, tokens, mask) = tiny("sparsemax").eval(), inputs()
    noise = ImageFeatures(torch.where(features.mask[..., None], features.values, 99.0), features.grid, features.mask)
    found = model(noise, torch.where(mask, tokens, 3), mask)
    torch.testing.assert_close(model(features, tokens, mask).scores, found.scores)


def test_drops_in_training_only() -> None:
    model, given = tiny(dropout=0.5), inputs()
    assert not torch.equal(model(*given).scores, model(*given).scores)
    model.eval()
    assert torch.equal(model(*given).scores, model(*given).scores)


@pytest.mark.parametrize("attend", ["softmax", "tvmax", "continuous-softmax"])
@pytest.mark.parametrize("beams", [1, 3])
def test_what_it_writes_has_the_probability_that_it_reads(attend: str, beams: int) -> None:
    model = tiny(attend).eval()
    features = ImageFeatures(torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(2)), grid=(3, 4))
    found = model.caption(features, bos=BOS, eos=EOS, forbidden=(BOS,), max_words=5, beams=beams)
    for b in range(3):
        for words, mask, value in zip(found.words[b], found.mask[b], found.log_probabilities[b], strict=True):
            count = int(mask.sum()) + int((words == EOS).any())
            tokens = torch.cat([torch.tensor([BOS]), words[: count - 1]])[None]
            one = ImageFeatures(features.values[b : b + 1], grid=(3, 4))
            read = model(one, tokens, torch.ones_like(tokens, dtype=torch.bool)).scores.log_softmax(-1)
            total = read.gather(-1, words[:count, None]).sum()
            torch.testing.assert_close(value, total, rtol=1e-4, atol=1e-4)


def test_batch_and_single_write_the_same() -> None:
    model, (features, _, _) = tiny("multimodal").eval(), inputs()
    whole = model.caption(features, bos=BOS, eos=EOS, max_words=6, beams=3)
    for b in range(3):
        one = ImageFeatures(features.values[b : b + 1], features.grid[b : b + 1], features.mask[b : b + 1])
        alone = model.caption(one, bos=BOS, eos=EOS, max_words=6, beams=3)
        length = alone.words.shape[-1]
        assert torch.equal(alone.words[0, 0], whole.words[b, 0, :length])
        assert not whole.mask[b, 0, length:].any()


def test_options_are_passed_to_the_search() -> None:
    model, (features, _, _) = tiny().eval(), inputs()
    with torch.no_grad():
        model.next_word.bias[3] += 50
    greedy = {"bos": BOS, "eos": EOS, "max_words": 6}
    assert model.caption(features, **greedy).words.unique().tolist() == [3]
    assert 3 not in model.caption(features, **greedy, forbidden=(3,)).words
    assert (model.caption(features, **greedy, no_repeat=1).words == 3).sum(-1).max() == 1
    penalised = model.caption(features, **greedy, beams=2, length_penalty=1.0)
    torch.testing.assert_close(penalised.scores, penalised.log_probabilities / 6)


def test_draws_are_repeatable() -> None:
    model, (features, _, _) = tiny().eval(), inputs()

    def draw(seed: int, **options) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return model.sample(features, bos=BOS, eos=EOS, count=8, generator=generator, **options).words

    assert draw(0).shape[:2] == (3, 8)
    assert torch.equal(draw(0), draw(0))
    assert not torch.equal(draw(0), draw(1))
    assert draw(0, max_words=2).shape[-1] <= 2
    assert 3 not in draw(0, forbidden=(3,))
    # near temperature zero all draws are the greedy caption
    cold = draw(0, temperature=1e-4)
    assert (cold == cold[:, :1]).all()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([[True, True], [False, False]], "padding at the end only, got a masked token"),
        ([[True, True], [False, True]], "padding at the end only, got a masked token"),
    ],
)
def test_refuses_captions_without_a_first_word(mask: list, message: str) -> None:
    features = ImageFeatures(torch.zeros(2, 4, 5), grid=(2, 2))
    with pytest.raises(ShapeError, match=message):
        tiny()(features, torch.zeros(2, 2, dtype=torch.long), torch.tensor(mask))


def test_refuses_tokens_of_another_shape() -> None:
    features = ImageFeatures(torch.zeros(2, 4, 5), grid=(2, 2))
    with pytest.raises(ShapeError, match=r"Captioner: expected tokens \(B, T\)"):
        tiny()(features, torch.zeros(2, dtype=torch.long), torch.ones(2, dtype=torch.bool))


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    model, other = tiny("tvmax").eval(), tiny("tvmax").eval()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    torch.testing.assert_close(other(*inputs()).scores, model(*inputs()).scores, rtol=0, atol=0)


def test_learns_captions_by_heart() -> None:
    torch.manual_seed(0)
    model = Captioner(StoredFeatures(5), mechanism("sparsemax"), vocabulary=V, word_dim=8, hidden=24)
    features = ImageFeatures(torch.randn(8, 6, 5), grid=(2, 3))
    said = torch.randint(2, V, (8, 4))
    tokens = torch.cat([torch.full((8, 1), BOS), said], 1)
    targets = torch.cat([said, torch.full((8, 1), EOS)], 1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(features, tokens, mask).scores, targets.flatten()).backward()
        optimiser.step()
    found = model.eval().caption(features, bos=BOS, eos=EOS, max_words=8)
    assert torch.equal(found.words[:, 0], targets)
