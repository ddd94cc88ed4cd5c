"""Load trained runs, and hand them on: a folder of JSON and safetensors, safe to take from strangers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from foveate.errors import DataError
from foveate.recipes import read_run
from foveate.tasks import Predictor
from foveate.train.checkpoint import WEIGHTS
from foveate.train.folder import CONFIG, ENVIRONMENT, VOCABULARY, run_folder
from foveate.train.history import METRICS
from foveate.train.weights import load_weights

NEEDED = (CONFIG, VOCABULARY, WEIGHTS)
TOLD = (METRICS, ENVIRONMENT)
SLACK = 256 << 20


def load(run: str | Path, changes: Iterable[str] = (), *, device: torch.device | str | None = None) -> Predictor:
    """A trained run, ready to use: what it offers (`answer`, `caption`, `match`, ...) is its task's.

    Nothing in the files is executed. The sizes that `config.json` asks for may not be much larger than the weights
    file, and every name and shape in its header is compared with the model, before the weights are read.

    Args:
        run: folder of a run, or the name of one inside the package.
        changes: fields of its recipe to change, as "field=value": `load(run, ["mechanism=multimodal"])` attends with a
            mixture in a model that was trained with something else.
        device: to put the model on; the CPU when absent.

    A missing or damaged file, a newer version and weights of another model raise DataError.
    """
    folder = run_folder(run)
    _, task = read_run(folder, changes)
    if not (folder / WEIGHTS).is_file():
        raise DataError(f"load: expected {WEIGHTS} in {folder}, got none; the run has not been evaluated yet: train on")
    with _Budget(folder, (folder / WEIGHTS).stat().st_size):
        model = task.build_model()
    load_weights(model, folder / WEIGHTS)
    return task.predictor(model.to(device or "cpu").eval())


def save_pretrained(run: str | Path, folder: Path) -> Path:
    """Copy what is needed to use a run, without checkpoint and log, into a new folder, after loading it once.

    Args:
        run: folder of a run, or the name of one inside the package.
        folder: to make; DataError when it holds a run already.
    """
    source, folder = run_folder(run), Path(folder)
    load(source)
    if (folder / CONFIG).exists():
        raise DataError(f"save_pretrained: expected a new folder, got the run in {folder}; choose another")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*NEEDED, *TOLD):
        if (source / name).exists():
            shutil.copyfile(source / name, folder / name)
    return folder


def from_pretrained(
    name: str | Path, *, revision: str | None = None, device: torch.device | str | None = None
) -> Predictor:
    """A run from a local folder, or, when there is none of that name, from the Hugging Face Hub.

    Args:
        name: folder, name of an embedded run, or `owner/repository` on the Hub; only the run's own files are fetched.
        revision: branch, tag or commit on the Hub.
        device: as in `load`.
    """
    try:
        folder = run_folder(name)
    except DataError:
        if len(Path(name).parts) != 2 or Path(name).is_absolute() or str(name).startswith("."):
            raise
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(str(name), revision=revision, allow_patterns=[*NEEDED, *TOLD]))
        except Exception as error:  # the Hub's own errors, the network's and the disk's
            raise DataError(
                f"from_pretrained: expected a folder or a repository of the Hub called {str(name)!r}, got {error}; "
                "check the name and the connection"
            ) from error
    return load(folder, device=device)


class _Budget(TorchDispatchMode):
    """Refuses to make tensors that are out of proportion to the weights file; they would only be made to be filled."""

    def __init__(self, folder: Path, file_size: int) -> None:
        super().__init__()
        self.folder, self.limit = folder, 4 * file_size + SLACK

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "aten" and not any(isinstance(arg, torch.Tensor) for arg in args):
            self._check(args, kwargs)
        return func(*args, **kwargs)

    def _check(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Check what makes a tensor of numbers alone: its first argument is a shape, or it counts between numbers."""
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if args and isinstance(args[0], list | tuple):
            count = math.prod(args[0])
        else:
            count = math.prod(max(abs(arg), 1) for arg in args if isinstance(arg, int))
        if count * dtype.itemsize > self.limit:
            raise DataError(
                f"load: expected sizes in {self.folder / CONFIG} that suit its weights, got a tensor of "
                f"{count * dtype.itemsize / 1e9:.3g} GB; the configuration is of another model"
            )
