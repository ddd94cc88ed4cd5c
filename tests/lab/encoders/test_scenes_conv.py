"""The encoder that was taught what the objects of Scenes are."""

from __future__ import annotations

import pytest

from foveate.errors import DataError
from foveate.lab.data.scenes import make_scenes
from foveate.lab.encoders import ConvEncoder
from foveate.lab.encoders.image_encoder import SCENES_CHANNELS as CHANNELS
from foveate.lab.encoders.image_encoder import load_scenes_weights
from foveate.lab.encoders.scenes_conv import _labels, pretrain


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
    for image in data.images:
        labels = _labels(data.objects_of(image.id), values).reshape(7, 7, 4)
        for thing in data.objects_of(image.id):
            share = thing.mask().reshape(7, 16, 7, 16).mean((1, 3))
            if share.max() > 0.6:  # nothing else can cover more of this cell
                row, column = divmod(int(share.argmax()), 7)
                assert values["colour"][labels[row, column, 2]] == thing.attributes["colour"]
                assert values["shape"][labels[row, column, 3]] == thing.name


def test_learns_from_a_few_images(capsys: pytest.CaptureFixture[str]) -> None:
    few = make_scenes(split="train", count=16)
    encoder = pretrain(few, few, epochs=3, batch_size=4)
    assert encoder.dim == CHANNELS[-1]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert "'object'" in lines[-1]


def test_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"scenes encoder: expected channels \(16, 32, 64, 96\) and 1 residual block"):
        load_scenes_weights(ConvEncoder((8, 8, 8, 8)))
