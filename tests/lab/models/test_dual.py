"""The dual encoder: pooling, the bag of words, pretrained states, and its part in other matchers."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from foveate.attention import mechanism
from foveate.errors import ShapeError
from foveate.lab.encoders import BagOfWords, Standardise, StoredFeatures, WordsInContext
from foveate.lab.features import ImageFeatures
from foveate.lab.models import SCAN, Dual, DualSettings, FragmentMatcher, SCANSettings

V, S = 12, 5


def words(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    tokens = torch.randint(4, V, (count, 6))
    tokens[:, 0] = 2
    return tokens, torch.arange(6)[None] < torch.tensor([6, 4, 3])[:count, None]


def features(N: int = 4) -> ImageFeatures:
    return ImageFeatures(torch.randn(2, N, 6), grid=(N, 1))


def test_standardising_collects_the_moments_of_all_batches() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(60, 3) * 3 + 7, Standardise(3)
    for part in x.split([1, 19, 40]):
        layer(part)
    torch.testing.assert_close(layer.mean, x.mean(0))
    torch.testing.assert_close(layer.variance, x.var(0, correction=0))
    found = layer.eval()(x)
    assert found.mean(0).abs().max() < 1e-5
    torch.testing.assert_close(layer(x), found)
    assert layer.count == 60
    masked = Standardise(3)
    masked(x[None], torch.arange(60)[None] < 20)
    torch.testing.assert_close(masked.mean, x[:20].mean(0))


def test_the_vector_of_an_image_is_the_projected_mean_and_maximum() -> None:
    torch.manual_seed(0)
    model, images = Dual(BagOfWords(V, 4, 8), StoredFeatures(6)).eval(), features()
    pooled = torch.cat([images.values.mean(1), images.values.amax(1)], -1)
    expected = model.pooled.project((pooled.sign() * pooled.abs().sqrt()) / (1 + 1e-5))
    found = model.embed_image(images).values
    torch.testing.assert_close(found[:, 0], functional.normalize(expected, dim=-1))
    before = model.embed_image(ImageFeatures(pooled[:, None], grid=(1, 1))).values
    torch.testing.assert_close(found, before)


def test_masked_locations_have_no_part() -> None:
    torch.manual_seed(0)
    model, images = Dual(BagOfWords(V, 4, 8), StoredFeatures(6)).eval(), features()
    mask = torch.tensor([[True, True, False, False], [True, True, True, True]])
    some = model.embed_image(ImageFeatures(images.values, mask=mask)).values
    alone = model.embed_image(ImageFeatures(images.values[:1, :2])).values
    torch.testing.assert_close(some[:1], alone)


def test_special_tokens_and_padding_have_no_part_in_a_bag() -> None:
    tokens, mask = words()
    bag = BagOfWords(V, 4, 8)
    found = bag(tokens, mask)
    expected = bag.project(torch.stack([bag.words(t[m][1:]).sum(0) for t, m in zip(tokens, mask, strict=True)]))
    torch.testing.assert_close(found, expected)


def test_states_add_to_the_bag_and_are_missed_when_they_are_not_there() -> None:
    tokens, mask = words()
    bag = BagOfWords(V, 4, 8, states=S).eval()
    states = torch.randn(3, 6, S)
    other = states.clone()
    other[~mask] = 9.0
    torch.testing.assert_close(bag(tokens, mask, states), bag(tokens, mask, other))
    assert not torch.allclose(bag(tokens, mask, states), bag(tokens, mask, -states))
    with pytest.raises(ShapeError, match=r"BagOfWords: expected states \(3, 6, 'S'\), got none"):
        bag(tokens, mask)


def test_states_of_words() -> None:
    tokens, mask = words()
    text = WordsInContext(V, 4, 8, states=S).eval()
    states = torch.randn(3, 6, S)
    encoded = text(tokens, mask, states)
    expected = text.project(text.words(tokens)) + text.project_states(states / (1 + 1e-5))
    torch.testing.assert_close(encoded.states, expected.where(mask[..., None], 0))


def test_the_whole_is_added_to_the_score_of_the_words() -> None:
    torch.manual_seed(0)
    settings = SCANSettings(hidden=8, roots=True, whole=DualSettings(hidden=6))
    model = settings.build(V, 4, StoredFeatures(6), mechanism("softmax")).eval()
    assert isinstance(model, FragmentMatcher)
    with torch.no_grad():
        model.balance.fill_(0.7)
    (tokens, mask), images = words(), features()
    seen, read = model.embed_image(images), model.embed_text(tokens, mask)
    without = SCAN(mechanism("softmax"))(seen.__class__(seen.values, grid=(4, 1)), read.__class__(read.values, mask))
    torch.testing.assert_close(model(images, tokens, mask), without + 0.7 * model.whole(images, tokens, mask))
    with pytest.raises(ValueError, match="expected text=minilm if the whole reads its states, got 'gru'"):
        SCANSettings(whole=DualSettings(text="minilm"))
