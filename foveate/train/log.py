"""What a training says while it runs: lines of `log.jsonl`, a bar on the screen, TensorBoard if wanted."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from tqdm import tqdm

from foveate.data.writing import appearing
from foveate.errors import DataError
from foveate.registry import optional


class RunLog:
    """Writes the log of a run; made on the first process only.

    Args:
        path: of `log.jsonl`.
        step: from which training goes on; later lines are dropped, since they will be written again.
        total: steps of the whole training.
        tensorboard: write for TensorBoard too, beside the log.
        progress: draw a bar if the screen can.

    Each line is a JSON object with "step", "event" ("train", "evaluate") and its numbers; "time" is seconds
    since the epoch.
    """

    def __init__(self, path: Path, *, step: int, total: int, tensorboard: bool = False, progress: bool = True) -> None:
        self._board = _open_board(path.parent) if tensorboard else None
        _cut(path, step)
        self._file = path.open("a", encoding="utf-8")
        self._bar = tqdm(
            total=total,
            initial=step,
            unit="step",
            dynamic_ncols=True,
            disable=None if progress else True,
            smoothing=0.1,
        )
        self.speaks = progress
        self._notes: dict[str, str] = {}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
        self._file.close()
        if self._board is not None:
            self._board.close()

    def write(self, event: str, step: int, numbers: Mapping[str, Any]) -> None:
        """Add a line, and its numbers to TensorBoard."""
        line = {"step": step, "event": event, **_plain(numbers), "time": round(time.time(), 3)}
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"write: expected room to write {self._file.name}, got {error}; make room and go on with --resume"
            ) from error
        if self._board is not None:
            for name, value in numbers.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{event}/{name}", value, step)

    def advance(self, loss: float) -> None:
        """Move the bar by one step."""
        if not self._bar.disable:
            self._notes["loss"] = f"{loss:.4g}"
            self._bar.set_postfix(self._notes, refresh=False)
            self._bar.update()

    def say(self, text: str, notes: Mapping[str, str]) -> None:
        """A line above the bar, and notes that stay beside it."""
        self._notes.update(notes)
        if self.speaks:
            self._bar.write(text, file=sys.stderr)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; one that a kill cut short is left out."""
    whole = path.read_text(encoding="utf-8").rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def _cut(path: Path, step: int) -> None:
    kept = [line for line in read_log(path) if line["step"] <= step]
    with appearing(path) as aside:
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _plain(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers that every reader of JSON takes: NaN and infinity become None."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in numbers.items()}


def _open_board(folder: Path) -> Any:
    optional("train", "tensorboard", extra="tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"))
