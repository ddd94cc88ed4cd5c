"""Several images at once: tables, sheets and pages."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from PIL import Image

from foveate.apps.cli import main
from foveate.lab.data.scenes import make_scenes


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    for n, image in enumerate(make_scenes(split="val", count=3).images):
        Image.fromarray(image.pixels()).save(tmp_path / "images" / f"{n}.png")
    return tmp_path / "images"


def test_captions_of_a_directory_become_a_table_a_sheet_and_a_page(images: Path) -> None:
    (images / "broken.png").write_text("no image")
    words = ["caption", "scenes-captioning", str(images), "--beams", "1"]
    assert main([*words, "--out", "captions.csv", "--plot", "sheet.png"]) == 0
    with open("captions.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["image"]).name for row in rows] == ["0.png", "1.png", "2.png", "broken.png"]
    assert all(row["caption"] and not row["warning"] for row in rows[:3])
    assert not rows[3]["caption"]
    assert "broken.png" in rows[3]["warning"]
    with Image.open("sheet.png") as sheet:
        assert sheet.width == 3 * 480
    assert main([*words, "--out", "page.html"]) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert page.count("<h3") == 3
    assert "data:image/png" in page


def test_one_question_about_several_images(images: Path) -> None:
    words = ["answer", "scenes-vqa", str(images / "0.png"), "How many shapes are there?"]
    assert main([*words, "--also", str(images / "1.png"), "--out", "answers.jsonl"]) == 0
    rows = [json.loads(line) for line in Path("answers.jsonl").read_text().splitlines()]
    assert [Path(row["image"]).name for row in rows] == ["0.png", "1.png"]
    assert all(row["answer"] and 0 < row["confidence"] <= 1 for row in rows)


def test_what_cannot_be_written_is_said_before_anything_is_loaded(
    images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["caption", "scenes-captioning", str(images), "--out", "a.xlsx"]) == 1
    assert "expected --out ending in .csv, .jsonl, .html" in capsys.readouterr().err
    (images / "none").mkdir()
    assert main(["answer", "scenes-vqa", str(images / "missing.png"), "Is it red?", "--also", str(images)]) == 1
    assert "missing.png, which does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_a_page_of_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "scenes-vqa", "limit=4", "--split", "val", "--out", "mistakes.html"]) == 0
    page = Path("mistakes.html").read_text(encoding="utf-8")
    assert "the worst" in page
    assert page.index("right answers: 0") < page.index("right answers: 1")
