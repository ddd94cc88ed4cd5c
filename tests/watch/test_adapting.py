"""Adapting a trained model to another transform: calibration, distillation, resuming, restoring, saving."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="needs the extra hf")

import transformers

import foveate as fv
from foveate.errors import DataError

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}


def vit() -> nn.Module:
    """A small ViT with large weights, whose attention is far from uniform."""
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=4, initializer_range=0.3)
    model: nn.Module = transformers.ViTModel(config).eval()
    return model


def images(count: int = 24) -> list[Tensor]:
    return list(torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(1)))


@torch.no_grad()
def states(model: nn.Module) -> Tensor:
    return model(pixel_values=torch.stack(images())).last_hidden_state


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def weights(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_calibration_brings_the_outputs_closer_and_distillation_closer_still() -> None:
    model = vit()
    wanted = states(model)
    with fv.hf.use(model, "entmax"):
        plain = distance(states(model), wanted)
    with fv.hf.adapt(model, "entmax", images(), steps=0, show=False):
        calibrated = distance(states(model), wanted)
    with fv.hf.adapt(model, "entmax", images(), steps=60, lr=1e-3, show=False):
        distilled = distance(states(model), wanted)
    assert calibrated < 0.6 * plain
    assert distilled < 0.85 * calibrated


def test_calibration_finds_the_factor_that_was_planted() -> None:
    model = vit()
    before = copy.deepcopy(model)
    with fv.hf.adapt(model, "softmax", images(), steps=0, show=False):
        assert distance(weights(model), weights(before)) < 1e-6  # softmax is nearest to softmax at a factor of one


def test_restore_brings_back_weights_and_attention() -> None:
    model = vit()
    wanted, before = states(model), weights(model).clone()
    handle = fv.hf.adapt(model, "sparsemax", images(), steps=2, show=False)
    assert not torch.equal(weights(model), before)
    handle.restore()
    assert torch.equal(weights(model), before)
    assert torch.equal(states(model), wanted)
    assert not model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())


def test_it_continues_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from foveate.watch import adapting

    monkeypatch.setattr(adapting, "SAVE_EVERY", 2)
    whole = vit()
    fv.hf.adapt(whole, "entmax", images(), steps=6, show=False)

    difference, calls = adapting._difference, []

    def stop(*arguments: object) -> Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return difference(*arguments)

    model = vit()
    before = weights(model).clone()
    monkeypatch.setattr(adapting, "_difference", stop)
    with pytest.raises(KeyboardInterrupt):
        fv.hf.adapt(model, "entmax", images(), steps=6, show=False, directory=tmp_path)
    assert torch.equal(weights(model), before)  # nothing half-adapted is left
    calls[:] = [1] * 5
    fv.hf.adapt(model, "entmax", images(), steps=6, show=False, directory=tmp_path)
    assert len(calls) == 5 + 2
    assert torch.equal(weights(model), weights(whole))


def test_a_state_of_other_settings_is_an_error(tmp_path: Path) -> None:
    fv.hf.adapt(vit(), "entmax", images(), steps=1, show=False, directory=tmp_path)
    with pytest.raises(DataError, match=r"adapt: expected the state of this model with .*; pass another directory"):
        fv.hf.adapt(vit(), "entmax", images(), steps=1, lr=2e-4, show=False, directory=tmp_path)


def test_an_adapted_model_is_saved_and_loaded(tmp_path: Path) -> None:
    model = vit()
    fv.hf.adapt(model, "entmax", images(), steps=1, show=False, alpha=1.5)
    wanted = states(model)
    model.save_pretrained(tmp_path)
    name = fv.hf.register("entmax", alpha=1.5)
    loaded = transformers.ViTModel.from_pretrained(tmp_path, attn_implementation=name).eval()
    torch.testing.assert_close(states(loaded), wanted, rtol=0, atol=1e-5)


def test_chosen_layers_only() -> None:
    model = vit()
    handle = fv.hf.adapt(model, "entmax", images(), steps=0, layers=[2], show=False)
    assert len(handle.names) == 1
    assert ".2." in handle.names[0]


def test_a_processor_reads_paths_and_arrays(tmp_path: Path) -> None:
    from PIL import Image

    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    Image.new("RGB", (40, 40), (200, 10, 10)).save(tmp_path / "a.png")
    pictures = [tmp_path / "a.png", Image.new("RGB", (32, 32)), Image.new("RGB", (50, 32))]
    handle = fv.hf.adapt(vit(), "entmax", pictures, processor=processor, steps=1, batch=2, show=False)
    assert len(handle.names) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"images": []}, "adapt: expected at least one image, got none; pass images"),
        ({"layers": [9]}, "adapt: expected attention modules among layers"),
    ],
)
def test_unusable_arguments_leave_the_model(arguments: dict[str, object], message: str) -> None:
    model = vit()
    before = weights(model).clone()
    with pytest.raises(ValueError, match=message):
        fv.hf.adapt(model, "entmax", **{"images": images(), "show": False, **arguments})  # type: ignore[arg-type]
    assert torch.equal(weights(model), before)


def test_text_models_are_sent_to_their_vision_tower() -> None:
    model = transformers.BertModel(transformers.BertConfig(**SMALL, vocab_size=10))
    with pytest.raises(TypeError, match="adapt: expected a vision model, whose input is pixel_values, got BertModel"):
        fv.hf.adapt(model, "entmax", images())
