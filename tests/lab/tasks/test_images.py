"""How images reach a task: through an encoder that is trained or not, from a store, or through a frozen encoder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.errors import DataError
from foveate.lab.data.samples import Caption, Dataset, ImageRecord
from foveate.lab.encoders import ConvEncoder
from foveate.lab.encoders.image_encoder import SCENES_BLOCKS as BLOCKS
from foveate.lab.encoders.image_encoder import SCENES_CHANNELS as CHANNELS
from foveate.lab.encoders.image_encoder import load_scenes_weights
from foveate.lab.models import MCANSettings
from foveate.lab.tasks.images import Conv, Frozen, ImageReader, Stored, captioned_images, to_pixels
from foveate.lab.tasks.vqa import VQA
from foveate.lab.tasks.vqa.settings import VQASettings
from tests.lab.tasks.vqa.small import TINY, image, model_of

SETTINGS = VQASettings(
    model=MCANSettings(16, heads=2, layers=1), images=Conv(start="scenes"), word_dim=8, limit=4, min_count=1
)


def test_what_was_learnt_is_put_in_before_training() -> None:
    task = VQA.from_data(SETTINGS, None)
    model, known = task.build_model(), ConvEncoder(CHANNELS, blocks=BLOCKS)
    load_scenes_weights(known)
    task.initialise(model)
    torch.testing.assert_close(model.image.state_dict(), known.state_dict())
    plain = VQA.from_data(replace(SETTINGS, images=Conv()), None)
    model = plain.build_model()
    before = {name: tensor.clone() for name, tensor in model.image.state_dict().items()}
    plain.initialise(model)
    torch.testing.assert_close(model.image.state_dict(), before)


def test_an_untrained_encoder_gets_no_gradient() -> None:
    for trained in (True, False):
        task = VQA.from_data(replace(SETTINGS, images=Conv(trained=trained)), None)
        model = task.build_model()
        task.loss(model, task.collate([task.examples("train", None)[0]]), 0).total.backward()
        assert all((parameter.grad is not None) == trained for parameter in model.image.parameters())


def test_a_frozen_encoder_makes_the_features_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from foveate.lab import encoders

    torch.manual_seed(0)
    encoder, calls = ConvEncoder((8, 8, 8, 8), blocks=0).eval(), []
    monkeypatch.setattr(encoder, "name", "made-up")
    row = encoders.Encoder(lambda **options: encoder, reads="images", pretrained=True)
    monkeypatch.setitem(encoders.ENCODERS, "made-up", row)
    monkeypatch.setattr(encoder, "encode", lambda images: calls.append(1) or ConvEncoder.encode(encoder, images))
    frozen = VQA.from_data(replace(TINY, images=Frozen("made-up")), None)
    examples = frozen.examples("train", None)
    batch = frozen.collate([examples[0], examples[0], examples[1]])
    assert len(calls) == 2
    assert batch.images.values.shape == (3, 49, 8)
    model = model_of(frozen).eval()
    assert not [name for name, _ in model.named_parameters() if name.startswith("image.")]
    assert VQA.from_vocabulary(frozen.settings, json.loads(json.dumps(frozen.vocabulary()))) == frozen
    answer = frozen.predictor(model).answer(image(), "Is it red?")
    assert answer.attention.map().shape == (1, 7, 7)
    graph = frozen.predictor(model).graph()  # reads pixels: the encoder is part of it
    assert graph.inputs[0].dtype == torch.uint8
    pixels = encoder.preprocess.pixels(image())
    tokens, mask = frozen.inputs.encode([("is", "it", "red")], frozen.settings.max_tokens)
    T = graph.inputs[1].shape[1]
    padded = [torch.nn.functional.pad(part, (0, T - part.shape[1])) for part in (tokens, mask)]
    scores, weights = graph.module(pixels[None], *padded)
    assert torch.allclose(weights, answer.attention.weights, atol=1e-5)
    assert frozen.answers.answers[int(scores.argmax())] == answer.text


def test_images_in_any_form_are_the_same_pixels(tmp_path: Path) -> None:
    pixels = image()
    path = tmp_path / "image.png"
    Image.fromarray(pixels).save(path)
    tensor = torch.from_numpy(pixels)
    forms = [path, str(path), path.read_bytes(), Image.open(path), pixels, tensor, tensor.movedim(-1, 0)]
    for form in forms:
        assert np.array_equal(to_pixels(form), pixels)
    grey = Image.fromarray(pixels[..., 0])
    assert to_pixels(grey).shape == (50, 70, 3)
    assert to_pixels(torch.zeros(4, 5, 3, requires_grad=True)).shape == (4, 5, 3)
    with pytest.raises(DataError, match=r"image: expected a path, .* got list; pass one image, or a list to the call"):
        to_pixels([pixels, pixels])  # type: ignore[arg-type]


def test_features_need_their_size() -> None:
    for images in (Stored(), Frozen()):
        assert images.build_encoder(7).dim == 7
        message = r"images: expected the size of the features in vocabulary\.json, got none; train the run again"
        with pytest.raises(DataError, match=message):
            images.build_encoder(None)


def test_images_without_captions_or_files_are_skipped(tmp_path: Path) -> None:
    Image.fromarray(image()).save(tmp_path / "there.png")
    records = (
        ImageRecord(1, tmp_path / "there.png"),
        ImageRecord(2, tmp_path / "gone.png"),
        ImageRecord(3, lambda: image()),
        ImageRecord(4, lambda: image()),
    )
    captions = tuple(Caption(n, n, "a dog", ("a", "dog")) for n in (1, 2, 3))
    data = Dataset("mine", "val", records, captions=captions)
    assert [record.id for record in captioned_images(data)] == [1, 3]


def test_computed_images_are_cached_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    records = [ImageRecord(n, lambda n=n: drawn.append(n) or image()) for n in range(3)]
    preprocess = Conv((8, 8), size=16).build_encoder(None).preprocess
    reader = ImageReader(preprocess)
    for record in (*records, *records):
        reader(record)
    assert drawn == [0, 1, 2]
    drawn.clear()
    monkeypatch.setattr("foveate.lab.tasks.images.CACHE_BYTES", 2 * reader(records[0]).nbytes)
    few = ImageReader(preprocess)
    for record in (*records, *records):
        few(record)
    assert drawn == [0, 1, 2, 2]
