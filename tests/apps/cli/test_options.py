"""Options are explained in our own words, every command prints JSON, and shells can complete it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import foveate
from foveate.apps.cli.doctor import packages_of_extras
from foveate.apps.cli.list import words
from foveate.apps.cli.main import COMMANDS, FLAGS, main
from foveate.apps.cli.terminal import as_json
from foveate.attention import Attended


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["caption", "run", "a.png", "--beams", "three"],
            "caption: expected --beams as a whole number from 1 to 1000, got 'three'",
        ),
        (
            ["caption", "run", "a.png", "--beams", "0"],
            "caption: expected --beams as a whole number from 1 to 1000, got '0'",
        ),
        (["caption", "run", "a.png", "--temperature", "hot"], "caption: expected --temperature as a number, got 'hot'"),
        (["compare", "vqa", "--seeds", "0"], "compare: expected --seeds as a whole number >= 1, got '0'"),
        (["demo", "--steps", "0"], "demo: expected --steps as a whole number >= 1, got '0'"),
        (["answer", "run", "a.png", "why?", "--tops", "3"], "got '--tops'; did you mean '--top'?"),
    ],
)
def test_wrong_options_are_explained_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_names_every_option_without_python_types(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "None" not in shown
    assert "<class" not in shown
    assert all(flag in shown for flag in FLAGS)


def test_json_is_all_that_stdout_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tasks", "--json"]) == 0
    captured = capsys.readouterr()
    assert set(json.loads(captured.out)) == {"tasks"}
    assert "description" in captured.err


def test_attention_as_json() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0]])
    attended = Attended(torch.zeros(1, 2), weights, None, (2, 2), None)
    assert as_json({"look": attended, "nothing": float("inf")}) == {
        "look": {"grid": [2, 2], "map": [[[0.5, 0.25], [0.25, 0.0]]]},
        "nothing": None,
    }


def test_verbose_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answer", "no-such-run", "a.png", "why?"]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert main(["answer", "no-such-run", "a.png", "why?", "--verbose"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_runs_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "broken").mkdir(parents=True)
    (tmp_path / "runs" / "broken" / "config.json").write_text("{}")
    assert main(["list", "runs", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["runs"]
    assert "accuracy" in found["scenes-vqa"]
    assert found["runs/broken"].startswith("cannot be read")


def test_doctor_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert main(["doctor", "--json"]) == 0
    findings = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    assert findings["foveate"]["found"] == metadata.version("foveate") == foveate.__version__
    assert not findings["Java"]["works"]
    assert "Java" in findings["Java"]["advice"]
    assert all(one["works"] or one["advice"] for one in findings.values())
    assert "dev" in packages_of_extras()
    assert "extra dev" not in findings


def test_every_command_can_be_completed() -> None:
    assert set(words()) == set(COMMANDS)


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = (
        capsys.readouterr().out + 'COMP_WORDS=(foveate answer --pl); COMP_CWORD=2; _foveate; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "--plot"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train"], "train: expected RECIPE, got nothing"),
        (["caption", "scenes-captioning"], "caption: expected IMAGE, got nothing"),
        (["answer"], "answer: expected RUN, IMAGE, QUESTION, got nothing"),
        (["predict", "scenes-vqa"], "predict: expected --out, got nothing"),
        (["search", "x", "y", "--top"], "search: expected a value after --top, got nothing"),
        (["search", "x", "y", "--top", "--plot", "a.png"], "search: expected a value after --top, got nothing"),
    ],
)
def test_what_is_missing_is_said_in_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error == f"{said}; see foveate {words[0]} --help\n"


def test_options_of_many_words_may_be_empty(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "no-such-table", "--only", "--dry-run"]) == 2
    assert "no-such-table" in capsys.readouterr().err


def test_a_pipe_that_is_closed_ends_the_command_quietly() -> None:
    program = "import sys; from foveate.apps.cli import main; sys.exit(main(['completion', 'bash']))"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_the_script_of_completion_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash", "--json"]) == 0
    assert "complete -o filenames -F _foveate foveate" in json.loads(capsys.readouterr().out)


def test_doctor_says_that_timm_brought_a_broken_torchvision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from foveate.apps.cli.doctor import _vision

    monkeypatch.setattr("foveate.apps.cli.doctor._version", lambda package: None)
    assert not list(_vision())
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr("foveate.apps.cli.doctor._version", {"torchvision": "0.28.0", "timm": "1.0.20"}.get)
    (found,) = _vision()
    assert not found.works
    assert found.found == "0.28.0 (timm brings it): operator torchvision::nms does not exist"
    assert found.advice == "pip uninstall torchvision timm: transformers fails with it"
