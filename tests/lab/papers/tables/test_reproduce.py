"""`foveate reproduce`: plans, missing files, and whole tables on tiny files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foveate.apps.cli import main
from foveate.lab.data import FeatureStore
from foveate.lab.papers.rating import RatingStore, Study
from foveate.lab.papers.rating.rating_store import questions
from foveate.lab.papers.tables import TABLES


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_list_names_files_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tables"]) == 0
    usual = capsys.readouterr().out
    assert all(name in usual for name in TABLES)
    assert "v2_OpenEnded_mscoco_train2014_questions.json" in usual
    assert "416,025 steps" in usual
    assert main(["list", "tables", "--throughput", "100"]) == 0
    assert "at 100 tera-operations per second" in capsys.readouterr().out


def test_dry_run_prints_the_runs_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "001-table-6.3", "--data", ".", "--dry-run", "--only", "test-MCA, λ = 10", "--seeds", "2"]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "vqa-mcan-vqa2-continuous-1" in out
    assert "2-mca" not in out
    assert "missing: glove.6B.300d.txt" in out
    assert "foveate extract hf:microsoft/resnet-152 DATA/val2014 DATA/resnet-152-448/val.h5 --size 448" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["000-tabel-1", "--tiny"], "did you mean '000-table-1'?", 2),
        (["000-table-1", "--tiny", "--only", "Discrete"], "row of 000-table-1: expected a known name", 2),
        (["000-table-1"], "pass --data DIR or --tiny", 1),
        (["000-table-1", "--data", "."], "mscoco_val2014_annotations.json  from visualqa.org", 1),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], message: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == code
    assert message in capsys.readouterr().err


def reproduce(*arguments: str) -> None:
    assert main(["reproduce", *arguments, "--tiny", "--out", "out"]) == 0


def test_a_table_of_questions(capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "Unimodal continuous", "Multimodal continuous")
    reproduce("000-table-1", *only)
    first = capsys.readouterr().out
    assert "result files for the evaluation server" in first
    results = json.loads(Path("out/000-table-1/results.json").read_text())["metrics"]
    assert set(results) == {"Unimodal continuous", "Multimodal continuous"}
    rows = json.loads(Path("out/000-table-1/server/Multimodal-continuous-0-test-dev.json").read_text())
    assert {"question_id", "answer"} == set(rows[0])
    assert "65.5" not in first
    score = Path("out/000-table-1/server/Multimodal-continuous-0-test-dev-score.json")
    score.write_text('{"overall": 65.5, "yes/no": 80, "number": 40, "other": 50}')
    trained = Path("out/vqa-mcan-vqa2-multimodal-0/model.safetensors").stat().st_mtime_ns
    reproduce("000-table-1", *only)
    assert "65.5" in capsys.readouterr().out
    assert Path("out/vqa-mcan-vqa2-multimodal-0/model.safetensors").stat().st_mtime_ns == trained
    assert "What differs from the paper" in Path("out/000-table-1/report.html").read_text()


def test_multiple_choice_waits_for_the_server_too(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    reproduce("004-table-1", "--only", "DAN (ResNet)")
    assert "4 result files for the evaluation server" in capsys.readouterr().out
    for kind, score in (("test-dev", 0.5), ("test-dev-choice", 69.5)):
        path = Path(f"out/004-table-1/server/DAN-ResNet--0-{kind}-score.json")
        path.write_text(json.dumps({"overall": score}))
    reproduce("004-table-1", "--only", "DAN (ResNet)")
    out = capsys.readouterr().out
    assert "2 result files for the evaluation server" in out
    assert next(line for line in out.splitlines() if "test-dev MC" in line).split()[-2:] == ["69.5", "+0.4"]


def test_a_table_of_matching_averages_two_runs(capsys: pytest.CaptureFixture[str]) -> None:
    reproduce("002-table-1", "--only", "SCAN", "--seeds", "2")
    out = capsys.readouterr().out
    assert "463.5" in out
    runs = {path.name for path in Path("out").glob("matching-*")}
    assert runs == {f"matching-scan-flickr30k{way}-{seed}" for way in ("", "-i2t") for seed in (0, 1)}


def test_a_table_of_captions(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("PATH", "")  # without Java, whose tokenizer takes half a minute
    reproduce("003-figures", "--only", "TVmax")
    assert "js between words" in Path("out/003-figures/results.json").read_text()
    assert "28.2" in capsys.readouterr().out


def test_a_table_of_ratings_makes_its_study_and_reads_it(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    reproduce("003-table-2")
    first = capsys.readouterr().out
    assert "foveate rate out/003-table-2/study" in first
    study = Study.load(Path("out/003-table-2/study"))
    assert [name.removeprefix("captioning-lstm-coco") for name in study.runs] == ["-0", "-sparsemax-0", "-tvmax-0"]
    store = RatingStore(study)
    for rater in ("a" * 8, "b" * 8):
        for item in range(len(study.items)):
            # Captions of the three runs are rated 1, 2 and 3, all maps 4.
            names = questions(study, item)
            answers = {name: 1 + int(name[0]) if name.endswith("/quality") else 4 for name in names}
            store.add(rater, item, answers)
    reproduce("003-table-2")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cells = {
        (line[0], line[1]): (line[-3], line[-2]) for line in lines if line[-1:] and line[0] in ("softmax", "TVmax")
    }
    assert cells == {
        ("softmax", "caption"): ("3.5", "1"),
        ("softmax", "attention"): ("3.38", "4"),
        ("TVmax", "caption"): ("3.87", "3"),
        ("TVmax", "attention"): ("4.1", "4"),
    }
    assert "2 raters" in Path("out/003-table-2/report.html").read_text()


def test_some_rows_of_a_table_of_ratings(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("transformers")
    reproduce("003-table-2", "--only", "TVmax")
    assert "reproduce all rows first" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_every_table_runs_to_its_end(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "003-figures":  # has no column for METEOR, which takes 17 s per row to load; 003-table-1 has
        monkeypatch.setenv("PATH", "")
    if any(feature.is_encoder for feature in TABLES[name].features):
        pytest.importorskip("transformers")
    reproduce(name)
    out = capsys.readouterr().out
    assert all(row.name in out for row in TABLES[name].rows)
    assert Path(f"out/{name}/report.html").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "row"), [("003-figures", "TVmax"), ("002-table-1", "SCAN")])
def test_torchrun_trains_evaluates_and_encodes_with_two_processes(
    name: str, row: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every image is encoded, and one process finds the numbers of two."""
    if name.startswith("003"):
        pytest.importorskip("transformers")
    monkeypatch.setenv("PATH", "")  # without Java
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "foveate"]
    arguments = ["reproduce", name, "--only", row, "--tiny", "--out", "out"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[4]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("report:") == 1
    encoded = [feature for feature in TABLES[name].features if feature.is_encoder]
    for feature in encoded:
        images = list(Path("out/data", feature.made_from.name).rglob("*.jpg"))
        assert images
        assert len(FeatureStore(Path("out/data", feature.store)).ids) == len(images)
    path = Path("out", name, f"{row}-0.json")
    two = json.loads(path.read_text())
    path.unlink()
    reproduce(name, "--only", row)
    one = json.loads(path.read_text())
    timed = "test: seconds"
    assert one.pop(timed) > 0 < two.pop(timed)
    assert one == pytest.approx(two, abs=1e-6)
