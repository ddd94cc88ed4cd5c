"""Trackers of experiments: the log of a run in TensorBoard, MLflow, Weights & Biases or Trackio, through accelerate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foveate.io import read_json, write_json
from foveate.registry import lookup, optional

PROJECT = "foveate"
STATE = "tracker.json"
# The package of each tracker, and the extra that provides it.
PACKAGES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "mlflow": ("mlflow", "mlflow"),
    "wandb": ("wandb", "wandb"),
    "trackio": ("trackio", "trackio"),
}


class Tracker:
    """Passes the numbers of a run on, on the first process only.

    Args:
        name: "tensorboard" writes files into the directory of the run, the others use the server that their own
            environment variables name (`MLFLOW_TRACKING_URI`, `WANDB_MODE`, ...), project "foveate".
        directory: of the run, whose name is that of the run at the tracker. A run that is resumed continues at MLflow
            and Weights & Biases; what was logged after its last checkpoint is there twice.
        config: fields of the run, logged once.

    Raises MissingExtra if the package of the tracker is not installed.
    """

    def __init__(self, name: str, directory: Path, config: Mapping[str, Any] | None = None) -> None:
        package, extra = lookup("tracker", name, PACKAGES)
        optional("train", package, extra=extra)
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        self.name, known = name, directory / STATE
        first = not known.exists()
        state: dict[str, str] = {} if first else read_json("resume", known, "foveate train writes it")
        options: dict[str, dict[str, Any]] = {
            "tensorboard": {"run_name": "tensorboard", "logging_dir": directory},
            "mlflow": {"experiment_name": PROJECT, "run_name": directory.name, "run_id": state.get("mlflow")},
            "wandb": {"run_name": PROJECT, "name": directory.name, "id": state.get("wandb"), "resume": "allow"},
            "trackio": {"run_name": PROJECT, "name": directory.name, "resume": "allow"},
        }
        self._tracker = LOGGER_TYPE_TO_CLASS[name](**options[name])
        self._tracker.start()
        if name in ("mlflow", "wandb"):
            run = self._tracker.tracker
            write_json(known, {**state, name: run.info.run_id if name == "mlflow" else run.id})
        if (
            config and name not in state and name != "tensorboard"
        ):  # accelerate's hparams of TensorBoard are a file more
            self._tracker.store_init_configuration(flat(config))

    def log(self, event: str, numbers: Mapping[str, Any], step: int) -> None:
        """Log numbers as `event/name`; other values are left out."""
        found = {f"{event}/{name}": value for name, value in numbers.items() if isinstance(value, int | float)}
        if self.name == "mlflow":  # which accepts no other characters
            found = {re.sub(r"[^\w./ -]", "_", name): value for name, value in found.items()}
        self._tracker.log(found, step=step)

    def close(self) -> None:
        """Write what is left."""
        self._tracker.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under their paths.

    >>> flat({"training": {"epochs": 2, "at": [1, 2]}})
    {'training.epochs': 2, 'training.at': '[1, 2]'}
    """
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}."))
        else:
            found[prefix + name] = value if isinstance(value, int | float | str | bool) else str(value)
    return found
