"""Runs are compared on the examples they share, in numbers and in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from foveate.apps.cli.main import main
from foveate.apps.report import ReportRun, RunComparison, compare_runs, write_report
from foveate.apps.report.tables import html_comparisons
from foveate.errors import DataError
from foveate.lab.tasks.vqa import VQA
from foveate.lab.train.records import EXAMPLES, read_examples, write_examples
from foveate.metrics.statistics import Interval, PairedDifference


def keep(directory: Path, accuracy: np.ndarray, js: np.ndarray) -> Path:
    keys = [(str(n), str(n // 3)) for n in range(len(js))]
    columns = {"accuracy": accuracy, "js": js}
    values = {name: dict(zip(keys, column.tolist(), strict=True)) for name, column in columns.items()}
    write_examples(directory / EXAMPLES, {**values, "area": {keys[0]: 1.0}})
    return directory


@pytest.fixture
def runs(make_run) -> list[ReportRun]:
    generator = np.random.default_rng(0)
    right = (generator.random(240) < 0.6).astype(float)
    base = generator.uniform(0.2, 0.4, 240)

    def seeds(name: str, shift: float) -> ReportRun:
        noise = [generator.normal(0, 0.01, 240) for _ in range(2)]
        made = [keep(make_run(f"{name}-{n}"), right, base + shift + one) for n, one in enumerate(noise)]
        return ReportRun(name, tuple(made))

    return [seeds("softmax", 0.0), seeds("multimodal", -0.046), seeds("tvmax", 0.0)]


def test_the_sentence_says_what_stands(runs: list[ReportRun]) -> None:
    sentence = compare_runs(runs).sentence()
    assert sentence.startswith("Against softmax on the same 240 examples, 2 seeds: ")
    assert "distance from the true region (JS): lower with multimodal (0.2" in sentence
    assert "p < 0.001" in sentence
    assert "tvmax" not in sentence
    assert "no significant difference in right answers" in sentence
    assert sentence.endswith("(Holm-corrected for 4 comparisons).")  # accuracy and JS; area has no better direction


def test_the_report_holds_the_sentence_and_every_comparison(runs: list[ReportRun], tmp_path: Path) -> None:
    text = write_report(tmp_path, "t", runs, examples=0).read_text(encoding="utf-8")
    assert text.index('<p class="takeaway">Against softmax') < text.index("<table")
    assert "lower with multimodal" in text
    assert "All comparisons (4)" in text
    rows = html_comparisons(compare_runs(runs)).split("<tr>")[2:]
    assert ["multimodal" in row for row in rows] == [True, False, True, False]
    assert [row.count('class="best"') > 0 for row in rows] == [False, False, True, False]


def _difference(name: str, mean: float, p: float, measure: str = "js") -> PairedDifference:
    way = -0.01 if mean < 0.3 else 0.01
    return PairedDifference(measure, name, "softmax", (mean, 0.3), Interval(way, way, way), p, p)


def test_runs_that_differ_in_the_same_way_share_a_phrase() -> None:
    shown = VQA.presentation
    several = [_difference("a", 0.25, 0.001), _difference("b", 0.35, 0.002), _difference("c", 0.4, 0.03)]
    sentence = RunComparison(several, {"js": 90}, 1, shown).sentence()
    label = "distance from the true region (JS)"
    assert f"{label}: lower with a (0.25 against 0.30 bits, p = 0.001), higher with b and c (0.35 to 0.40" in sentence
    assert "p ≤ 0.030)" in sentence
    every = RunComparison([_difference(n, 0.4, 0.01) for n in "abc"], {"js": 90}, 1, shown).sentence()
    assert f"{label}: higher with all others (0.40 against 0.30 bits, p ≤ 0.010)" in every


def test_metrics_can_be_named(runs: list[ReportRun]) -> None:
    assert {one.measure for one in compare_runs(runs, ["js"]).differences} == {"js"}
    assert not compare_runs(runs, ["area"]).differences


def test_only_shared_examples_count(runs: list[ReportRun]) -> None:
    path = Path(runs[1].directories[0]) / EXAMPLES
    values = read_examples(path)
    write_examples(path, {name: dict(list(own.items())[:100]) for name, own in values.items()})
    assert compare_runs(runs).examples["js"] == 100


def test_runs_without_single_values_are_left_out(runs: list[ReportRun], make_run, tmp_path: Path) -> None:
    (Path(runs[2].directories[1]) / EXAMPLES).unlink()
    assert {one.first for one in compare_runs(runs).differences} == {"multimodal"}
    (Path(runs[0].directories[0]) / EXAMPLES).unlink()
    assert compare_runs([replace(one) for one in runs]).sentence() == ""  # a run reads its values once
    shown = ReportRun("other split", runs[1].directories, metrics=({"accuracy": 0.5}, {"accuracy": 0.5}))
    assert shown.example_values() == []


def test_values_of_single_examples_survive_the_file(tmp_path: Path) -> None:
    values = {"a": {("1", "x"): 0.5, ("2", "y"): 1.0}, "b": {("2", "y"): 2.0, ("ü/3", "x"): 3.0}}
    write_examples(tmp_path / EXAMPLES, values)
    assert read_examples(tmp_path / EXAMPLES) == values
    write_examples(tmp_path / "none.npz", {})
    assert not (tmp_path / "none.npz").exists()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"{}"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / EXAMPLES).write_bytes(content)
    with pytest.raises(DataError, match=r"examples\.npz"):
        read_examples(tmp_path / EXAMPLES)


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    np.savez(tmp_path / EXAMPLES, names=objects, ids=objects, clusters=objects, values=objects)
    with pytest.raises(DataError, match=r"examples\.npz"):
        read_examples(tmp_path / EXAMPLES)


SMALL = ("model.hidden=16", "epochs=1", "limit=24", "steps=2")


@pytest.mark.parametrize(
    ("recipe", "metric"),
    [
        ("vqa-mcan-scenes", {"accuracy", "js", "mass"}),
        ("matching-scan-scenes", {"i2t_r1", "t2i_r10", "attention_f1"}),
        pytest.param(
            "captioning-lstm-scenes", {"cider-d", "rouge-l", "js between words"}, marks=pytest.mark.slow
        ),  # METEOR starts Java
    ],
)
def test_training_and_evaluation_keep_single_examples(recipe: str, metric: set[str], tmp_path: Path) -> None:
    assert main(["train", recipe, *SMALL, "--out", str(tmp_path / "run")]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "numbers.json")]) == 0
    numbers = json.loads((tmp_path / "numbers.json").read_text())["metrics"]
    for path in (tmp_path / "run" / EXAMPLES, tmp_path / "numbers.npz"):
        found = read_examples(path)
        assert metric <= set(found)
        for name in metric:
            assert np.mean(list(found[name].values())) == pytest.approx(numbers[name], abs=1e-5)
    pairs = {key for own in found.values() for key in own}
    assert len({cluster for _, cluster in pairs}) <= 24


def test_compare_prints_the_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--mechanisms", "softmax,sparsemax", "--seeds", "2", "--scratch", "", "--out", str(tmp_path)]
    assert main(["compare", "vqa-mcan-scenes", *SMALL, *options]) == 0
    assert "Against softmax on the same" in capsys.readouterr().out
    rows = json.loads((tmp_path / "compare.json").read_text())["differences"]
    assert {row["metric"] for row in rows} >= {"accuracy", "js", "mass"}
    assert {row["run"] for row in rows} == {"sparsemax"}
