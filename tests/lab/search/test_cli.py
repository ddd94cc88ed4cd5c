"""`foveate index` and `foveate search`, with stand-ins for trained runs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import Tensor

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab.search import Index
from tests.lab.search.runs import Colours, Contrary, Looking, paint
from tests.lab.train.forks import die, forked, wait


class Nothing:
    """A run of another task."""


RUNS = {"dan": Colours, "other": Nothing, "scan": Looking, "plain": Contrary, "moved": Colours}


@pytest.fixture(autouse=True)
def runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Directories with a configuration and weights that load as the stand-ins."""
    for name in RUNS:
        directory = tmp_path / "runs" / name
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")
        (directory / "model.safetensors").write_bytes(b"weights" if name in ("dan", "moved") else name.encode())

    def load(run: str, changes: object = (), device: str | None = None) -> object:
        if not (Path(run) / "config.json").is_file():
            raise DataError(f"load: expected the directory of a run, got {run!r}; train one")
        predictor = RUNS[Path(run).name]()
        predictor.task = Nothing()
        return predictor

    monkeypatch.setattr("foveate.lab.hub.load", load)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def indexed(capsys: pytest.CaptureFixture[str]) -> None:
    paint(Path("photos"))
    assert main(["index", "runs/dan", "photos", "found"]) == 0
    capsys.readouterr()


def test_index_and_extend(capsys: pytest.CaptureFixture[str]) -> None:
    paths = paint(Path("photos"))
    assert main(["index", "runs/dan", "photos", "found"]) == 0
    assert capsys.readouterr().out == "12 images added, 12 in found\n"
    Image.new("RGB", (4, 4), "yellow").save("photos/yellow.png")
    Path("photos/broken.jpg").write_bytes(b"nothing")
    assert main(["index", "runs/dan", "photos", "found", "--batch-size", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "1 images added, 13 in found\n"
    assert f"skipped {Path('photos/broken.jpg').resolve()}: open_image: expected a complete image" in shown.err
    index = Index("found")
    assert [index.name(n) for n in range(12)] == paths
    assert index.description.run == str(Path("runs/dan").resolve())
    assert index.description.dtype == "float16"
    assert main(["index", "runs/dan", "photos", "wide", "--dtype", "float32"]) == 0
    assert Index("wide").description.dtype == "float32"


def test_many_unreadable_images_are_reported_in_short(capsys: pytest.CaptureFixture[str]) -> None:
    paint(Path("photos"), shades=1)
    for n in range(25):
        Path(f"photos/broken{n:02}.jpg").write_bytes(b"nothing")
    assert main(["index", "runs/dan", "photos", "found"]) == 0
    shown = capsys.readouterr().err
    assert shown.count("skipped") == 20
    assert "and 5 more" in shown


def test_a_killed_index_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    paths = paint(Path("photos"))
    monkeypatch.setattr("foveate.lab.search.builder.SAVE_EVERY", 2)

    def killed() -> None:
        calls = iter(range(9))
        replace = os.replace

        def counted(*arguments: object) -> None:
            if next(calls) == 7:
                die()
            replace(*arguments)  # type: ignore[arg-type]

        os.replace = counted  # type: ignore[assignment]
        main(["index", "runs/dan", "photos", "found", "--batch-size", "2"])

    assert wait(forked(killed)) == -9
    there = len(Index("found"))
    assert 0 < there < 12
    assert main(["index", "runs/dan", "photos", "found"]) == 0
    assert f"{12 - there} images added, 12 in found" in capsys.readouterr().out
    assert sorted(Index("found").name(n) for n in range(12)) == paths


@pytest.mark.usefixtures("indexed")
def test_search_by_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "found", "something blue", "--top", "3"]) == 0
    out = capsys.readouterr().out
    assert "something blue" in out
    lines = [line for line in out.splitlines() if ".png" in line]
    assert len(lines) == 3
    assert "blue0.png" in lines[0]


@pytest.mark.usefixtures("indexed")
def test_search_by_image_and_among_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "found", "photos/red1.png", "--top", "1"]) == 0
    assert "red0.png" in capsys.readouterr().out
    Path("captions.txt").write_text("a red thing\na blue thing\n")
    assert main(["index", "runs/dan", "captions.txt", "texts"]) == 0
    assert "2 texts added, 2 in texts" in capsys.readouterr().out
    assert main(["search", "texts", "photos/blue2.png", "--top", "1"]) == 0
    assert "a blue thing" in capsys.readouterr().out


@pytest.mark.usefixtures("indexed")
def test_search_ranks_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "found", "blue", "--rerank", "runs/plain", "--top", "2", "--first", "6"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if ".png" in line]
    assert "blue0.png" not in lines[0]  # the contrary run puts the nearest last
    assert "-" in lines[0]


