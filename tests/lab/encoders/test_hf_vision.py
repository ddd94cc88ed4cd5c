"""Vision models of `transformers`, tiny and with random weights, saved to a directory and loaded from it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.errors import DataError, MissingExtra, ShapeError
from foveate.lab.encoders import HFVision, encoder_of, pretrained_encoder
from foveate.lab.encoders.hf_vision import _own_size, _token_grid
from foveate.lab.encoders.pretrained import describe_encoder

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
TEXT = {**SMALL, "vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
FAMILIES = {
    "ViT": (VISION, (4, 4), 16),
    "Dinov2": ({**VISION, "intermediate_size": None, "mlp_ratio": 2}, (4, 4), 16),
    "Dinov2WithRegisters": (
        {**VISION, "intermediate_size": None, "mlp_ratio": 2, "num_register_tokens": 3},
        (4, 4),
        16,
    ),
    "CLIP": ({"text_config": TEXT, "vision_config": VISION}, (4, 4), 16),
    "ResNet": ({"embedding_size": 8, "hidden_sizes": [8, 24], "depths": [1, 1]}, (4, 4), 24),
    "ConvNext": ({"hidden_sizes": [8, 24], "depths": [1, 1], "num_stages": 2}, (4, 4), 24),
    "Swin": ({"embed_dim": 8, "depths": [1, 1], "num_heads": [2, 2], "image_size": 32, "window_size": 4}, (4, 4), 16),
}


def saved(directory: Path, family: str) -> Path:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    options = {key: value for key, value in FAMILIES[family][0].items() if value is not None}
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**options))
    model.save_pretrained(directory)
    settings = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.5, 0.6, 0.7], "size": {"height": 32, "width": 32}}
    (directory / "preprocessor_config.json").write_text(json.dumps({**settings, "resample": 2}))
    return directory


def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)


@pytest.mark.parametrize("family", FAMILIES)
def test_families(tmp_path: Path, family: str) -> None:
    _, grid, dim = FAMILIES[family]
    encoder = pretrained_encoder(f"hf:{saved(tmp_path, family)}")
    assert isinstance(encoder, HFVision)
    features = encoder.encode([image(), image()])
    assert features.grid == grid
    assert features.values.shape == (2, grid[0] * grid[1], dim)
    assert encoder.dim == dim
    large = pretrained_encoder(encoder.name, size=64).encode([image()])
    assert large.grid == (2 * grid[0], 2 * grid[1])


def test_preprocessing_is_the_models_own(tmp_path: Path) -> None:
    prepare = HFVision(str(saved(tmp_path, "ViT"))).preprocess
    assert (prepare.size, prepare.mean, prepare.std, prepare.resample) == (
        (32, 32),
        (0.1, 0.2, 0.3),
        (0.5, 0.6, 0.7),
        "bilinear",
    )


def test_tokens_without_a_place_are_dropped(tmp_path: Path) -> None:
    encoder = HFVision(str(saved(tmp_path, "Dinov2WithRegisters")))
    x = encoder.preprocess(image())[None]
    with torch.no_grad():
        state = encoder.network(pixel_values=x).last_hidden_state
        assert state.shape[1] == 1 + 3 + 16
        torch.testing.assert_close(encoder(x).values, state[:, 4:])


def test_the_description_builds_the_same_encoder(tmp_path: Path) -> None:
    encoder = pretrained_encoder(f"hf:{saved(tmp_path, 'ViT')}")
    about = describe_encoder(encoder)
    assert torch.equal(encoder_of(about).encode([image()]).values, encoder.encode([image()]).values)
    saved(tmp_path, "Dinov2")
    with pytest.raises(DataError, match="encoder_of: expected 'hf:"):
        encoder_of(about)


def test_a_model_without_preprocessing_of_images(tmp_path: Path) -> None:
    (saved(tmp_path, "ViT") / "preprocessor_config.json").write_text('{"feature_size": 1}')
    with pytest.raises(DataError, match="expected image_mean, image_std and size in the preprocessor_config"):
        HFVision(str(tmp_path))


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r'pip install "foveate\[hf\]"'):
        HFVision("any/model")


@pytest.mark.parametrize(
    ("tokens", "size", "patch", "grid", "others"),
    [
        (50, (224, 224), 32, (7, 7), 1),
        (49, (224, 224), 32, (7, 7), 0),
        (261, (224, 224), 14, (16, 16), 5),
        (49, (224, 224), 4, (7, 7), 0),
        (28, (128, 224), [32, 32], (4, 7), 0),
        (18, (96, 192), 16, (3, 6), 0),
    ],
)
def test_grids_of_tokens(tokens: int, size: tuple[int, int], patch: object, grid: tuple[int, int], others: int) -> None:
    assert _token_grid(tokens, size, patch) == (grid, others)


def test_tokens_on_no_grid() -> None:
    with pytest.raises(ShapeError, match=r"expected 49 tokens or an integer fraction for \(224, 224\) pixels"):
        _token_grid(40, (224, 224), 32)
    with pytest.raises(ShapeError, match="expected a model with a patch size or a grid as output"):
        _token_grid(40, (224, 224), None)


def test_sizes_as_the_hub_writes_them() -> None:
    assert _own_size(224) == (224, 224)
    assert _own_size({"height": 10, "width": 20}) == (10, 20)
    assert _own_size({"shortest_edge": 256}) == (256, 256)
