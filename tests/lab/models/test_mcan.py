"""MCAN against a second reading of its description, written with other parts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.errors import DataError
from foveate.lab.encoders import ConvEncoder, StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.models import MCAN, MCANSettings


def tiny(attend: str = "softmax", *, dropout: float = 0.0, **options: int) -> MCAN:
    torch.manual_seed(0)
    text = TextEncoder(20, word_dim=6, hidden=16)
    return MCAN(
        text, StoredFeatures(10), mechanism(attend), answers=5, dropout=dropout, **{"heads": 4, "layers": 2, **options}
    )


def inputs(B: int = 3, N: int = 6, T: int = 7) -> tuple[ImageFeatures, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    mask = torch.arange(T)[None] < torch.tensor([T, 4, 1])[:B, None]
    return ImageFeatures(torch.randn(B, N, 10), grid=(2, 3)), torch.randint(4, 20, (B, T)), mask


def test_small_setting_has_the_published_number_of_parameters() -> None:
    model = MCAN(TextEncoder(100, hidden=512), StoredFeatures(2048), mechanism("softmax"), answers=3129)
    count = sum(p.numel() for p in model.parameters()) - model.text.words.weight.numel()
    assert count == 51_640_891  # 51.6 million


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_attention_adds_no_parameters(name: str) -> None:
    assert sum(p.numel() for p in tiny(name).parameters()) == sum(p.numel() for p in tiny().parameters())


# --- a second reading of Yu et al. 2019, one question at a time, without masks: padding is cut off instead


def norm(x: torch.Tensor, weights: nn.LayerNorm) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return weights.weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt() + weights.bias


def affine(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    return x @ layer.weight.T + layer.bias


def heads(queries: torch.Tensor, keys: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """Queries (Q, D) read keys (N, D), one head after the other."""
    D = queries.shape[-1]
    q, k, v = (
        x @ layer.in_proj_weight[i * D : (i + 1) * D].T + layer.in_proj_bias[i * D : (i + 1) * D]
        for i, x in enumerate((queries, keys, keys))
    )
    size, parts = D // layer.heads, []
    for m in range(layer.heads):
        own = slice(m * size, (m + 1) * size)
        weights = torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(size), -1)
        parts.append(weights @ v[:, own])
    return affine(torch.cat(parts, -1), layer.out_proj)


def feed(x: torch.Tensor, layer: nn.Sequential) -> torch.Tensor:
    return affine(affine(x, layer[0]).clamp(min=0), layer[3])


def flat(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    scores = affine(affine(x, layer.scores[0]).clamp(min=0), layer.scores[3])[:, 0]
    return affine(torch.softmax(scores, 0) @ x, layer.out)


def slow_scores(model: MCAN, features: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    y = model.text.recurrent(model.text.words(tokens)[None])[0][0]
    for layer in model.encoder:
        y = norm(y + heads(y, y, layer.attend), layer.joins[0].norm)
        y = norm(y + feed(y, layer.forward_layer), layer.joins[1].norm)
    x = affine(features, model.features)
    for layer in model.decoder:
        x = norm(x + heads(x, x, layer.attend), layer.joins[0].norm)
        x = norm(x + heads(x, y, layer.attend_words), layer.joins[1].norm)
        x = norm(x + feed(x, layer.forward_layer), layer.joins[2].norm)
    return affine(norm(flat(y, model.flat_question) + flat(x, model.flat_image), model.norm), model.answers)


def test_equals_the_second_reading() -> None:
    model = tiny(layers=3).double().eval()
    features, tokens, mask = inputs()
    features = ImageFeatures(features.values.double(), features.grid)
    scores = model(_as_is(model, features), tokens, mask).scores
    for b in range(3):
        slow = slow_scores(model, features.values[b], tokens[b, : int(mask[b].sum())])
        torch.testing.assert_close(scores[b], slow, rtol=1e-5, atol=1e-5)


def _as_is(model: MCAN, features: ImageFeatures) -> ImageFeatures:
    """Keep doubles: the stored encoder returns float32."""
    model.image.forward = lambda x: x
    return features


def test_masked_words_and_locations_have_no_influence() -> None:
    model = tiny().eval()
    features, tokens, mask = inputs()
    seen = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    grid = torch.tensor([[2, 3], [2, 2], [1, 2]])
    first = model(ImageFeatures(features.values, grid, seen), tokens, mask)
    noise = ImageFeatures(torch.where(seen[..., None], features.values, 99.0), grid, seen)
    second = model(noise, torch.where(mask, tokens, 3), mask)
    torch.testing.assert_close(first.scores, second.scores)
    alone = model(ImageFeatures(features.values[1:2, :4], (2, 2)), tokens[1:2, :4], mask[1:2, :4])
    torch.testing.assert_close(first.scores[1:2], alone.scores, rtol=1e-4, atol=1e-5)


def test_every_attention_is_returned() -> None:
    answered = tiny().eval()(*inputs())
    assert answered.scores.shape == (3, 5)
    assert answered.image[-1].map().shape == (3, 2, 3)
    assert answered.question[-1].weights.shape == (3, 7)
    shapes = {name: [tuple(a.weights.shape) for a in layers] for name, layers in answered.layers.items()}
    assert shapes == {"question": [(3, 4, 7, 7)] * 2, "image": [(3, 4, 6, 6)] * 2, "guided": [(3, 4, 6, 7)] * 2}


def test_only_the_attention_passed_in_changes_the_reading() -> None:
    softmax, tvmax = tiny("softmax").eval(), tiny("tvmax").eval()
    tvmax.load_state_dict(softmax.state_dict())
    a, b = softmax(*inputs()), tvmax(*inputs())
    torch.testing.assert_close(a.question[0].weights, b.question[0].weights)
    torch.testing.assert_close(a.layers["image"][1].weights, b.layers["image"][1].weights)
    assert not torch.allclose(a.image[0].weights, b.image[0].weights)


def test_questions_share_an_image() -> None:
    model, (features, tokens, mask) = tiny().eval(), inputs()
    index = torch.tensor([1, 1, 0])
    shared = model(features, tokens, mask, index).scores
    torch.testing.assert_close(shared, model(ImageFeatures(features.values[index], features.grid), tokens, mask).scores)


# --- the counter


def counting(bottlenecks: int = 2) -> MCAN:
    """With a counter whose vector is not zero."""
    model = tiny(counting=bottlenecks)
    nn.init.normal_(model.counter.out.weight)
    nn.init.normal_(model.counter.out.bias)
    return model.eval()


def slow_count(counter: nn.Module, x: torch.Tensor, q: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """One image (N, D) and one question (D,), cell by cell."""
    for part in counter.bottlenecks:
        u = x + affine(x * affine(q, part.question), part.modulated)
        inner = affine(u, part.narrow).clamp(min=0)
        around = torch.zeros_like(inner)
        for n in range(rows * columns):
            around[n] = part.around.bias
            for m in range(rows * columns):
                down, right = m // columns - n // columns, m % columns - n % columns
                if max(abs(down), abs(right)) <= 1:
                    around[n] += part.around.weight[:, :, down + 1, right + 1] @ inner[m]
        x = norm(x + affine(around.clamp(min=0), part.widen), part.norm)
    return affine(x.mean(0), counter.out)


def test_the_counter_equals_a_loop_over_cells() -> None:
    counter = counting().double().counter
    x, q = torch.randn(3, 6, 16, dtype=torch.float64), torch.randn(3, 16, dtype=torch.float64)
    with torch.no_grad():
        for b, whole in enumerate(counter(x, q, (2, 3))):
            torch.testing.assert_close(whole, slow_count(counter, x[b], q[b], 2, 3))


def test_the_counter_reads_each_image_on_its_own_grid() -> None:
    counter = counting().counter
    x, q = torch.randn(3, 6, 16), torch.randn(3, 16)
    grid = torch.tensor([[2, 3], [2, 2], [1, 2]])
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 2 + [False] * 4])
    whole = counter(torch.where(mask[..., None], x, 99.0), q, grid, mask)
    for b, (rows, columns) in enumerate(grid.tolist()):
        alone = counter(x[b : b + 1, : rows * columns], q[b : b + 1], (rows, columns))
        torch.testing.assert_close(whole[b : b + 1], alone, rtol=1e-4, atol=1e-5)


def test_a_masked_cell_is_as_beyond_the_border() -> None:
    counter, x, q = counting().counter, torch.randn(1, 6, 16), torch.randn(1, 16)
    seen = torch.tensor([[True, True, False, True, True, False]])  # the last column of 2 x 3
    cut = counter(x[:, seen[0]], q, (2, 2))
    torch.testing.assert_close(counter(x, q, (2, 3), seen), cut, rtol=1e-4, atol=1e-5)


def test_a_new_counter_changes_no_answer_and_a_trained_one_does() -> None:
    model, plain = tiny(counting=1).eval(), tiny().eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if "counter" not in name})
    torch.testing.assert_close(model(*inputs()).scores, plain(*inputs()).scores)
    assert not torch.allclose(counting(1)(*inputs()).scores, plain(*inputs()).scores)


def test_every_parameter_of_a_counter_gets_a_gradient() -> None:
    model = counting()
    model(*inputs()).scores.square().sum().backward()
    assert all((p.grad != 0).any() for p in model.counter.parameters())


def test_neighbours_count_only_for_the_counter() -> None:
    """Attention alone does not know which cells are neighbours."""
    features, tokens, mask = inputs()
    turned = ImageFeatures(features.values[:, [0, 2, 1, 4, 3, 5]], features.grid)
    torch.testing.assert_close(tiny().eval()(turned, tokens, mask).scores, tiny().eval()(*inputs()).scores)
    assert not torch.allclose(counting()(turned, tokens, mask).scores, counting()(*inputs()).scores)


def test_a_counter_needs_a_grid() -> None:
    features, tokens, mask = inputs()
    with pytest.raises(DataError, match="ModulatedCounter: expected features on rows and columns, got regions; set co"):
        counting()(ImageFeatures(features.values, None), tokens, mask)
    with pytest.raises(ValueError, match=r"MCAN: expected counting as a whole number >= 1, got 0"):
        tiny(counting=0)


def test_the_setting_builds_the_counter() -> None:
    text, image = {"vocabulary": 20, "word_dim": 6}, StoredFeatures(10)
    for counting in (None, 1, 3):
        model = MCANSettings(16, heads=2, layers=1, counting=counting).build(
            **text, image=image, attend=mechanism("softmax"), answers=5
        )
        assert (0 if model.counter is None else len(model.counter.bottlenecks)) == (counting or 0)


def test_reads_images_and_drops_only_in_training() -> None:
    text = TextEncoder(20, word_dim=6, hidden=16)
    model = MCAN(text, ConvEncoder((8, 8), size=16), mechanism("softmax"), answers=5, heads=2, layers=1, dropout=0.5)
    _, tokens, mask = inputs()
    images = torch.randn(3, 3, 16, 16)
    assert model(images, tokens, mask).image[0].grid == (4, 4)
    assert not torch.equal(model(images, tokens, mask).scores, model(images, tokens, mask).scores)
    model.eval()
    assert torch.equal(model(images, tokens, mask).scores, model(images, tokens, mask).scores)
