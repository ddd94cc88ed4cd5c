"""Trackers: a real TensorBoard file and a local MLflow hold what the log holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foveate.lab.train import Recipe, override
from foveate.lab.train.recipe import train_recipe
from foveate.lab.train.records import LOG, read_log

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def logged(directory: Path) -> dict[tuple[str, int], float]:
    """The numbers of the log by name and step."""
    return {
        (f"{line['event']}/{name}", line["step"]): value
        for line in read_log(directory / LOG)
        for name, value in line.items()
        if name not in ("step", "event", "time") and isinstance(value, int | float)
    }


def board(directory: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory / "tensorboard"))
    events.Reload()
    return {(tag, one.step): one.value for tag in events.Tags()["scalars"] for one in events.Scalars(tag)}


@pytest.mark.parametrize("change", ["tracker=tensorboard", "tensorboard=true"])
def test_tensorboard_has_the_log(tmp_path: Path, recipe: Recipe, change: str) -> None:
    pytest.importorskip("tensorboard", reason='needs the extra "tensorboard"')
    train_recipe(override(recipe, ["epochs=2", change]), tmp_path / "run", progress=False)
    found, expected = board(tmp_path / "run"), logged(tmp_path / "run")
    assert {"train/loss", "evaluate/accuracy"} <= {name for name, _ in found}
    assert found == pytest.approx(expected, rel=1e-5)


def test_mlflow_has_the_log_and_a_resumed_run_continues(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason='needs the extra "mlflow"')
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    train_recipe(override(recipe, ["epochs=1", "tracker=mlflow"]), tmp_path / "run", progress=False)
    train_recipe(override(recipe, ["epochs=2", "tracker=mlflow"]), tmp_path / "run", progress=False, resume=True)
    client = MlflowClient()
    [experiment] = [one for one in client.search_experiments() if one.name == "foveate"]
    [made] = client.search_runs([experiment.experiment_id])
    assert made.info.run_name == "run"
    assert made.data.params["training.optimiser.kind"] == "adam"
    expected = logged(tmp_path / "run")
    for name in ("train/loss", "evaluate/accuracy"):
        history = {(name, one.step): one.value for one in client.get_metric_history(made.info.run_id, name)}
        assert history == pytest.approx({key: value for key, value in expected.items() if key[0] == name})


def test_a_tracker_may_change_when_a_run_is_resumed(tmp_path: Path, recipe: Recipe) -> None:
    pytest.importorskip("tensorboard", reason='needs the extra "tensorboard"')
    train_recipe(override(recipe, ["epochs=1"]), tmp_path / "run", progress=False)
    train_recipe(override(recipe, ["epochs=2", "tracker=tensorboard"]), tmp_path / "run", progress=False, resume=True)
    steps = {step for name, step in board(tmp_path / "run") if name == "evaluate/accuracy"}
    assert steps == {max(line["step"] for line in read_log(tmp_path / "run" / LOG))}


def test_trackio_has_the_log(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trackio", reason='needs the extra "trackio"')
    import sqlite3
    from contextlib import closing

    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.chdir(tmp_path)
    train_recipe(override(recipe, ["epochs=2", "tracker=trackio"]), tmp_path / "run", progress=False)
    with closing(sqlite3.connect(tmp_path / "trackio" / "foveate.db")) as database:
        rows = database.execute("select step, metrics from metrics where run_name = 'run'").fetchall()
    found = {(name, step): value for step, metrics in rows for name, value in json.loads(metrics).items()}
    assert found == pytest.approx(logged(tmp_path / "run"))


def test_wandb_has_the_log(tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason='needs the extra "wandb"')
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    train_recipe(override(recipe, ["epochs=2", "tracker=wandb"]), tmp_path / "run", progress=False)
    wandb.teardown()  # the file is complete when its process has ended
    store = DataStore()
    store.open_for_scan(str(next(tmp_path.glob("wandb/offline-*/*.wandb"))))
    found = {}
    while (data := store.scan_data()) is not None:
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            step = record.history.step.num
            found.update({(key, step): value for key, value in items.items() if not key.startswith("_")})
    store.close()
    assert found == pytest.approx(logged(tmp_path / "run"))
