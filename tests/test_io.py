"""Atomic writes, locks and JSON."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from pathlib import Path

import pytest

from foveate.errors import DataError
from foveate.io import ProgressBar, atomic_write, exclusive_lock, is_encodable, read_json, write_json


def test_a_failed_write_keeps_the_previous_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("before")

    def fail(error: Exception) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(DataError, match=r"atomic_write: expected to write .*a\.txt, got .*full; the previous file"):
        fail(OSError("disk full"))
    with pytest.raises(KeyError):
        fail(KeyError("of the caller"))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_temporary_file_of_a_killed_process_is_overwritten(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "a.txt") as temporary:
        temporary.write_text("left behind")
        left = temporary
    left.write_text("left behind")
    with atomic_write(tmp_path / "a.txt") as temporary:
        assert temporary == left
        temporary.write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_shared_writers_use_different_files_in_the_scratch_directory(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    path = tmp_path / "a.txt"
    with atomic_write(path, scratch=scratch, shared=True) as one, atomic_write(path, shared=True) as two:
        one.write_text("one")
        two.write_text("two")
        assert one.parent == scratch
        assert one != two
    assert path.read_text() == "one"  # the outer one is renamed last
    assert list(scratch.iterdir()) == []


def test_a_lock_is_exclusive_and_released(tmp_path: Path) -> None:
    with exclusive_lock("test", tmp_path / "new", "another one", "wait"):
        second = exclusive_lock("test", tmp_path / "new", "another one", "wait")
        with pytest.raises(
            DataError, match=r"test: expected exclusive access to .*new, got a lock held by another one"
        ):
            second.__enter__()
    with exclusive_lock("test", tmp_path / "new", "another one", "wait"):
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "expected JSON in .*a.json, got .*line 1 column 2.*truncated"),
        (b"\xff", "expected JSON in UTF-8 in .*a.json"),
        (b"[" * 100_000, "expected JSON in .*a.json, got .*recursion"),
        (b"9" * 5000, "expected JSON in .*a.json, got Exceeds the limit"),
    ],
)
def test_broken_json_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_json("test", tmp_path / "a.json", "somewhere")
    with pytest.raises(DataError, match=r"test: expected the file .*none\.json, got no such file; somewhere"):
        read_json("test", tmp_path / "none.json", "somewhere")


def test_json_is_read_as_written(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": [1, None]})
    assert read_json("test", tmp_path / "a.json", "") == {"ü": [1, None]}
    assert read_json("test", tmp_path / "a.json", "", object_hook=len) == 1
    assert is_encodable("ü")
    assert not is_encodable("a\ud800")


class TestProgressBar:
    def test_lines_without_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ProgressBar("extract", 4, initial=1, unit="image", every=0.0) as bar:
            bar.update(2)
            bar.update(1)
        lines = capsys.readouterr().err.splitlines()
        assert re.fullmatch(r"extract: 3 of 4 images, \S+ per second, about \d+ s left", lines[0])
        assert lines[1:] == ["extract: 4 of 4 images"]

    def test_the_first_step_and_the_last(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ProgressBar("train", 100, unit="step", every=1e9) as bar:
            for step in range(100):
                bar.update(note=f"loss {step}")
        first, last = capsys.readouterr().err.splitlines()
        assert first.startswith("train: 1 of 100 steps, loss 0, ")
        assert last == "train: 100 of 100 steps, loss 99"

    def test_a_line_every_twenty_seconds(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time, "monotonic", iter(range(0, 10_000, 6)).__next__)
        with ProgressBar("train", 50) as bar:
            for _ in range(49):
                bar.update()
        done = [int(line.split()[1]) for line in capsys.readouterr().err.splitlines()]
        assert done[0] == 1
        assert max(later - earlier for earlier, later in pairwise(done)) * 6 <= 24

    def test_quiet(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TQDM_DISABLE", "1")
        with ProgressBar("extract", 1) as bar:
            bar.update()
        assert capsys.readouterr().err == ""

    def test_silence(self, capsys: pytest.CaptureFixture[str]) -> None:
        with ProgressBar("extract", 1, show=False, every=0.0) as bar:
            bar.update(1)
        assert capsys.readouterr().err == ""
