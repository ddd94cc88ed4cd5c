"""The laws of every model: gradients everywhere, saved and loaded the same, eight samples learnt by heart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from foveate.attention import MECHANISMS, mechanism
from foveate.data.features import ImageFeatures
from foveate.encoders import StoredFeatures, TextEncoder
from foveate.models import MCAN, MODELS, Answered, ReasoningDAN

B, N, T, D, A = 8, 12, 6, 10, 4


def _mcan(attend: str) -> nn.Module:
    text = TextEncoder(20, word_dim=8, hidden=16)
    return MCAN(text, StoredFeatures(D), mechanism(attend), answers=A, heads=4, layers=2, dropout=0.0)


def _rdan(attend: str) -> nn.Module:
    text = TextEncoder(20, word_dim=8, hidden=16, directions="sum")
    return ReasoningDAN(text, StoredFeatures(D), mechanism(attend), mechanism("softmax"), answers=A, dropout=0.0)


ANSWERING: dict[str, Callable[[str], nn.Module]] = {"mcan": _mcan, "r-dan": _rdan}


def build(name: str, attend: str = "softmax") -> nn.Module:
    torch.manual_seed(0)
    return ANSWERING[name](attend)


def inputs() -> tuple[ImageFeatures, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    lengths = torch.randint(1, T + 1, (B,))
    features = ImageFeatures(torch.randn(B, N, D), grid=(3, 4))
    return features, torch.randint(4, 20, (B, T)), torch.arange(T)[None] < lengths[:, None]


def test_every_model_is_here() -> None:
    assert set(ANSWERING) <= set(MODELS)


@pytest.mark.parametrize("attend", MECHANISMS)
@pytest.mark.parametrize("name", ANSWERING)
def test_takes_every_attention_and_every_parameter_gets_a_gradient(name: str, attend: str) -> None:
    model = build(name, attend)
    answered = model(*inputs())
    assert isinstance(answered, Answered)
    assert answered.image[-1].map(5, 5).shape == (B, 5, 5)
    functional.cross_entropy(answered.scores, torch.arange(B) % A).backward()
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
        assert parameter.grad.isfinite().all(), label
    still = {label for label, p in model.named_parameters() if not p.grad.any() and not _shift(label)}
    assert not still


def _shift(label: str) -> bool:
    """Weights whose gradient is zero because attention does not change when all scores are shifted."""
    return label.endswith(("scores.3.bias", "scores.bias"))


@pytest.mark.parametrize("name", ANSWERING)
def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    model, other = build(name).eval(), build(name, "tvmax").eval()
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    attended = build(name, "tvmax").eval()
    attended.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(*inputs()).scores, attended(*inputs()).scores, rtol=0, atol=0)


@pytest.mark.parametrize("name", ANSWERING)
def test_learns_eight_samples_by_heart(name: str) -> None:
    model, given, classes = build(name), inputs(), torch.randint(A, (B,), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(60):
        optimiser.zero_grad()
        functional.cross_entropy(model(*given).scores, classes).backward()
        optimiser.step()
    assert (model.eval()(*given).scores.argmax(-1) == classes).all()


@pytest.mark.parametrize("name", ANSWERING)
def test_examples_do_not_see_each_other(name: str) -> None:
    model, (features, tokens, mask) = build(name).eval(), inputs()
    whole = model(features, tokens, mask).scores
    alone = model(ImageFeatures(features.values[2:3], (3, 4)), tokens[2:3], mask[2:3]).scores
    torch.testing.assert_close(whole[2:3], alone, rtol=1e-4, atol=1e-5)
