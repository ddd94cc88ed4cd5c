"""Write safetensors files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor


def save_file(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write named tensors to a file; a full disk raises OSError, as for any other file.

    >>> from tempfile import TemporaryDirectory
    >>> import torch
    >>> with TemporaryDirectory() as directory:
    ...     save_file({"a": torch.zeros(2)}, Path(directory, "a.safetensors"))
    """
    try:
        safetensors.save_file(dict(tensors), path, None if metadata is None else dict(metadata))
    except SafetensorError as error:
        raise OSError(str(error)) from error
