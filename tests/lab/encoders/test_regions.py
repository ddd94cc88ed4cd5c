"""Regions: boxes of proposers with pooled features, in stores and for new images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foveate.lab.data.feature_store import stack_features
from foveate.lab.data.samples import ImageRecord
from foveate.lab.encoders import ImageEncoder, RegionEncoder, extract_features
from foveate.lab.encoders.regions import COUNT, Detector, Proposer, SelectiveSearch
from foveate.lab.features import ImageFeatures
from foveate.ops.boxes import box_area, box_iou, pool_boxes
from tests.lab.test_extract import TinyEncoder


class Halves(Proposer):
    """The whole image, and its left half if it is bright."""

    name = "halves"

    def boxes(self, pixels: torch.Tensor) -> torch.Tensor:
        whole, left = [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.5, 1.0]
        return torch.tensor([whole, left] if pixels.float().mean() > 127 else [whole])


def tiny_regions() -> RegionEncoder:
    return RegionEncoder(Halves(), TinyEncoder(), "regions").eval()


def blank(value: int) -> np.ndarray:
    return np.full((16, 24, 3), value, np.uint8)


def test_features_are_pooled_per_box_and_padding_is_masked() -> None:
    encoder = tiny_regions()
    found = encoder.encode([blank(200), blank(20)])
    maps = encoder.features.encode([blank(200), blank(20)])
    assert found.grid is None
    assert found.mask is not None
    assert found.mask.tolist() == [[True, True], [True, False]]
    assert found.boxes is not None
    torch.testing.assert_close(found.values[0], pool_boxes(maps.values[0], (2, 3), found.boxes[0]))
    torch.testing.assert_close(found.values[1, 0], maps.values[1].mean(0))


def test_a_store_keeps_the_boxes(tmp_path: Path) -> None:
    images = [ImageRecord("bright", lambda: blank(200)), ImageRecord("dark", lambda: blank(20))]
    store = extract_features(tiny_regions(), images, tmp_path / "regions.h5")
    assert [len(record.values) for record in store] == [2, 1]
    assert store.get("bright").grid is None
    assert store.get("bright").boxes.tolist() == [[0, 0, 1, 1], [0, 0, 0.5, 1]]  # type: ignore[union-attr]
    batch = stack_features(store)
    assert isinstance(batch, ImageFeatures)
    assert batch.mask is not None


def test_the_digest_changes_with_either_part() -> None:
    class Others(Halves):
        name = "others"

    features: ImageEncoder = TinyEncoder()
    same = RegionEncoder(Halves(), features, "regions").weights()
    assert same == RegionEncoder(Halves(), TinyEncoder(), "regions").weights()
    assert same != RegionEncoder(Others(), features, "regions").weights()
    assert same != RegionEncoder(Halves(), TinyEncoder(seed=1), "regions").weights()


def test_selective_search_finds_a_disc() -> None:
    pytest.importorskip("cv2", reason="needs the extra regions")
    y, x = np.mgrid[:200, :300]
    image = np.full((200, 300, 3), 40, np.uint8)
    image[(x - 200) ** 2 + (y - 90) ** 2 < 50**2] = (220, 60, 30)
    search, pixels = SelectiveSearch(), torch.from_numpy(image).movedim(-1, 0)
    found = search.boxes(pixels)
    assert found[0].tolist() == [0, 0, 1, 1]
    assert len(found) <= COUNT
    assert (box_area(found) > 0).all()
    disc = torch.tensor([[150 / 300, 40 / 200, 250 / 300, 140 / 200]])
    assert box_iou(found, disc).max() > 0.8
    assert torch.equal(found, search.boxes(pixels))
    assert len(SelectiveSearch(count=2).boxes(pixels)) <= 2


@pytest.mark.parametrize("kind", ["yolos", "rt_detr"])
def test_boxes_of_a_detector(kind: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    torch.manual_seed(0)
    if kind == "yolos":
        config = transformers.YolosConfig(
            hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=[64, 64],
            num_detection_tokens=10, use_mid_position_embeddings=False,
        )  # fmt: skip
    else:
        backbone = transformers.RTDetrResNetConfig(
            embedding_size=8, hidden_sizes=[8, 8, 8, 8], depths=[1, 1, 1, 1], layer_type="basic",
            out_features=["stage2", "stage3", "stage4"],
        )  # fmt: skip
        config = transformers.RTDetrConfig(
            backbone_config=backbone, d_model=16, encoder_hidden_dim=16, encoder_in_channels=[8, 8, 8],
            encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=1, decoder_attention_heads=2, num_queries=10,
            encoder_attention_heads=2, decoder_in_channels=[16, 16, 16],
        )  # fmt: skip
    transformers.AutoModelForObjectDetection.from_config(config).save_pretrained(tmp_path)
    settings = '{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "size": {"height": 64, "width": 64}}'
    (tmp_path / "preprocessor_config.json").write_text(settings)
    detector = Detector(str(tmp_path), count=4)
    boxes = detector.boxes(torch.randint(0, 256, (3, 50, 70), dtype=torch.uint8))
    assert 1 <= len(boxes) <= 4
    assert (boxes >= 0).all()
    assert (boxes <= 1).all()
    assert (box_area(boxes) > 0).all()
    off_diagonal = box_iou(boxes, boxes) - torch.eye(len(boxes))
    assert off_diagonal.max() <= 0.7
