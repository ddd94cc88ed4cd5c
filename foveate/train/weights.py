"""Tensors in safetensors files: checked against what is expected before anything is read, and for damage after."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from foveate.data.writing import appearing
from foveate.errors import DataError

FORMAT = 1
NOTES = "foveate"


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that a file keeps, by name; of tensors that share memory only the first name.

    >>> layer = nn.Linear(2, 2)
    >>> list(named_tensors(nn.ModuleDict({"a": layer, "b": layer})))
    ['a.weight', 'a.bias']
    """
    seen: set[tuple[Any, ...]] = set()
    found = {}
    for name, tensor in module.state_dict().items():
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        found[name] = tensor
    return found


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any] | None = None) -> None:
    """Write tensors and a JSON state into one file, whole or not at all, with a checksum over both."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state or {}, sort_keys=True)
    notes = {"format": FORMAT, "state": text, "checksum": checksum(plain, text)}
    with appearing(path) as aside:
        # one entry: several would be written in an order that changes from run to run
        save_file(plain, aside, {NOTES: json.dumps(notes)})


def load_tensors(path: Path, expected: Mapping[str, Tensor] | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a file that `save_tensors` wrote.

    Args:
        path: of the file.
        expected: names, shapes and types that the file must have, compared with its header before any tensor is read;
            None reads what there is.

    A damaged file, one of a newer version and one with other tensors raise DataError.
    """
    try:
        with safe_open(path, framework="pt") as file:
            notes = _read_notes(path, file.metadata() or {})
            if expected is not None:
                _check_header(path, file, expected)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    except FileNotFoundError:
        raise DataError(f"load: expected the file {path}, got none; point to the folder of a run") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"load: expected whole tensors in {path}, got {error}; {_ADVICE}") from None
    if "checksum" in notes and notes["checksum"] != checksum(tensors, notes["state"]):
        raise DataError(f"load: expected the checksum {notes['checksum']} of {path}, got another; {_ADVICE}")
    return tensors, json.loads(notes.get("state", "{}"))


def load_weights(module: nn.Module, path: Path) -> None:
    """Fill a model with the weights of a file; DataError, and an untouched model, when they are of another model."""
    tensors, _ = load_tensors(path, named_tensors(module))
    with torch.no_grad():
        for name, tensor in named_tensors(module).items():
            tensor.copy_(tensors[name])


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """Eight hexadecimal digits over names, values and a text.

    >>> checksum({"a": torch.zeros(2)}, "") == checksum({"a": torch.ones(2)}, "")
    False
    """
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        if tensors[name].numel():
            value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


_ADVICE = "the file is damaged: fetch it again, or remove it to train from the beginning"


def _read_notes(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What `save_tensors` wrote beside the tensors; nothing in files of other programs."""
    try:
        notes = json.loads(metadata.get(NOTES, "{}"))
    except json.JSONDecodeError as error:
        raise DataError(f"load: expected JSON beside the tensors in {path}, got {error}; {_ADVICE}") from None
    if notes.get("format", FORMAT) > FORMAT:
        raise DataError(
            f"load: expected format {FORMAT} or older in {path}, got {notes['format']}; a newer foveate wrote it: "
            "run pip install -U foveate"
        )
    return notes


def _check_header(path: Path, file: Any, expected: Mapping[str, Tensor]) -> None:
    """Compare names, shapes and types without reading a tensor."""
    names = set(file.keys())
    for name in sorted(names ^ set(expected)):
        there = "in the file alone" if name in names else "in the model alone"
        raise DataError(
            f"load: expected the {len(expected)} tensors of the model in {path}, got {len(names)}, for instance "
            f"{name!r} {there}; the weights are of another model"
        )
    for name, tensor in expected.items():
        part = file.get_slice(name)
        found, wanted = (tuple(part.get_shape()), part.get_dtype()), (tuple(tensor.shape), _DTYPES[tensor.dtype])
        if found != wanted:
            raise DataError(
                f"load: expected {name} {wanted[0]} of type {wanted[1]} in {path}, got {found[0]} of type {found[1]}; "
                "the weights are of another model"
            )


_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
