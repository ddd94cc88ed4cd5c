"""What raters answered: one file per rater, to which lines are only ever appended."""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foveate.errors import DataError
from foveate.lab.papers.rating.study import Entry, Study

RATINGS = "ratings"
SCALE = (1, 2, 3, 4, 5)
_CODE = re.compile(r"[a-z0-9]{8}")


@dataclass(frozen=True)
class RatingStore:
    """The ratings of a study.

    A line holds all answers of one rater about one image; of several lines about the same image the last one counts. A
    line is written by one call and flushed to disk, so that it is there as a whole or not at all; an incomplete line
    that a crash left behind is skipped.

    Attributes:
        study: what is rated.
    """

    study: Study

    @property
    def directory(self) -> Path:
        """Of the files of the raters."""
        return self.study.directory / RATINGS

    def new_rater(self) -> str:
        """A random code; nothing else is known about a rater."""
        self.directory.mkdir(exist_ok=True)
        while (self.directory / f"{(code := secrets.token_hex(4))}.jsonl").exists():
            pass
        return code

    def raters(self) -> list[str]:
        """The codes of all raters with at least one answer."""
        return sorted(path.stem for path in self.directory.glob("*.jsonl") if _CODE.fullmatch(path.stem))

    def read(self, rater: str) -> dict[int, dict[str, Any]]:
        """The answers of a rater by image."""
        path = self._path(rater)
        found: dict[int, dict[str, Any]] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
            row = _parse(line)
            if row is not None:
                found[row["item"]] = row["answers"]
        return found

    def next_item(self, rater: str) -> int | None:
        """The first image in the rater's order that is not rated yet; None at the end."""
        done = self.read(rater)
        return next((item for item in self.study.order(rater) if item not in done), None)

    def add(self, rater: str, item: int, answers: Mapping[str, int]) -> None:
        """Append the answers about one image.

        Args:
            rater: a code.
            item: position of the image in the study.
            answers: 1 to 5 for each of `questions(study, item)`.

        Raises DataError, and writes nothing, if an answer is missing, unknown or not on the scale.
        """
        expected = questions(self.study, item)
        wrong = sorted({name for name in expected if answers.get(name) not in SCALE} | (answers.keys() - expected))
        if wrong:
            raise DataError(
                f"rate: expected an answer from 1 to 5 to every question, got none to {', '.join(wrong)}; answer all"
            )
        line = json.dumps({"item": item, "answers": dict(answers), "time": round(time.time())}, sort_keys=True) + "\n"
        path = self._path(rater)
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            size = os.fstat(handle).st_size
            broken = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
            os.write(handle, (("\n" if broken else "") + line).encode())
            os.fsync(handle)
        except OSError as error:
            raise DataError(f"rate: expected to write {path}, got {error}; free some space") from None
        finally:
            os.close(handle)

    def _path(self, rater: str) -> Path:
        if not _CODE.fullmatch(rater):
            raise DataError(
                f"rate: expected a code of eight letters and digits, got {rater!r:.20}; leave it empty to begin"
            )
        return self.directory / f"{rater}.jsonl"


def questions(study: Study, item: int) -> set[str]:
    """The names of all questions about an image: "<run>/quality", and "<run>/<place>" per rated word."""
    return {name for entry in study.items[item].entries for name in entry_questions(entry)}


def entry_questions(entry: Entry) -> list[str]:
    """The names of the questions about what one run made of an image."""
    quality = [f"{entry.run}/quality"] if entry.text else []
    return quality + [f"{entry.run}/{place}" for place in range(len(entry.words))]


def _parse(line: str) -> dict[str, Any] | None:
    """A line of a file of ratings; None if a crash has cut it off."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(row, dict) and type(row.get("item")) is int and isinstance(row.get("answers"), dict)
    return row if whole else None
