"""Runs to report on, without training: the embedded one under other names, with a log."""

from __future__ import annotations

import json
import shutil

import pytest

from foveate.lab.train.recipe import run_directory
from foveate.lab.train.records import CONFIG, LOG, METRICS


@pytest.fixture
def make_run(tmp_path):
    """`make_run(name, mechanism, accuracy)` returns the directory of a run with two evaluations and a log."""

    def make(name: str, mechanism: str = "softmax", accuracy: float = 0.5, speed: float = 80.0):
        directory = tmp_path / name
        shutil.copytree(run_directory("scenes-vqa"), directory)
        config = json.loads((directory / CONFIG).read_text())
        config["settings"]["mechanism"] = mechanism
        (directory / CONFIG).write_text(json.dumps(config))
        rows = [
            {"step": step, "epoch": step / 10, "metrics": {"accuracy": value, "js": 0.25, "js of uniform": 0.75}}
            for step, value in ((10, accuracy / 2), (20, accuracy))
        ]
        (directory / METRICS).write_text(json.dumps({"objective": "accuracy", "best": rows[1], "evaluations": rows}))
        lines = [
            {"step": s, "event": "train", "loss": 1 / s, "examples_per_second": speed, "time": 0.0} for s in (10, 20)
        ]
        (directory / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
        return directory

    return make
