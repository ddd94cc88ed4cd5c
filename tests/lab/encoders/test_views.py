"""Views of images: what they show, how a store keeps them, and that training reads all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foveate.apps.cli.extract import extract
from foveate.errors import DataError
from foveate.lab.data.feature_store import FeatureStore
from foveate.lab.data.samples import Caption, ImageRecord, Phrase
from foveate.lab.encoders import extract_features, image_views
from foveate.lab.encoders.views import MOST, array_of_view, boxes_of_view, caption_of_view
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.images import Stored
from foveate.ops.boxes import Box
from tests.lab.test_extract import TinyEncoder, save_images


def ramp() -> np.ndarray:
    return np.arange(20 * 30 * 3, dtype=np.int64).reshape(20, 30, 3).astype(np.uint8)


def test_views_are_mirror_images_and_crops() -> None:
    views = image_views([ImageRecord("a", ramp)], 6)
    whole, mirrored, crop, mirrored_crop, corner, _ = (view.pixels() for view in views)
    assert [view.id for view in views] == ["a", "a#1", "a#2", "a#3", "a#4", "a#5"]
    assert np.array_equal(mirrored, whole[:, ::-1])
    assert np.array_equal(crop, whole[2:18, 3:27])
    assert np.array_equal(mirrored_crop, crop[:, ::-1])
    assert np.array_equal(corner, whole[:16, :24])


def test_all_views_differ() -> None:
    pixels = [view.pixels().tobytes() for view in image_views([ImageRecord("a", ramp)], MOST)]
    assert len(set(pixels)) == MOST


@pytest.mark.parametrize("view", range(MOST))
def test_boxes_and_masks_follow_their_view(view: int) -> None:
    box = Box(0.2, 0.3, 0.55, 0.9)
    mask = np.zeros((100, 100), bool)
    mask[30:90, 20:55] = True
    [found] = boxes_of_view([box], view)
    shown = array_of_view(mask, view)
    inside = np.zeros_like(shown)
    H, W = shown.shape
    inside[round(found.y0 * H) : round(found.y1 * H), round(found.x0 * W) : round(found.x1 * W)] = True
    assert np.array_equal(inside, shown)


def test_phrases_of_a_view_keep_what_it_shows() -> None:
    seen, hidden = (
        Phrase(0, 1, "a", (), (Box(0.4, 0.4, 0.6, 0.6),)),
        Phrase(1, 2, "b", (), (Box(0.0, 0.0, 0.05, 0.05),)),
    )
    caption = Caption(1, "a", "cat dog", ("cat", "dog"), (seen, hidden))
    assert caption_of_view(caption, 0) is caption
    one, other = caption_of_view(caption, 2).phrases
    assert one.boxes[0] == pytest.approx((0.375, 0.375, 0.625, 0.625))
    assert (other.boxes, other.unlinked) == ((), "outside of the view")


@pytest.mark.parametrize(("count", "message"), [(0, "views >= 1"), (MOST + 1, f"at most {MOST} views")])
def test_wrong_number_of_views(count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_views([], count)


def test_a_store_of_views_is_the_same_after_an_interruption(tmp_path: Path) -> None:
    save_images(tmp_path / "photos", 3)
    from foveate.lab.encoders import directory_images

    images = image_views(directory_images(tmp_path / "photos"), 4)
    whole = extract_features(TinyEncoder(), images, tmp_path / "a.h5", batch_size=2)
    encoder = TinyEncoder()
    assert encoder.batches == []
    again = extract_features(encoder, images, tmp_path / "a.h5", batch_size=2)
    assert encoder.batches == []
    assert again.fingerprint == whole.fingerprint
    assert len(whole) == 12
    assert not np.array_equal(whole.get("image-00").values, whole.get("image-00", 1).values)
    with pytest.raises(DataError, match=r"got 'image-00#4'; extract again with --views 5"):
        whole.get("image-00", 4)


def test_the_option_of_extract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate.apps.cli.extract.pretrained_encoder", lambda name, size=None: TinyEncoder())
    save_images(tmp_path / "photos", 2)
    store = extract("tiny", tmp_path / "photos", tmp_path / "out.h5", views=2, workers=0)
    assert store.ids == ["image-00", "image-00#1", "image-01", "image-01#1"]


@pytest.mark.parametrize("name", ["vqa-mcan-scenes", "captioning-lstm-scenes", "matching-scan-scenes"])
def test_training_reads_every_view_and_evaluation_the_image(name: str, tmp_path: Path) -> None:
    recipe = RECIPES[name]()
    settings = replace(recipe.settings, limit=3)
    images = [image for split in ("train", "val") for image in settings.read(split, None).images]
    extract_features(TinyEncoder(), image_views(images, 2), tmp_path / "features.h5")
    kind = TASKS[recipe.task]
    one = kind.from_data(replace(settings, images=Stored("features.h5")), tmp_path)
    two = kind.from_data(replace(settings, images=Stored("features.h5", views=2)), tmp_path)
    plain, both = one.examples("train", tmp_path), two.examples("train", tmp_path)
    assert len(both) == 2 * len(plain)
    assert len(two.examples("val", tmp_path)) == len(one.examples("val", tmp_path))
    store, last = FeatureStore(tmp_path / "features.h5"), both[len(plain)]
    assert np.array_equal(both[0].image.values, plain[0].image.values)
    assert last.image.id == f"{plain[0].image.id}#1"
    assert np.array_equal(last.image.values, store.get(plain[0].image.id, 1).values)
