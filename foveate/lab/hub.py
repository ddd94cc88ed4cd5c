"""Load trained runs and share them: a directory of JSON and safetensors, safe to load from untrusted sources."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from foveate.errors import DataError
from foveate.lab.features import Familiarity
from foveate.lab.tasks import AnyTask, Predictor
from foveate.lab.tasks.inputs import ImagePredictor
from foveate.lab.train.recipe import file_errors, read_run, read_task, run_directory
from foveate.lab.train.records import CONFIG, ENVIRONMENT, FAMILIARITY, METRICS, VOCABULARY
from foveate.lab.train.weights import (
    WEIGHTS,
    check_weights,
    half_precision,
    load_tensors,
    load_weights,
    read_header,
    save_tensors,
)

REQUIRED = (CONFIG, VOCABULARY, WEIGHTS)
CARD = "README.md"
OPTIONAL = (METRICS, ENVIRONMENT, FAMILIARITY, CARD)
# A model may create this much beyond four times its weights file: bytes for constants, tensors for temporary results.
SLACK, SLACK_TENSORS, TENSORS_PER_WEIGHT = 256 << 20, 10_000, 50


def load(
    run: str | Path, changes: Iterable[str] = (), *, device: torch.device | str | None = None
) -> Predictor[Any, Any]:
    """Load a trained run; the result has the calls of its task: `answer`, `caption`, `match`, ...

    Nothing in the files is executed. Before the weights are read, the sizes in `config.json` are compared with the size
    of the weights file, and every name and shape in its header with the model.

    Args:
        run: directory of a run, or name of one inside the package.
        changes: fields of its recipe to change, as "field=value": `load(run, ["mechanism=multimodal"])` attends with a
            mixture in a model that was trained with another mechanism.
        device: of the model; the CPU by default.

    Raises DataError for a missing or damaged file, a newer version and weights of another model.
    """
    directory, changes = run_directory(run), tuple(changes)
    task: AnyTask = read_run(directory, changes)[1] if changes else read_task(directory)
    if not (directory / WEIGHTS).is_file():
        raise DataError(
            f"load: expected {WEIGHTS} in {directory}, got none; the run has not been evaluated yet: continue training"
        )
    with file_errors(directory):
        _check_size(task, directory / WEIGHTS)
        model = task.build_model()
    load_weights(model, directory / WEIGHTS)
    predictor = task.predictor(model.to(device or "cpu").eval())
    if isinstance(predictor, ImagePredictor) and (directory / FAMILIARITY).is_file():
        path = directory / FAMILIARITY
        return replace(predictor, read_familiarity=lambda: Familiarity.from_tensors(load_tensors(path)[0]))
    return predictor


def find_run(name: str | Path) -> Predictor[Any, Any] | None:
    """A run by directory or name, None where there is none of that name; see `load`."""
    try:
        run_directory(name)
    except DataError:
        return None
    return load(name)


def load_for(
    where: str, run: str, call: str, command: str, *, changes: Iterable[str] = (), device: str | None = None
) -> Any:
    """Load a run that has a call such as `answer`.

    Args:
        where: the caller, for the message.
        run, changes, device: as in `load`.
        call: name of the method it must have.
        command: trains such a run, for the message.

    Raises DataError if the task of the run has no such call.
    """
    predictor = load(run, changes, device=device)
    if not hasattr(predictor, call):
        raise DataError(
            f"{where}: expected a run with the call {call!r}, got {run!r} of {type(predictor.task).__name__}; "
            f"train one with {command}"
        )
    return predictor


def load_embedder(where: str, run: str, device: str | None = None) -> tuple[Any, str, str]:
    """Load a run that embeds images and texts, with the name to find it again and a digest of its weights."""
    predictor = load_for(where, run, "encode_image", "foveate train matching-mdan-scenes", device=device)
    directory, sha = run_directory(run), hashlib.sha256()
    with (directory / WEIGHTS).open("rb") as file:
        while piece := file.read(1 << 20):
            sha.update(piece)
    # An absolute path finds the run from any directory; embedded runs are known by their names.
    name = str(directory.resolve()) if Path(run).expanduser().is_dir() else run
    return predictor, name, sha.hexdigest()[:16]


def save_pretrained(run: str | Path, directory: Path, *, half: bool = False) -> Path:
    """Copy what is needed to use a run, without checkpoint and log, into a new directory, after loading it once.

    Args:
        run: directory of a run, or name of one inside the package.
        directory: to create; raises DataError if it already holds a run.
        half: write the matrices in float16; they are float32 again when they are loaded.
    """
    source, directory = run_directory(run), Path(directory)
    load(source)
    if (directory / CONFIG).exists():
        raise DataError(f"save_pretrained: expected a new directory, got the run in {directory}; choose another")
    directory.mkdir(parents=True, exist_ok=True)
    for name in (*REQUIRED, *OPTIONAL):
        if (source / name).exists():
            shutil.copyfile(source / name, directory / name)
    if half:
        tensors, state = load_tensors(source / WEIGHTS)
        save_tensors(directory / WEIGHTS, half_precision(tensors), state)
    return directory


def from_pretrained(
    name: str | Path, *, revision: str | None = None, device: torch.device | str | None = None
) -> Predictor[Any, Any]:
    """Load a run from a local directory or, if there is none of that name, from the Hugging Face Hub.

    Args:
        name: directory, name of an embedded run, or `owner/repository` on the Hub; only a run's files are fetched.
        revision: branch, tag or commit on the Hub.
        device: as in `load`.
    """
    try:
        directory = run_directory(name)
    except DataError:
        if len(Path(name).parts) != 2 or Path(name).is_absolute() or str(name).startswith("."):
            raise
        from huggingface_hub import snapshot_download

        try:
            directory = Path(snapshot_download(str(name), revision=revision, allow_patterns=[*REQUIRED, *OPTIONAL]))
        except Exception as error:  # the Hub's own errors, the network's and the disk's
            raise DataError(
                f"from_pretrained: expected a directory or a repository of the Hub called {str(name)!r}, got {error}; "
                "check the name and the connection"
            ) from error
    return load(directory, device=device)


def _check_size(task: AnyTask, path: Path) -> None:
    """Raises DataError if the model of the configuration does not fit its weights file, before memory is allocated.

    The model is first built on the meta device, where tensors have shapes but no memory, and every name and shape is
    compared with the header of the file.
    """
    with _Budget(path), torch.device("meta"):
        model = task.build_model()
    check_weights(model, path)


_init_mode: Callable[[TorchFunctionMode], None] = TorchFunctionMode.__init__


class _Budget(TorchFunctionMode):
    """Raises DataError if tensors are created out of proportion to a weights file, in bytes or in number.

    Not a TorchDispatchMode: the first that is entered imports torch.compile, which takes a second.
    """

    def __init__(self, path: Path) -> None:
        _init_mode(self)
        self.path, self.bytes, self.tensors = path, 0, 0
        self.most_bytes = 4 * path.stat().st_size + SLACK
        self.most_tensors = TENSORS_PER_WEIGHT * len(read_header(path)) + SLACK_TENSORS

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ == "normal_":  # nothing to fill on the meta device, and torch imports torch.compile to do it
            return args[0] if args else kwargs["tensor"]
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:  # no memory and no device is involved: sizes that no tensor has
            raise DataError(
                f"load: expected sizes in {self.path.parent / CONFIG} that suit its weights, got {error!s:.200}; "
                "restore the file"
            ) from error
        # Operations in place, such as initialisations, return a tensor that has been counted.
        if isinstance(result, torch.Tensor) and not any(result is arg for arg in args):
            self.bytes += result.numel() * result.element_size()
            self.tensors += 1
        if self.bytes > self.most_bytes or self.tensors > self.most_tensors:
            raise DataError(
                f"load: expected sizes in {self.path.parent / CONFIG} that suit its weights, got a model of at least "
                f"{self.bytes / 1e9:.3g} GB in {self.tensors} tensors; the configuration belongs to another model"
            )
        return result
