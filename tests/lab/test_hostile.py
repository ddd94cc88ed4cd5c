"""Files from strangers: archives that name other files or claim sizes, texts of other systems; kills by the clock."""

from __future__ import annotations

import json
import os
import random
import sys
import tarfile
import time
from contextlib import suppress
from io import BytesIO
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from foveate.apps.cli import main
from foveate.errors import DataError
from foveate.lab.data import read_folder
from foveate.lab.data.folder_check import check_folder
from foveate.lab.data.image_sources import named_image, stored_images
from foveate.lab.data.shards import read_shards
from tests.lab.train.toy import register

ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("../../secret.png", "/etc/passwd.png", "..\\..\\secret.png", "a/../../secret.png")


def png(side: int = 8, seed: int = 0) -> bytes:
    file, pixels = BytesIO(), np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def archive(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w") as opened:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            opened.addfile(info, BytesIO(content))
    return path


class TestArchives:
    @pytest.mark.parametrize("name", BESIDE)
    def test_a_member_that_names_another_file_is_read_from_the_archive(self, name: str, tmp_path: Path) -> None:
        """Nothing is ever unpacked, so that a name is only a name."""
        (tmp_path / "secret.png").write_bytes(png(16, seed=1))
        home = tmp_path / "a" / "b"
        home.mkdir(parents=True)
        before = sorted(tmp_path.rglob("*"))
        archive(home / "train-0.tar", (name, png()), (name.replace(".png", ".txt"), b"A thing."))
        for record in (*stored_images(home), *stored_images(home / "train-0.tar")):
            assert record.pixels().shape == (8, 8, 3)
        with suppress(DataError):
            assert read_shards(home).images[0].pixels().shape == (8, 8, 3)
        made = {path.name for path in set(tmp_path.rglob("*")) - set(before)}
        assert made <= {"train-0.tar", ".captions-train.safetensors"}

    @pytest.mark.parametrize(
        "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE]
    )
    def test_links_and_devices_are_not_followed(self, kind: bytes, tmp_path: Path) -> None:
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(tmp_path / "secret.png")
        with tarfile.open(tmp_path / "train-0.tar", "w") as opened:
            info = tarfile.TarInfo("cat.png")
            info.type, info.linkname = kind, str(tmp_path / "secret.png")
            opened.addfile(info)
        with pytest.raises(DataError, match=r"images: expected images .* or archives"):
            stored_images(tmp_path / "train-0.tar")
        with pytest.raises(DataError, match=r"shards: expected captioned images"):
            read_shards(tmp_path)

    @pytest.mark.parametrize("claimed", [10**6, 2**33, 2**62])
    def test_a_size_that_the_file_does_not_have(self, claimed: int, tmp_path: Path) -> None:
        info = tarfile.TarInfo("cat.png")
        info.size = claimed
        header = info.tobuf(tarfile.GNU_FORMAT)
        (tmp_path / "train-0.tar").write_bytes(header + png())
        for read in (lambda: stored_images(tmp_path / "train-0.tar")[0].pixels(), lambda: read_shards(tmp_path)):
            with pytest.raises(DataError):
                read()
        caption = tarfile.TarInfo("cat.txt")
        caption.size = claimed
        (tmp_path / "train-0.tar").write_bytes(caption.tobuf(tarfile.GNU_FORMAT) + b"A cat.")
        with pytest.raises(DataError):
            read_shards(tmp_path)

    def test_an_image_of_many_pixels_inside(self, tmp_path: Path) -> None:
        file = BytesIO()
        Image.new("1", (20_000, 20_000)).save(file, "PNG")  # 50 kB of a compressed 400 million pixels
        archive(tmp_path / "train-0.tar", ("cat.png", file.getvalue()), ("cat.txt", b"A cat."))
        for record in (stored_images(tmp_path)[0], read_shards(tmp_path).images[0]):
            with pytest.raises(DataError, match=r"expected at most 50000000 pixels"):
                record.pixels()

    @pytest.mark.parametrize("name", ["photos.tar/../secret.png", "photos.tar//etc/passwd", "photos.tar/"])
    def test_a_name_inside_an_archive_is_a_member(self, name: str, tmp_path: Path) -> None:
        archive(tmp_path / "photos.tar", ("cat.png", png()))
        with pytest.raises(DataError, match="got no such member"):
            named_image(f"{tmp_path}/{name}")


TEXTS = {"jsonl": '{{"image": "{0}", "caption": "{1}"}}', "csv": "{0},{1}"}


class TestTexts:
    @pytest.mark.parametrize("suffix", TEXTS)
    @pytest.mark.parametrize("end", ["\n", "\r\n"])
    @pytest.mark.parametrize("mark", ["", "\ufeff"])
    def test_files_of_other_systems(self, suffix: str, end: str, mark: str, tmp_path: Path) -> None:
        rows = [("a.png", "A cat."), ("b.png", "Ein Bär."), ("a.png", "A cat again.")]
        for name in ("a.png", "b.png"):
            (tmp_path / name).write_bytes(png())
        lines = ["image,caption"] if suffix == "csv" else []
        lines += [TEXTS[suffix].format(*row) for row in rows]
        text = mark + end.join([*lines, "", ""])
        (tmp_path / f"all.{suffix}").write_bytes(text.encode())
        data = read_folder(tmp_path)
        assert [(one.image_id, one.text) for one in data.captions] == rows
        assert not check_folder(tmp_path).problems

    @pytest.mark.parametrize("suffix", TEXTS)
    def test_two_captions_of_one_id(self, suffix: str, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(png())
        if suffix == "csv":
            text = "image,id,caption\na.png,7,A cat.\na.png,7,A dog.\n"
        else:
            text = "".join(json.dumps({"image": "a.png", "id": 7, "caption": c}) + "\n" for c in ("A cat.", "A dog."))
        (tmp_path / f"all.{suffix}").write_text(text)
        with pytest.raises(DataError, match=r"7"):
            read_folder(tmp_path)
        assert check_folder(tmp_path).problems

    @pytest.mark.parametrize("suffix", TEXTS)
    def test_a_line_of_ten_megabytes(self, suffix: str, tmp_path: Path) -> None:
        (tmp_path / "a.png").write_bytes(png())
        lines = ["image,caption"] if suffix == "csv" else []
        lines += [TEXTS[suffix].format("a.png", "x" * 10_000_000)]
        (tmp_path / f"all.{suffix}").write_text("\n".join([*lines, ""]))
        with pytest.raises(DataError) as raised:
            read_folder(tmp_path)
        assert len(str(raised.value)) < 1000
        assert f"all.{suffix}" in str(raised.value)
        said = check_folder(tmp_path).problems
        assert said
        assert max(map(len, said)) < 1000


KEPT = ("foveate.apps.cli." + name for name in ("extract", "search", "compare"))


def run_alone(words: list[str], said: str) -> None:
    """A command in a process of its own, with what it prints in a file."""
    with Path(said).open("w") as sys.stdout:
        sys.stderr = sys.stdout
        register()
        code = main(words)
        sys.stdout.flush()
    os._exit(code)


def content(place: Path) -> dict[str, bytes]:
    """The files that a command makes, without those that hold times and without locks."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.suffix in (".h5", ".safetensors") and "checkpoint" not in path.name
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", ["extract", "index", "compare"])
def test_kill_9_at_random_moments_and_again_is_as_if_nothing_had_happened(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    for number in range(24):
        (images / f"{number:02}.png").write_bytes(png(112, number))
    made = {
        "extract": ["extract", "efficientnet-lite0", str(images), "OUT/a.h5", "--batch-size", "4"],
        "index": ["index", "scenes-search", str(images), "OUT/a.index", "--batch-size", "4"],
        "compare": ["compare", "toy", "--mechanisms", "softmax,tvmax", "epochs=2", "--out", "OUT/a", "--quiet"],
    }[command]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    server = get_context("forkserver")  # which imports torch once for all processes
    server.set_forkserver_preload([__name__, *KEPT])
    said = tmp_path / "said.txt"

    def start(place: str, kill_after: float | None = None) -> int:
        """Run the command, killed after so many seconds; returns its exit code, or minus the number of the signal."""
        (tmp_path / place).mkdir(exist_ok=True)
        program = [part.replace("OUT", str(tmp_path / place)) for part in made]
        process = server.Process(target=run_alone, args=(program, str(said)))
        process.start()
        process.join(300 if kill_after is None else kill_after)
        process.kill()
        process.join(60)
        assert process.exitcode is not None
        return process.exitcode

    start("first")  # reads what later processes find in the cache of files
    begun, chosen = time.monotonic(), random.Random(command)
    assert start("whole") == 0, said.read_text()
    seconds = time.monotonic() - begun
    kills = sum(start("killed", chosen.uniform(0.1, 0.2 + 0.2 * attempt) * seconds) == -9 for attempt in range(6))
    assert start("killed") == 0, said.read_text()
    assert kills > 0
    assert content(tmp_path / "killed") == content(tmp_path / "whole") != {}
