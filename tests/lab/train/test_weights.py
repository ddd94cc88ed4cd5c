"""Files of tensors: exact after a round trip, and DataError for damaged files and other models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from foveate.errors import DataError
from foveate.lab.train import SGD, Adam, AdamW
from foveate.lab.train.config import build_optimiser
from foveate.lab.train.weights import (
    load_checkpoint,
    load_tensors,
    load_weights,
    named_tensors,
    save_checkpoint,
    save_tensors,
)

POSITION = {"step": 3, "steps_per_epoch": 5, "processes": 1}


def stepped(settings, steps: int = 3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    optimiser = build_optimiser(settings, model.parameters())
    step(model, optimiser, steps)
    return model, optimiser


def step(model: nn.Module, optimiser: torch.optim.Optimizer, steps: int) -> None:
    for number in range(steps):
        x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(number))
        optimiser.zero_grad()
        model(x).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("settings", [Adam(0.1), AdamW(0.1), SGD(0.1, momentum=0.9), SGD(0.1, momentum=0.0)])
def test_training_goes_on_bit_for_bit(settings, tmp_path: Path) -> None:
    model, optimiser = stepped(settings)
    save_checkpoint(tmp_path / "c.safetensors", model, optimiser, POSITION)
    other, fresh = stepped(settings, steps=1)
    assert load_checkpoint(tmp_path / "c.safetensors", other, fresh) == POSITION
    for both in ((model, optimiser), (other, fresh)):
        step(*both, 2)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def test_shared_weights_stay_shared(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    save_tensors(tmp_path / "m.safetensors", named_tensors(nn.ModuleDict({"a": layer, "b": layer})))
    copy = nn.Linear(2, 2)
    load_weights(nn.ModuleDict({"a": copy, "b": copy}), tmp_path / "m.safetensors")
    assert torch.equal(copy.weight, layer.weight)


def test_empty_tensors_are_kept_apart(tmp_path: Path) -> None:
    model = nn.Module()
    model.register_buffer("a", torch.zeros(0))
    model.register_buffer("b", torch.zeros(0))
    save_tensors(tmp_path / "m.safetensors", named_tensors(model))
    load_weights(model, tmp_path / "m.safetensors")
    assert set(load_tensors(tmp_path / "m.safetensors")[0]) == {"a", "b"}


def whole(path: Path) -> bytes:
    save_tensors(path, {"weight": torch.arange(6.0).reshape(2, 3)}, {"note": 1})
    return path.read_bytes()


def test_any_flipped_byte_and_any_cut_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    data = whole(path)
    for position in range(0, len(data), 7):
        path.write_bytes(data[:position] + bytes([data[position] ^ 255]) + data[position + 1 :])
        module = nn.Linear(3, 2, bias=False)
        try:
            load_weights(module, path)
            tensors, state = load_tensors(path)
        except DataError:
            continue
        # a byte of the padding between header and data carries nothing
        assert torch.equal(tensors["weight"], torch.arange(6.0).reshape(2, 3)), position
        assert torch.equal(module.weight, tensors["weight"]), position
        assert state == {"note": 1}, position
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        with pytest.raises(DataError, match=r"m\.safetensors"):
            load_tensors(path)


def test_a_damaged_value_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    data = whole(path)
    path.write_bytes(data[:-1] + b"\xff")
    with pytest.raises(DataError, match=r"expected the checksum .* got another; the file is damaged"):
        load_tensors(path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"foveate": json.dumps({"format": 3})})
    with pytest.raises(DataError, match=r"expected format 2 in .* got 3; it was written by another version of foveate"):
        load_tensors(path)


def test_files_of_other_programs_load(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(2)}, path, {"format": "pt"})
    assert torch.equal(load_tensors(path)[0]["a"], torch.ones(2))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"weight": torch.zeros(2, 3)},
            r"expected the 2 tensors of the model .* got 1, for instance 'bias' only in the model",
        ),
        ({"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "x": torch.zeros(1)}, "'x' only in the file"),
        (
            {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)},
            r"expected weight \(2, 3\) of type F32 .* got \(3, 2\)",
        ),
        ({"weight": torch.zeros(2, 3).double(), "bias": torch.zeros(2)}, r"got \(2, 3\) of type F64"),
    ],
)
def test_weights_of_another_model_are_refused(tensors: dict, message: str, tmp_path: Path) -> None:
    save_tensors(tmp_path / "m.safetensors", tensors)
    model = nn.Linear(3, 2)
    before = model.weight.clone()
    with pytest.raises(DataError, match=message):
        load_weights(model, tmp_path / "m.safetensors")
    assert torch.equal(model.weight, before)


def test_a_header_that_claims_terabytes_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    header = json.dumps(
        {"weight": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 1 << 42]}}
    ).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DataError, match=r"expected complete tensors"):
        load_tensors(tmp_path / "m.safetensors")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected the file .*m\.safetensors, got none"):
        load_tensors(tmp_path / "m.safetensors")


def test_a_checkpoint_of_another_model_changes_nothing(tmp_path: Path) -> None:
    model, optimiser = stepped(Adam(0.1))
    save_checkpoint(tmp_path / "c.safetensors", model, optimiser, POSITION)
    other = nn.Linear(2, 2)
    with pytest.raises(DataError, match=r"resume: expected the 2 tensors of the model .* belongs to another model"):
        load_checkpoint(tmp_path / "c.safetensors", other, build_optimiser(Adam(0.1), other.parameters()))


def test_the_same_tensors_make_the_same_bytes(tmp_path: Path) -> None:
    files = {whole(tmp_path / f"{number}.safetensors") for number in range(8)}
    assert len(files) == 1


@pytest.mark.parametrize(
    ("name", "damaged"), [(b"checksum", b"che#ksum"), (b"format", b"fgrmat"), (b"foveate", b"fovebte")]
)
def test_a_damaged_name_does_not_switch_the_checksum_off(name: bytes, damaged: bytes, tmp_path: Path) -> None:
    save_tensors(tmp_path / "w.safetensors", {"a": torch.ones(3)})
    raw = (tmp_path / "w.safetensors").read_bytes()
    (tmp_path / "w.safetensors").write_bytes(raw.replace(name, damaged, 1))
    with pytest.raises(DataError, match="expected the metadata of a run"):
        load_tensors(tmp_path / "w.safetensors")
