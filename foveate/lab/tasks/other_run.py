"""The weights and the words of a run of another model or task, for models that start from it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from safetensors.torch import load_file
from torch import Tensor

from foveate.errors import DataError
from foveate.io import read_json


class OtherRun(NamedTuple):
    """What a model of another kind can take from a run: its weights by name, in float32, and its words in order."""

    tensors: dict[str, Tensor]
    words: tuple[str, ...]

    @classmethod
    def load(cls, field: str, run: Path, source: str) -> OtherRun:
        """Read a run.

        Args:
            field: of the settings that names the run, for the message.
            run: its directory.
            source: where such a run comes from, for the message.

        Raises DataError if there is no such run.
        """
        path = run / "model.safetensors"
        if not path.is_file():
            raise DataError(f"{field}: expected the file {path}, got none; pass {source}")
        words = read_json(field, run / "vocabulary.json", source)["words"]["words"]
        return cls({name: tensor.float() for name, tensor in load_file(path).items()}, tuple(words))
