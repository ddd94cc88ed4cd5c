"""Which files of foveate a call visits, in order, and whether any call goes up the layers.

    python docs/walks.py            # prints the four walks of docs/architecture.md
    python docs/walks.py answer     # one of them

    python docs/walks.py --write    # writes them into docs/architecture.md

A file counts when one of its functions runs; code that runs because a module is imported does not count. A call that
goes from a lower layer into a higher one is reported, unless it runs a function that the higher layer passed down.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import foveate

PREFIX = str(Path(foveate.__file__).parent) + os.sep
# From the lowest layer to the highest; files at the top of the package are for all.
LAYERS = (
    "ops/",
    "attention/",
    "metrics/",
    "plot/",
    "watch/",
    "lab/data/",
    "lab/losses/",
    "lab/metrics/",
    "lab/encoders/",
    "lab/models/",
    "lab/tasks/",
    "lab/search/",
    "lab/train/",
    "lab/recipes/",
    "lab/hub.py",
    "lab/papers/",
    "apps/report/",
    "apps/",
)


class Walk:
    """The files that were visited, in order of the first visit, and the calls that went up the layers."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.upward: list[str] = []

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        """The profiling function of `sys.setprofile`."""
        file = _file(frame) if event == "call" else None
        if file is None or _runs_at_import(frame):
            return
        if file not in self.files:
            self.files.append(file)
        caller = _calling_file(frame)
        passed_down = frame.f_code.co_name in ("<genexpr>", "<lambda>", "__torch_function__")
        if caller is not None and _rank(caller) < _rank(file) and not passed_down:
            self.upward.append(f"{caller} -> {file}:{frame.f_code.co_name}")


@contextmanager
def traced() -> Iterator[Walk]:
    """Trace the calls inside."""
    walk = Walk()
    sys.setprofile(walk)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def _file(frame: FrameType) -> str | None:
    # Called for every function that runs, also of other libraries: plain strings, no Path.
    name = frame.f_code.co_filename
    return name[len(PREFIX) :] if name.startswith(PREFIX) else None


def _calling_file(frame: FrameType) -> str | None:
    """The nearest file of ours that led to a call."""
    above = frame.f_back
    while above is not None and _file(above) is None:
        above = above.f_back
    return None if above is None else _file(above)


def _runs_at_import(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and _file(frame) is not None:
            return True
        frame = frame.f_back
    return False


def _rank(file: str) -> int:
    return next((rank for rank, layer in enumerate(LAYERS) if file.startswith(layer)), -1)


def walk_answer(directory: Path) -> Walk:
    """`foveate answer scenes-vqa IMAGE QUESTION`."""
    image = _image(directory)
    return _command("answer", "scenes-vqa", str(image), "How many circles are there?")


def walk_train(directory: Path) -> Walk:
    """`foveate train vqa-mcan-scenes` on a few images."""
    out = str(directory / "run")
    return _command("train", "vqa-mcan-scenes", "limit=16", "epochs=1", "--out", out, "--quiet")


def walk_search(directory: Path) -> Walk:
    """`foveate search INDEX TEXT --rerank scenes-matching`."""
    _image(directory)
    run, index = str(directory / "run"), str(directory / "images.index")
    _command("train", "matching-mdan-scenes", "limit=8", "epochs=1", "steps=1", "--out", run, "--quiet")
    _command("index", run, str(directory), index)
    return _command("search", index, "a red circle", "--rerank", "scenes-matching")


def walk_tvmax(directory: Path) -> Walk:
    """`fv.tvmax(scores)` and its gradient."""
    import torch

    scores = torch.randn(1, 4, 4, requires_grad=True)
    tvmax = foveate.tvmax
    with traced() as walk:
        tvmax(scores).square().sum().backward()
    return walk


WALKS: dict[str, Callable[[Path], Walk]] = {
    "answer": walk_answer,
    "train": walk_train,
    "search": walk_search,
    "tvmax": walk_tvmax,
}


def _command(*arguments: str) -> Walk:
    from foveate.apps.cli import main

    with traced() as walk:
        status = main(arguments)
    if status != 0:
        raise SystemExit(f"walks: expected foveate {' '.join(arguments)} to succeed, got status {status}")
    return walk


def _image(directory: Path) -> Path:
    from PIL import Image

    from foveate.lab.data.scenes import make_scenes

    path = directory / "scene.png"
    Image.fromarray(make_scenes(split="val", count=1).images[0].pixels()).save(path)
    return path


def run(name: str) -> Walk:
    """One of the walks, in a temporary directory and without its output."""
    with TemporaryDirectory() as directory, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        return WALKS[name](Path(directory))


def as_markdown(name: str, walk: Walk) -> str:
    """A walk as a paragraph: one line per package, in order of the first visit."""
    rooms: dict[str, list[str]] = {}
    for file in walk.files:
        room, _, rest = file.rpartition("/")
        rooms.setdefault(room or "foveate", []).append(rest)
    lines = [f"**{WALKS[name].__doc__}** {len(walk.files)} files:", ""]
    lines += [f"- `{room}`: {', '.join(files)}" for room, files in rooms.items()]
    return "\n".join([*lines, ""])


def write() -> None:
    """Fill in the walks of docs/architecture.md."""
    page = Path(__file__).with_name("architecture.md")
    before, rest = page.read_text(encoding="utf-8").split("<!-- walks -->\n")
    after = rest.partition("<!-- /walks -->")[2]
    walks = "\n".join(as_markdown(name, run(name)) for name in WALKS)
    page.write_text(f"{before}<!-- walks -->\n{walks}<!-- /walks -->{after}", encoding="utf-8")


def main() -> None:
    if sys.argv[1:] == ["--write"]:
        write()
        return
    for name in sys.argv[1:] or WALKS:
        walk = run(name)
        print(f"\n{name}: {WALKS[name].__doc__} {len(walk.files)} files")
        print("\n".join(f"  {file}" for file in walk.files))
        for call in dict.fromkeys(walk.upward):
            print(f"  UP {call}")


if __name__ == "__main__":
    main()
