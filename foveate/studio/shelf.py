"""The runs that the pages work with: those inside the package and those in a folder, loaded once and shared."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

from foveate import hub
from foveate.data.files import read_json
from foveate.errors import FoveateError
from foveate.registry import lookup
from foveate.report import REPORT
from foveate.search.index import MANIFEST
from foveate.studio.looks import with_softmax
from foveate.tasks import Predictor
from foveate.train.checkpoint import WEIGHTS
from foveate.train.folder import CONFIG
from foveate.train.history import METRICS

EMBEDDED = Path(hub.__file__).parent / "runs"
KEPT = 12
DEPTH = 3  # folders below the one of the runs


class Shelf:
    """Runs by name; the last KEPT things that were used stay in memory.

    Args:
        folder: whose runs and reports are offered, besides the embedded runs; nothing outside of it is.

    >>> [name for name in Shelf(Path("nowhere")).runs("vqa")]
    ['scenes-vqa']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._lock = Lock()
        self._locks: dict[tuple[str, str], Lock] = {}
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def runs(self, task: str | None = None) -> dict[str, Path]:
        """The folders of runs with weights, of one task or of all, embedded ones first, by the name to show."""
        found = {path.parent.name: path.parent for path in sorted(EMBEDDED.glob(f"*/{CONFIG}"))}
        found |= {str(path.parent.relative_to(self.folder)): path.parent for path in self._files(CONFIG)}
        return {
            name: folder
            for name, folder in found.items()
            if (folder / WEIGHTS).is_file() and task in (None, _about(folder).get("task"))
        }

    def reports(self) -> dict[str, Path]:
        """The reports in the folder, the newest first."""
        files = sorted(self._files(REPORT), key=lambda path: path.stat().st_mtime, reverse=True)
        return {str(path.parent.relative_to(self.folder)): path for path in files}

    def indexes(self) -> dict[str, Path]:
        """The folders of indexes to search in."""
        return {str(path.parent.relative_to(self.folder)): path.parent for path in self._files(MANIFEST)}

    def predictor(self, name: str) -> Predictor:
        """A run, loaded; a name that is not offered raises UnknownName."""
        return self._load("run", name, hub.load)

    def scorer(self, name: str) -> Predictor:
        """The run with softmax in place of its attention."""
        return self._load("scores", name, with_softmax)

    def kept(self, key: tuple[str, str], make: Callable[[], Any]) -> Any:
        """What `make` gave under this key, made once however many ask at the same time; the oldest are forgotten."""
        with self._lock:
            own = self._locks.setdefault(key, Lock())
        with own:
            value = self._kept.get(key)  # another thread may be forgetting it
            value = make() if value is None else value
            with self._lock:
                self._kept[key] = value
                self._kept.move_to_end(key)
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return value

    def table(self) -> list[list[str]]:
        """Name, task, mechanism and objective of every run."""
        rows = []
        for name, folder in self.runs().items():
            about, told = _about(folder), _told(folder)
            mechanism = str(about.get("settings", {}).get("mechanism", ""))
            rows.append([name, str(about.get("task", "")), mechanism, told])
        return rows

    def _load(self, kind: str, name: str, load: Callable[[str], Any]) -> Any:
        folder = lookup("run", name, self.runs())
        return self.kept((kind, name), lambda: load(str(folder)))

    def _files(self, name: str) -> list[Path]:
        """Files of a name up to DEPTH folders below, none that a link leads out of the folder."""
        if not self.folder.is_dir():
            return []
        patterns = ["/".join(["*"] * depth + [name]) for depth in range(1, DEPTH + 1)]
        found = [path for pattern in patterns for path in sorted(self.folder.glob(pattern))]
        home = self.folder.resolve()
        return [path for path in found if path.is_file() and path.resolve().is_relative_to(home)]


def _about(folder: Path) -> dict[str, Any]:
    try:
        about = read_json("studio", folder / CONFIG, "it is part of a run")
    except FoveateError:
        return {}
    return about if isinstance(about, dict) else {}


def _told(folder: Path) -> str:
    """The objective of the best evaluation in words; nothing when there is none."""
    try:
        told = read_json("studio", folder / METRICS, "it is part of a run")
        objective = told["objective"]
        return f"{objective} {told['best']['metrics'][objective]:.4g}"
    except (FoveateError, KeyError, TypeError, ValueError):
        return ""
