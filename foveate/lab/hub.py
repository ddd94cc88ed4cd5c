"""Load trained runs and share them: a directory of JSON and safetensors, safe to load from untrusted sources."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from foveate.errors import DataError
from foveate.io import write_json
from foveate.lab.features import Familiarity
from foveate.lab.tasks import AnyTask, Predictor
from foveate.lab.tasks.inputs import ImagePredictor
from foveate.lab.train.recipe import file_errors, read_run, read_task, run_directory, to_config
from foveate.lab.train.records import CONFIG, ENVIRONMENT, FAMILIARITY, METRICS, VOCABULARY
from foveate.lab.train.weights import (
    WEIGHTS,
    check_weights,
    half_precision,
    load_tensors,
    load_weights,
    named_tensors,
    read_header,
    save_tensors,
)

REQUIRED = (CONFIG, VOCABULARY, WEIGHTS)
CARD = "README.md"
OPTIONAL = (METRICS, ENVIRONMENT, FAMILIARITY, CARD)
# A model may create this much beyond four times its weights file: bytes for constants, tensors for temporary results.
SLACK, SLACK_TENSORS, TENSORS_PER_WEIGHT = 256 << 20, 10_000, 50


def load(
    run: str | Path, changes: Iterable[str] = (), *, device: torch.device | str | None = None, **fields: Any
) -> Predictor[Any, Any]:
    """Load a trained run; the result has the calls of its task: `answer`, `caption`, `match`, ...

    Nothing in the files is executed. Before the weights are read, the sizes in `config.json` are compared with the size
    of the weights file, and every name and shape in its header with the model.

    Args:
        run: directory of a run, or name of one inside the package.
        changes: fields of its recipe to change, as "field=value", for names that are no Python keywords:
            `load(run, ["ccr.weight=1"])`.
        device: of the model; the CPU by default.
        fields: fields of its recipe to change, by name: `load(run, mechanism="multimodal")` attends with a mixture in a
            model that was trained with another mechanism, `mechanism_options={"max_components": 2}` sets its options.

    Raises DataError for a missing or damaged file, a newer version and weights of another model.
    """
    directory, changes = run_directory(run), (*changes, *as_changes(fields))
    task: AnyTask = read_run(directory, changes)[1] if changes else read_task(directory)
    if not (directory / WEIGHTS).is_file():
        raise DataError(
            f"load: expected {WEIGHTS} in {directory}, got none; the run has not been evaluated yet: continue training"
        )
    with file_errors(directory):
        _check_size(task, directory / WEIGHTS)
        model = task.build_model()
    load_weights(model, directory / WEIGHTS)
    predictor = replace(task.predictor(model.to(device or "cpu").eval()), files=StoredRun(str(run), directory, changes))
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


@dataclass(frozen=True)
class StoredRun:
    """The files of a loaded run, which write it again.

    Attributes:
        name: as it was passed to `load`.
        directory: of the run.
        changes: of its recipe, as they were passed to `load`.
    """

    name: str
    directory: Path
    changes: tuple[str, ...] = ()

    def save(self, model: nn.Module, directory: Path, *, half: bool) -> Path:
        """Write what is needed to use the run, without checkpoint and log, with the weights of the model."""
        if (directory / CONFIG).exists():
            raise DataError(f"save_pretrained: expected a new directory, got the run in {directory}; choose another")
        directory.mkdir(parents=True, exist_ok=True)
        for name in (VOCABULARY, *OPTIONAL):
            if (self.directory / name).exists():
                shutil.copyfile(self.directory / name, directory / name)
        stored, state = load_tensors(self.directory / WEIGHTS)
        tensors = {name: _as_stored(tensor, stored.get(name)) for name, tensor in named_tensors(model).items()}
        save_tensors(directory / WEIGHTS, half_precision(tensors) if half else tensors, state)
        write_json(directory / CONFIG, to_config(read_run(self.directory, self.changes)[0]))  # last: it makes a run
        return directory

    def push(self, model: nn.Module, repository: str, **options: Any) -> str:
        """Upload the same files to a repository of the Hub."""
        from huggingface_hub import HfApi

        api = HfApi()
        with TemporaryDirectory() as place:
            folder = self.save(model, Path(place, "run"), half=False)
            try:
                api.create_repo(repository, private=options["private"], exist_ok=True)
                done = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=options["message"])
            except Exception as error:  # the Hub's own errors and the network's
                raise DataError(
                    f"push_to_hub: expected a repository of the Hub that you may write to, got {error}; check the name "
                    f"{repository!r}, and log in with hf auth login"
                ) from error
        return str(done.commit_url)


def _as_stored(tensor: torch.Tensor, stored: torch.Tensor | None) -> torch.Tensor:
    """The tensor in the type in which a run stores it, if that loses nothing."""
    if stored is None:
        return tensor
    same = tensor.cpu().to(stored.dtype)
    return same if torch.equal(same.to(tensor.dtype), tensor.cpu()) else tensor


def save_pretrained(run: str | Path, directory: Path, *, half: bool = False) -> Path:
    """Copy what is needed to use a run into a new directory; see `Predictor.save_pretrained`.

    Args:
        run: directory of a run, or name of one inside the package.
        directory, half: as there.
    """
    return load(run).save_pretrained(directory, half=half)


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


def as_changes(fields: Mapping[str, Any]) -> list[str]:
    """Fields of a recipe by name as the texts that `override` reads.

    >>> as_changes({"mechanism": "entmax", "mechanism_options": {"alpha": 2}, "limit": None, "map_size": (7, 7)})
    ['mechanism=entmax', 'mechanism_options.alpha=2', 'limit=none', 'map_size=7,7']
    """
    changes = []
    for name, value in fields.items():
        if isinstance(value, Mapping):
            changes += [f"{name}.{change}" for change in as_changes(value)]
        else:
            items = value if isinstance(value, tuple | list) else [value]
            plain = [str(item).lower() if item is None or isinstance(item, bool) else str(item) for item in items]
            changes.append(f"{name}={','.join(plain)}")
    return changes


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
