"""Reading a published checkpoint without running anything inside it."""

from __future__ import annotations

import argparse
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foveate.errors import DataError
from foveate.lab.data.files import complete_file

# The one class besides tensors and plain values: SCAN and BFAN keep their options in it.
ALLOWED: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [argparse.Namespace]
_CLASS = re.compile(r"GLOBAL ([\w.]+)")


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a file that `torch.save` wrote: a dictionary of tensors, plain values and `argparse.Namespace`.

    Nothing in the file is executed. Raises DataError for a file with any other class in it, and for one that is damaged
    or holds something else.
    """
    with complete_file("import-run", "checkpoint", path, "download it again"):
        try:
            with torch.serialization.safe_globals(ALLOWED):
                found = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise DataError(f"import-run: expected the file {path}, got none; check the path") from None
        except pickle.UnpicklingError as error:
            named = _CLASS.search(str(error))
            what = f"the class {named[1]}" if named else "other Python objects"
            raise DataError(
                f"import-run: expected tensors and plain values in {path}, got {what}, which could run code and is not "
                "loaded; save the state_dict alone with torch.save, in an environment that you trust"
            ) from None
    if not isinstance(found, dict):
        raise DataError(
            f"import-run: expected a dictionary in {path}, got {type(found).__name__}; pass the checkpoint itself"
        )
    return found


def state_dict(path: Path, found: Any) -> dict[str, Tensor]:
    """The tensors of a state_dict by name, without the prefix that data-parallel training adds."""
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(
            f"import-run: expected a state_dict in {path}, got {type(found).__name__}; pass a checkpoint of this model"
        )
    return {str(name).removeprefix("module."): tensor.detach() for name, tensor in found.items()}
