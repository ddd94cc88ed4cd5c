"""Terminals, files and pipes of all kinds: no traceback, nothing late, nothing worked out that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.apps.cli import COMMANDS, Command, main
from foveate.apps.cli.main import usable_processors

ROOT = Path(__file__).resolve().parents[3]
entry = sys.modules["foveate.apps.cli.main"]  # whose name the package gives to a function


def foveate(
    *words: str, variables: Mapping[str, str] | None = None, shell: str = "", before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the program with these words; `shell` redirects its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", sys.executable, "-m", "foveate", *words]
    return subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False, preexec_fn=before)


@pytest.fixture
def image(tmp_path: Path) -> str:
    path = tmp_path / "image.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(path)
    return str(path)


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("cp1252", marks=pytest.mark.slow)])
@pytest.mark.parametrize("words", [["list", "mechanisms"], ["list", "recipes", "--json"]])
def test_any_encoding_of_the_output(encoding: str, words: list[str]) -> None:
    done = foveate(*words, variables={"PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr.count(b"Traceback")) == (0, 0), done.stderr
    text = done.stdout.decode(encoding)
    assert "softmax" in text
    if "--json" in words:
        whole = json.loads(foveate(*words, variables={"PYTHONIOENCODING": "utf-8"}).stdout)
        assert json.loads(text) == whole  # nothing is lost


def test_an_answer_in_ascii(image: str) -> None:
    done = foveate("answer", "scenes-vqa", image, "gibt es einen größeren Kreis → ?", variables={"LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    done = foveate("answer", "scenes-vqa", image, "größer?", variables={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0, done.stderr
    assert b"score" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["list", "tasks"], ["--help"], ["list", "tasks", "--json"]])
def test_a_full_disk_is_one_line(words: list[str]) -> None:
    done = foveate(*words, shell=">/dev/full")
    where = " ".join(["foveate", *words[:1]])
    assert done.returncode == 1
    said = f"{where}: expected to write its output, got No space left on device; free some space or write elsewhere\n"
    assert done.stderr.decode().endswith(said)
    assert b"Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_errors_that_cannot_be_printed_keep_their_exit_code() -> None:
    assert foveate("lst", shell="2>/dev/full").returncode == 2
    assert foveate("lst", shell="2>&-").returncode == 2


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_outputs(closed: str) -> None:
    done = foveate("list", "tasks", shell=closed)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert (b"captioning" in done.stdout) == (">&-" not in closed.split())


def test_a_closed_output_does_not_get_what_is_written_to_a_file(image: str, tmp_path: Path) -> None:
    out = tmp_path / "look.png"
    done = foveate("answer", "scenes-vqa", image, "is there a circle?", "--plot", str(out), shell=">&-")
    assert done.returncode == 0, done.stderr
    with Image.open(out) as written:
        assert written.size[0] > 100


def test_a_figure_that_becomes_too_large_is_one_line_and_leaves_no_file(image: str, tmp_path: Path) -> None:
    out = tmp_path / "look.png"
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))  # noqa: E731  in the child
    done = foveate("answer", "scenes-vqa", image, "is there a circle?", "--plot", str(out), before=limit)
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"expected to write" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["image.png"]


def test_output_appears_line_by_line() -> None:
    """Into a pipe, where Python would keep it until there are several thousand characters."""
    program = (
        "import sys; from foveate.apps.cli import main; from foveate.apps.cli.main import COMMANDS, Command;"
        "import types; module = types.ModuleType('slow');"
        "module.slow = lambda: (print('first'), sys.stdin.readline(), None)[2]; module.slow.__doc__ = 'Wait.';"
        "sys.modules['foveate.apps.cli.slow'] = module; COMMANDS['slow'] = Command('slow:slow', '', '');"
        "sys.exit(main(['slow']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        assert process.poll() is None
        process.communicate("go on\n", timeout=60)


THREADS = ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "False PASSIVE {usable}"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "False ACTIVE {usable}"),
        ({"OMP_NUM_THREADS": "3"}, "False PASSIVE 3"),
        ({"MKL_NUM_THREADS": "3"}, "False PASSIVE None"),
    ],
)
def test_threads_are_chosen_before_torch_loads_unless_the_user_says_otherwise(
    variables: dict[str, str], expected: str
) -> None:
    program = (
        "import os, sys; from foveate.apps.cli import main; main(['--version']); before = 'torch' in sys.modules;"
        "print(before, os.environ['OMP_WAIT_POLICY'], os.environ.get('OMP_NUM_THREADS'))"
    )
    environment = {name: value for name, value in os.environ.items() if name not in THREADS} | variables
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == expected.format(usable=usable_processors())


@pytest.mark.parametrize(("command", "threads"), [("demo", "2"), ("studio", "4"), ("train", "64")])
def test_a_tiny_model_takes_no_more_threads_than_help(
    command: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: dict[str, str] = {}
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(entry, "usable_processors", lambda: 64)
    monkeypatch.setattr(os, "environ", chosen)
    entry._choose_threads(COMMANDS[command].threads)
    assert chosen == {"OMP_WAIT_POLICY": "PASSIVE", "OMP_NUM_THREADS": threads}


def test_the_library_sets_no_variable() -> None:
    program = (
        "import os; before = dict(os.environ); import foveate as fv, torch; fv.tvmax(torch.zeros(2, 2));"
        "fv.load('scenes-vqa'); assert dict(os.environ) == before"
    )
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, check=True)


class TestBeforeWorking:
    """What cannot be written is said before anything is computed."""

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (["scenes", "--show", "x.txt"], "scenes: expected a file ending in .png"),
            (["scenes", "--show", "none/x.png"], "scenes: expected the directory none to write x.png into"),
            (["scenes", "file"], "scenes: expected a directory, got the file"),
            (["train", "vqa-mcan-scenes", "--out", "file/run"], "train: expected a directory, got the file"),
            (["compare", "vqa", "--out", "file"], "compare: expected a directory, got the file"),
            (["demo", "--out=file"], "demo: expected a directory, got the file"),
            (["tune", "vqa-mcan-scenes", "lr=1..2", "--out", "file"], "tune: expected a directory, got the file"),
            (["reproduce", "000-table-1", "--tiny", "--out", "file"], "reproduce: expected a directory"),
            (["extract", "efficientnet-lite0", ".", "file/store"], "extract: expected a directory, got the file"),
            (["extract", "efficientnet-lite0", ".", "."], "extract: expected a file, got the directory"),
            (["evaluate", "scenes-vqa", "--out", "none/a.json"], "evaluate: expected the directory none"),
            (["predict", "scenes-vqa", "--out", "none/a.json"], "predict: expected the directory none"),
            (["answer", "scenes-vqa", "a.png", "why?", "--plot", "look.txt"], "answer: expected a file ending in"),
            (["export", "scenes-vqa", "file/model.onnx"], "export: expected a directory, got the file"),
            (["compare", "vqa", "--mechanisms", ""], "compare: expected at least one mechanism, got ''"),
            (["compare", "vqa", "--mechanisms", ","], "compare: expected at least one mechanism, got ','"),
            (["demo", "--mechanisms", ","], "demo: expected at least one mechanism, got ','"),
            (["evaluate", "scenes-vqa", "--data", "none"], "data: expected the directory of the data, got 'none'"),
            (["train", "vqa-rdan-scenes", "--data", "none"], "data: expected the directory of the data, got 'none'"),
            (["compare", "vqa", "--data", "none"], "data: expected the directory of the data, got 'none'"),
            (["predict", "scenes-vqa", "--out", "a", "--data", "none"], "data: expected the directory of the data"),
            (["tune", "vqa-mcan-scenes", "lr=1..2", "--data", "none"], "data: expected the directory of the data"),
        ],
    )
    def test_outputs(self, words, said, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.chdir(tmp_path)
        Path("file").write_text("")
        assert main(words) in (1, 2)
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    @pytest.mark.parametrize("option", [["--beams", "100000"], ["--samples", "100000"], ["--samples", "-1"]])
    def test_numbers_that_would_take_all_memory(self, option, capsys) -> None:
        assert main(["caption", "scenes-captioning", "a.png", *option]) == 2
        assert f"expected {option[0]} as a whole number from" in capsys.readouterr().err

    def test_a_whole_file_system(self, tmp_path, monkeypatch, capsys) -> None:
        monkeypatch.setattr("foveate.lab.data.jsonl.MAX_ENTRIES", 5)
        for number in range(10):
            (tmp_path / f"{number}.txt").write_text("")
        assert main(["check", str(tmp_path)]) == 1
        assert "expected at most 5 files and directories" in capsys.readouterr().out

    @pytest.mark.parametrize("gone", [FileNotFoundError, PermissionError, NotADirectoryError])
    def test_directories_that_cannot_be_listed(self, gone, image, tmp_path, monkeypatch, capsys) -> None:
        """They are passed over: in /proc they come and go while they are read."""
        (tmp_path / "proc").mkdir()
        listed = os.scandir

        def scan(path="."):
            if Path(path).name == "proc":
                raise gone(path)
            return listed(path)

        monkeypatch.setattr(os, "scandir", scan)
        assert main(["check", str(tmp_path)]) == 0
        assert "1 of 1 images" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["x" * 5000, "x/" * 2500, "word " * 2000])
def test_long_values_are_cut_in_messages(path: str, capsys) -> None:
    for words in (["answer", path, "a.png", "why?"], ["answer", "scenes-vqa", path, "why?"], [path], ["list", path]):
        assert main(words) in (1, 2)
        error = capsys.readouterr().err
        assert "expected" in error
        assert len(error) < 2100
        assert "..." in error


def test_an_error_of_the_file_system_without_a_name_is_a_fault_of_ours(monkeypatch) -> None:
    def broken() -> None:
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(Command, "load", lambda command: broken)
    with pytest.raises(OSError, match="Bad file descriptor"):
        main([next(iter(COMMANDS))])
