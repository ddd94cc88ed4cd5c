"""Tensors in safetensors files: weights and checkpoints, compared with the model before they are read, and verified."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from foveate.errors import DataError
from foveate.io import atomic_write, write_tensors

CHECKPOINT, WEIGHTS = "checkpoint.safetensors", "model.safetensors"
FORMAT = 2
NOTES = "foveate"
ADVICE = "the file is damaged: download it again, or remove it to train from the beginning"


class TensorInfo(NamedTuple):
    """Shape and type of a tensor in a file."""

    shape: tuple[int, ...]
    dtype: str


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers that are saved, by name; tensors that share memory are kept under the first name.

    >>> layer = nn.Linear(2, 2)
    >>> list(named_tensors(nn.ModuleDict({"a": layer, "b": layer})))
    ['a.weight', 'a.bias']
    """
    seen: set[tuple[Any, ...]] = set()
    found = {}
    for name, tensor in module.state_dict().items():
        # The storage object, not its address: on the meta device all addresses are zero.
        place = (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        found[name] = tensor
    return found


def save_tensors(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any] | None = None) -> None:
    """Write tensors and a JSON state atomically into one file, with a checksum over both."""
    plain = {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state or {}, sort_keys=True)
    notes = {"format": FORMAT, "state": text, "checksum": checksum(plain, text)}
    with atomic_write(path) as temporary:
        # One entry: several would be written in an order that changes from run to run.
        write_tensors(plain, temporary, {NOTES: json.dumps(notes)})


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the state of a file that `save_tensors` wrote; raises DataError if it is damaged or too new."""
    with _open(path) as file:
        notes = _read_notes(path, file.metadata() or {})
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
    text = notes.get("state", "{}")
    if "checksum" in notes and notes["checksum"] != checksum(tensors, text):
        raise DataError(f"load: expected the checksum {notes['checksum']} of {path}, got another; {ADVICE}")
    return tensors, _parse(path, text)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """The names, shapes and types of the tensors in a file, without reading a tensor."""
    with _open(path) as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
        return {name: TensorInfo(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}


def check_weights(module: nn.Module, path: Path) -> None:
    """Raises DataError if names, shapes and types in a file differ from those of a model.

    A tensor of a float32 model may be float16 in the file, see `half_precision`.

    Args:
        module: on any device, also the meta device.
        path: of the file, of which only the header is read.
    """
    expected = {name: TensorInfo(tuple(t.shape), _DTYPES[t.dtype]) for name, t in named_tensors(module).items()}
    found = read_header(path)
    for name in sorted(found.keys() ^ expected.keys()):
        there = "only in the file" if name in found else "only in the model"
        raise DataError(
            f"load: expected the {len(expected)} tensors of the model in {path}, got {len(found)}, for instance "
            f"{name!r} {there}; the weights belong to another model"
        )
    for name, wanted in expected.items():
        if found[name] not in (wanted, wanted._replace(dtype=_COMPACT.get(wanted.dtype, wanted.dtype))):
            raise DataError(
                f"load: expected {name} {wanted.shape} of type {wanted.dtype} in {path}, got {found[name].shape} of "
                f"type {found[name].dtype}; the weights belong to another model"
            )


def half_precision(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices in float16, which halves a file; vectors and scalars, such as counts and statistics, as they are.

    >>> {name: tensor.dtype for name, tensor in half_precision({"w": torch.ones(2, 2), "b": torch.ones(2)}).items()}
    {'w': torch.float16, 'b': torch.float32}
    """
    return {
        name: tensor.half() if tensor.ndim > 1 and tensor.dtype == torch.float32 else tensor
        for name, tensor in tensors.items()
    }


def load_weights(module: nn.Module, path: Path) -> dict[str, Any]:
    """Load the weights of a file into a model and return the state that was saved with them.

    Raises DataError and changes nothing if they belong to another model.
    """
    check_weights(module, path)
    tensors, state = load_tensors(path)
    with torch.no_grad():
        for name, tensor in named_tensors(module).items():
            tensor.copy_(tensors[name])
    return state


