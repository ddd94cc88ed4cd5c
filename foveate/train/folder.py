"""The folder of a run: claimed by one training at a time, and never mixed with another run."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import metadata
from pathlib import Path
from typing import Any

from foveate.data.files import read_json
from foveate.data.writing import alone, write_json
from foveate.errors import DataError
from foveate.train.checkpoint import WEIGHTS

CONFIG, VOCABULARY, ENVIRONMENT, LOG = "config.json", "vocabulary.json", "environment.json", "log.jsonl"
# a run may be made longer, or read its data in another way, without becoming another run
CHANGEABLE = frozenset(
    f"config.json.{name}"
    for name in ("about", *(f"training.{name}" for name in ("epochs", "steps", "patience", "save_every", "workers")))
)
PACKAGES = ("foveate", "torch", "accelerate", "safetensors", "numpy")


def open_run(folder: Path, documents: Mapping[str, Any], *, resume: bool) -> None:
    """Write what a new run is, or make sure that the folder holds this very run.

    Args:
        folder: of the run, there already.
        documents: JSON by file name: what the run is.
        resume: go on with a run that is there.

    A folder with a run raises DataError unless `resume`; one with another run always, with the first difference.
    """
    if not resume and (folder / CONFIG).exists():
        raise DataError(
            f"train: expected a new folder, got the run in {folder}; go on with it by --resume or choose another --out"
        )
    for name, document in documents.items():
        if (folder / name).exists():
            _check_same(name, read_json("resume", folder / name, "it is written by foveate train"), document)
    for name, document in documents.items():
        write_json(folder / name, document)


def run_folder(name: str | Path) -> Path:
    """The folder of a run: a path, or the name of a run inside the package.

    >>> run_folder("no-such-run")
    Traceback (most recent call last):
    foveate.errors.DataError: load: expected the folder of a run ... got 'no-such-run'; ...
    """
    embedded = Path(__file__).parent.parent / "runs"
    for folder in (Path(name).expanduser(), embedded / str(name)):
        if (folder / CONFIG).is_file():
            return folder
    known = sorted(path.parent.name for path in embedded.glob(f"*/{CONFIG}"))
    raise DataError(
        f"load: expected the folder of a run with {CONFIG} and {WEIGHTS}, got {str(name)!r}; "
        f"train one with foveate train, or use an embedded one: {', '.join(known) or 'none here'}"
    )


def note_environment(folder: Path, seed: int, processes: int, device: str, data: Mapping[str, str]) -> None:
    """Write what beside the recipe makes this run, or make sure that a run that goes on has the same data."""
    path = folder / ENVIRONMENT
    if path.exists():
        old = read_json("resume", path, "it is written by foveate train")
        _check_same(f"{ENVIRONMENT}.data", old.get("data"), dict(data))
        return
    versions = {name: _version(name) for name in PACKAGES}
    description = {
        "seed": seed,
        "versions": {"python": platform.python_version(), **versions},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": device,
        "processes": processes,
        "commit": _commit(),
        "data": dict(data),
    }
    write_json(path, description)


def lock(folder: Path) -> AbstractContextManager[None]:
    """Keep other trainings out of a folder."""
    return alone("train", folder, "another training", "wait for it or choose another --out")


def _check_same(path: str, old: Any, new: Any) -> None:
    if path in CHANGEABLE or old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            _check_same(f"{path}.{key}", old[key], new[key])
        return
    if isinstance(old, dict) and isinstance(new, dict):
        names = ", ".join(sorted(old.keys() ^ new.keys()))
        raise DataError(
            f"resume: expected the same fields in {path}, got a difference in {names}; choose another --out"
        )
    raise DataError(
        f"resume: expected {path} = {old!r:.80} as in the run, got {new!r:.80}; use the same or choose another --out"
    )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of foveate's own source when it runs from a clone."""
    source = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "-C", str(source), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
