"""The state of a training between two steps, in one file: weights, optimiser, position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from foveate.errors import DataError
from foveate.train.weights import load_tensors, named_tensors, save_tensors

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "model.safetensors"


def save_checkpoint(path: Path, model: nn.Module, optimiser: Optimizer, position: dict[str, int]) -> None:
    """Write everything the next step depends on.

    Rates, the order of the examples and random numbers are functions of the step and of the seed, so that `position`
    says all of them.

    Args:
        path: of the file, replaced whole or not at all.
        model, optimiser: as they are.
        position: the step, and what gives the step its meaning (processes, steps an epoch).
    """
    tensors = {f"model.{name}": tensor for name, tensor in named_tensors(model).items()}
    plain: dict[str, Any] = {}
    for number, entries in optimiser.state_dict()["state"].items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimiser.{number}.{key}"] = value
            else:
                plain[f"{number}.{key}"] = value
    save_tensors(path, tensors, {"position": position, "optimiser": plain})


def load_checkpoint(path: Path, model: nn.Module, optimiser: Optimizer) -> dict[str, int]:
    """Set model and optimiser back to what `save_checkpoint` saw, bit for bit, and return the position.

    A damaged file and one of another model raise DataError and change nothing.
    """
    tensors, state = load_tensors(path)
    _load_model(path, model, tensors)
    entries: dict[int, dict[str, Any]] = {}
    saved = {name.removeprefix("optimiser."): value for name, value in tensors.items() if name.startswith("optimiser.")}
    for name, value in {**saved, **state["optimiser"]}.items():
        number, _, key = name.partition(".")
        entries.setdefault(int(number), {})[key] = value
    optimiser.load_state_dict({"state": entries, "param_groups": optimiser.state_dict()["param_groups"]})
    return state["position"]


def _load_model(path: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    own = named_tensors(model)
    found = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    if {n: (t.shape, t.dtype) for n, t in own.items()} != {n: (t.shape, t.dtype) for n, t in found.items()}:
        raise DataError(
            f"resume: expected the {len(own)} tensors of the model in {path}, got {len(found)} others; "
            "the checkpoint is of another model: choose another folder"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(found[name])