@pytest.mark.usefixtures("indexed")
def test_two_runs_rank_again_by_the_mean_of_their_scores(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Willing(Looking):
        """Matches by colour, three times as strongly as the contrary run does against it."""

        def match(self, images: Sequence[Any], texts: Sequence[str]) -> Tensor:
            return -3 * super().match(images, texts)

    monkeypatch.setitem(RUNS, "scan", Willing)
    scores = []
    for runs in ("runs/plain", "runs/scan", "runs/scan, runs/plain"):
        assert main(["search", "found", "blue", "--rerank", runs, "--top", "12", "--json"]) == 0
        scores.append({row["name"]: row["score"] for row in json.loads(capsys.readouterr().out)})
    plain, scan, both = scores
    assert plain != scan
    assert both == pytest.approx({name: (plain[name] + scan[name]) / 2 for name in plain}, abs=1e-5)


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize("rerank", [[], ["--rerank", "runs/plain"], ["--rerank", "runs/scan"]])
def test_search_draws(rerank: list[str]) -> None:
    assert main(["search", "found", "a $blue$ thing", "--plot", "out.png", "--top", "7", *rerank]) == 0
    with Image.open("out.png") as image:
        assert min(image.size) > 200


@pytest.mark.usefixtures("indexed")
def test_attention_is_drawn_over_the_images() -> None:
    sizes = {}
    for run in ("plain", "scan"):
        assert main(["search", "found", "blue", "--plot", f"{run}.png", "--top", "2", "--rerank", f"runs/{run}"]) == 0
        with Image.open(f"{run}.png") as image:
            sizes[run] = len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0))
    assert sizes["scan"] > 2 * sizes["plain"]  # the colours of the heat


def test_texts_are_drawn_on_the_image_asked_with() -> None:
    paint(Path("photos"))
    Path("captions.txt").write_text("a red thing\na blue thing\n")
    assert main(["index", "runs/dan", "captions.txt", "texts"]) == 0
    assert main(["search", "texts", "photos/red0.png", "--plot", "out.png", "--rerank", "runs/scan"]) == 0
    assert Path("out.png").stat().st_size > 1000


@pytest.mark.usefixtures("indexed")
def test_a_run_that_was_moved(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/dan").rename("runs/gone")
    assert main(["search", "found", "blue"]) == 1
    assert "load: expected the directory of a run, got" in capsys.readouterr().err
    assert main(["search", "found", "blue", "--run", "runs/moved"]) == 0


@pytest.mark.usefixtures("indexed")
def test_a_text_longer_than_any_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "found", "a blue thing " * 60, "--top", "1"]) == 0
    assert "blue" in capsys.readouterr().out


@pytest.mark.usefixtures("indexed")
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["index", "runs/other", "photos", "x"], 1, "index: expected a run with the call 'encode_image', got"),
        (["index", "runs/dan", "nowhere", "x"], 1, "index: expected the directory nowhere, got nothing there"),
        (["index", "runs/dan", "no.txt", "x"], 1, "index: expected a text file in UTF-8, got no.txt"),
        (["index", "runs/dan", "photos", "photos"], 1, "index: expected a new or empty directory, got photos"),
        (
            ["index", "runs/moved", "photos", "found", "--dtype", "float32"],
            1,
            "index: expected dtype = 'float16' as in",
        ),
        (["search", "photos", "blue"], 1, "index: expected the directory of an index, got photos without index.json"),
        (["search", "found", "cat.jpg"], 1, "search: expected a text or an existing image, got 'cat.jpg'"),
        (["search", "found", "blue", "--rerank", "runs/other"], 1, "search: expected a run with the call 'match', got"),
        (
            ["search", "found", "blue", "--run", "runs/other"],
            1,
            "search: expected a run with the call 'encode_image', got",
        ),
        (["search", "found", "blue", "--top", "0"], 2, "search: expected --top as a whole number >= 1, got '0'"),
        (
            ["search", "found", "photos/red0.png", "--rerank", "runs/scan"],
            1,
            "search: expected to re-rank images by a text or",
        ),
        (["serch", "found", "blue"], 2, "foveate: expected a known name, got 'serch'; did you mean 'search'?"),
    ],
)
def test_errors(arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("indexed")
def test_weights_of_another_run_raise_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/dan/model.safetensors").write_bytes(b"trained on")
    assert main(["search", "found", "blue"]) == 1
    assert "search: expected the run with weights" in capsys.readouterr().err
    assert main(["index", "runs/dan", "photos", "found"]) == 1
    assert "index: expected weights = " in capsys.readouterr().err


def test_nothing_to_draw(capsys: pytest.CaptureFixture[str]) -> None:
    Path("captions.txt").write_text("a red thing\n")
    assert main(["index", "runs/dan", "captions.txt", "texts"]) == 0
    assert main(["search", "texts", "red", "--plot", "out.png"]) == 1
    assert "search: expected images to draw, got a text and an index of texts" in capsys.readouterr().err
