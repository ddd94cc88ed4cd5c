from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from foveate.data.scenes import make_scenes
from foveate.encoders import ConvEncoder
from foveate.errors import DataError
from foveate.tasks.pictures import Conv
from foveate.tasks.scenes_encoder import BLOCKS, CHANNELS, _labels, pretrain, put_weights
from foveate.tasks.vqa import VQA
from foveate.tasks.vqa_settings import Mcan, VQASettings

SETTINGS = VQASettings(model=Mcan(16, heads=2, layers=1), images=Conv(start="scenes"), word_dim=8, limit=4, min_count=1)


def test_labels_name_the_thing_of_each_cell() -> None:
    data = make_scenes(split="val", count=3)
    values = {
        "size": ["large", "small"],
        **{
            kind: sorted({o.attributes[kind] for t in data.objects.values() for o in t})
            for kind in ("texture", "colour")
        },
        "shape": sorted({o.name for things in data.objects.values() for o in things}),
    }
    for picture in data.pictures:
        labels = _labels(data.objects_of(picture.id), values).reshape(7, 7, 4)
        for thing in data.objects_of(picture.id):
            share = thing.mask().reshape(7, 16, 7, 16).mean((1, 3))
            if share.max() > 0.6:  # nothing else can cover more of this cell
                row, column = divmod(int(share.argmax()), 7)
                assert values["colour"][labels[row, column, 2]] == thing.attributes["colour"]
                assert values["shape"][labels[row, column, 3]] == thing.name


def test_learns_from_a_few_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    few = make_scenes(split="train", count=16)
    encoder = pretrain(few, few, epochs=3, batch_size=4)
    assert encoder.dim == CHANNELS[-1]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "'object'" in lines[-1]


def test_what_was_learnt_is_put_in_before_training() -> None:
    task = VQA.from_data(SETTINGS, None)
    model, known = task.build_model(), ConvEncoder(CHANNELS, blocks=BLOCKS)
    put_weights(known)
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
        task.loss(model, task.collate([task.examples("train", None)[0]])).total.backward()
        assert all((parameter.grad is not None) == trained for parameter in model.image.parameters())


def test_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"scenes encoder: expected channels \(16, 32, 64, 96\) and 1 residual block"):
        put_weights(ConvEncoder((8, 8, 8, 8)))