def load_grown_weights(module: nn.Module, path: Path) -> dict[str, Any]:
    """Load weights into a model that knows more tokens or answers than the one of the file; see `load_weights`.

    Where a tensor of the model has more rows, the first ones are loaded. The others stay as they are, except that
    those of a bias become the mean of the first: what is new is as likely as the rest.
    """
    own, found = named_tensors(module), read_header(path)
    grown = {n for n, t in own.items() if n in found and _has_more_rows(tuple(t.shape), found[n].shape)}
    if not grown:
        return load_weights(module, path)
    tensors, state = load_tensors(path)
    wrong = sorted(
        n for n in tensors.keys() | own.keys() if n not in grown and not _same_shape(tensors.get(n), own.get(n))
    )
    if wrong:
        raise DataError(
            f"load: expected the tensors of the model in {path}, got another {wrong[0]!r}; the weights belong to "
            "another model"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            if name in grown and tensor.ndim == 1:
                tensor.fill_(float(tensors[name].mean()))
            tensor[: len(tensors[name])].copy_(tensors[name]) if name in grown else tensor.copy_(tensors[name])
    return state


def _has_more_rows(own: tuple[int, ...], found: tuple[int, ...]) -> bool:
    return len(own) == len(found) > 0 and own[0] > found[0] and own[1:] == found[1:]


def _same_shape(a: Tensor | None, b: Tensor | None) -> bool:
    return a is not None and b is not None and a.shape == b.shape


def save_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: Optimizer,
    position: dict[str, int],
    average: Mapping[str, Tensor] | None = None,
) -> None:
    """Write everything the next step depends on.

    Learning rates, the order of the examples and random numbers are functions of step and seed, so that `position`
    determines all of them.

    Args:
        path: of the file, written atomically.
        model, optimiser: in their present state.
        position: the step, what defines a step (processes, steps per epoch), and the scale of the loss if it has one.
        average: averaged weights by name, if the training has them.
    """
    tensors = {f"model.{name}": tensor for name, tensor in named_tensors(model).items()}
    tensors |= {f"average.{name}": tensor for name, tensor in (average or {}).items()}
    plain: dict[str, Any] = {}
    for number, entries in optimiser.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{number}.{key}"] = value
            else:
                plain[f"{number}.{key}"] = value
    save_tensors(path, tensors, {"position": position, "optimiser": plain})


def load_checkpoint(
    path: Path,
    model: nn.Module,
    optimiser: Optimizer,
    average: Mapping[str, Tensor] | None = None,
) -> dict[str, int]:
    """Restore model, optimiser and `average` to what `save_checkpoint` wrote, bit for bit, and return the position.

    Raises DataError and changes nothing for a damaged file and for one of another model.
    """
    tensors, state = load_tensors(path)
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    saved = {name.removeprefix("optimiser."): value for name, value in tensors.items() if name.startswith("optimiser.")}
    entries: dict[int, dict[str, Any]] = {}
    try:
        required = ("step", "steps_per_epoch", "processes")
        position = {name: int(state["position"][name]) for name in dict.fromkeys([*required, *state["position"]])}
        for name, value in {**saved, **state["optimiser"]}.items():
            number, _, key = name.partition(".")
            entries.setdefault(int(number), {})[key] = value
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"resume: expected the state of a training in {path}, got {error!r}; {ADVICE}") from None
    _copy_weights(path, model, weights)
    for name, tensor in (average or {}).items():
        if f"average.{name}" not in tensors:
            raise DataError(f"resume: expected averaged weights in {path}, got none of {name}; {ADVICE}")
        tensor.copy_(tensors[f"average.{name}"])
    optimiser.load_state_dict({"state": entries, "param_groups": optimiser.state_dict()["param_groups"]})
    return position


def checksum(tensors: Mapping[str, Tensor], text: str) -> str:
    """Eight hexadecimal digits over names, types, shapes and values of tensors and over a text.

    Args:
        tensors: by name.
        text: any text.

    >>> checksum({"a": torch.zeros(2)}, "") == checksum({"a": torch.ones(2)}, "")
    False
    """
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        if tensor.numel():
            value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """A safetensors file; what is wrong with it raises DataError."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"load: expected the file {path}, got none; pass the directory of a run") from None
    except (SafetensorError, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"load: expected complete tensors in {path}, got {error}; {ADVICE}") from None


def _read_notes(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    """The metadata of `save_tensors`; empty in files of other programs."""
    notes = _parse(path, metadata.get(NOTES, "{}"))
    # A damaged name must not turn the file into one without a checksum.
    renamed = NOTES not in metadata and any('"checksum"' in text for text in metadata.values())
    if renamed or not set(notes) <= {"format", "state", "checksum"}:
        raise DataError(f"load: expected the metadata of a run in {path}, got {[*metadata, *notes]!r:.80}; {ADVICE}")
    version = notes.get("format", FORMAT)
    if type(version) is not int or not isinstance(notes.get("state", "{}"), str):
        raise DataError(f"load: expected the metadata of a run in {path}, got {notes!r:.80}; {ADVICE}")
    if version != FORMAT:
        raise DataError(
            f"load: expected format {FORMAT} in {path}, got {version}; it was written by another version of foveate: "
            "run pip install -U foveate"
        )
    return notes


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"load: expected JSON beside the tensors in {path}, got {error}; {ADVICE}") from None
    if not isinstance(found, dict):
        raise DataError(f"load: expected a JSON object beside the tensors in {path}, got {found!r:.60}; {ADVICE}")
    return found


def _copy_weights(path: Path, model: nn.Module, found: Mapping[str, Tensor]) -> None:
    own = named_tensors(model)
    if {n: (t.shape, t.dtype) for n, t in own.items()} != {n: (t.shape, t.dtype) for n, t in found.items()}:
        raise DataError(
            f"resume: expected the {len(own)} tensors of the model in {path}, got {len(found)} others; "
            "the checkpoint belongs to another model: choose another directory"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])


# Types that may stand in a file for those of the model.
_COMPACT = {"F32": "F16"}
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
