"""The runs, reports and indexes that the pages offer: those in the package and those in a directory, loaded once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

from foveate.apps.report import FEW, REPORT, count_examples
from foveate.apps.studio.attention_maps import with_softmax
from foveate.errors import DataError, FoveateError
from foveate.io import read_json
from foveate.lab import hub
from foveate.lab.search.exact_index import MANIFEST
from foveate.lab.search.find import LANCE
from foveate.lab.train.records import CONFIG, EXAMPLES, METRICS, read_examples
from foveate.lab.train.weights import WEIGHTS
from foveate.registry import lookup
from foveate.watch.loading import NAMED

EMBEDDED = Path(hub.__file__).parent / "runs"
CACHE_SIZE = 12  # loaded runs and embedded galleries
SCENES, PHOTOGRAPHS = "Scenes", "photographs"  # what runs are trained on
PHOTO_ENCODER = "efficientnet_lite_pytorch"  # of the embedded runs for photographs
DEPTH = 3  # levels of subdirectories that are searched for runs, reports and indexes


class RunCatalogue:
    """Runs by name; the CACHE_SIZE most recently used ones stay in memory.

    Args:
        directory: its runs, reports and indexes are offered in addition to the embedded runs; nothing outside of it is.
        verify: compare indexes with their checksums.
        any_model: whether visitors may name any Hugging Face model, also one elsewhere on this machine or on the Hub.

    >>> [name for name in RunCatalogue(Path("nowhere")).runs("vqa")]
    ['photos-vqa', 'scenes-vqa']
    """

    def __init__(self, directory: Path, *, verify: bool = True, any_model: bool = True) -> None:
        self.directory, self.verify, self.any_model = Path(directory), verify, any_model
        self._lock = Lock()
        self._locks: dict[tuple[str, str], Lock] = {}
        self._cache: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def runs(self, task: str | None = None) -> dict[str, Path]:
        """The directories of runs with weights, of one task or of all, by display name; embedded runs come first."""
        found = {path.parent.name: path.parent for path in sorted(EMBEDDED.glob(f"*/{CONFIG}"))}
        found |= {str(path.parent.relative_to(self.directory)): path.parent for path in self._files(CONFIG)}
        return {
            name: directory
            for name, directory in found.items()
            if (directory / WEIGHTS).is_file()
            and (own := _read_config(directory).get("task")) is not None  # models of others have no task
            and task in (None, own)
        }

    def domain(self, name: str) -> str:
        """What a run was trained on: SCENES or PHOTOGRAPHS; raises UnknownName if no run of this name is offered.

        >>> RunCatalogue(Path("nowhere")).domain("scenes-vqa")
        'Scenes'
        """
        settings = _read_config(lookup("run", name, self.runs())).get("settings")
        dataset = str(settings.get("dataset", "")) if isinstance(settings, dict) else ""
        return SCENES if dataset.startswith("scenes") else PHOTOGRAPHS

    def trained_on(self, name: str) -> str:
        """What a run was trained on, in words.

        >>> RunCatalogue(Path("nowhere")).trained_on("photos-captioning")
        'photographs (flickr8k)'
        """
        settings = _read_config(lookup("run", name, self.runs())).get("settings")
        dataset = str(settings.get("dataset", "")) if isinstance(settings, dict) else ""
        known = f"{PHOTOGRAPHS} ({dataset})" if dataset else PHOTOGRAPHS
        return "Scenes, generated shapes" if self.domain(name) == SCENES else known

    def choices(self, task: str) -> list[tuple[str, str]]:
        """The runs of a task for a menu: what is shown, and the name."""
        return [(f"{name} · {self.domain(name)}", name) for name in self.runs(task)]

    def usual_run(self, task: str, domain: str) -> str | None:
        """The embedded run of a task for this kind of images; None if there is none, or its extra is not installed.

        A run of the directory answers only where a person chose it.

        >>> RunCatalogue(Path("nowhere")).usual_run("vqa", "Scenes")
        'scenes-vqa'
        """
        if domain == PHOTOGRAPHS and find_spec(PHOTO_ENCODER) is None:
            return None
        embedded = [name for name, path in self.runs(task).items() if path.parent == EMBEDDED]
        return next((name for name in embedded if self.domain(name) == domain), None)

    def first_run(self, task: str, domain: str) -> str | None:
        """The usual run, or the first of any kind, embedded ones before others; None if there is no run of the task."""
        return self.usual_run(task, domain) or next(iter(self.runs(task)), None)

    def code_name(self, name: str) -> str:
        """What `fv.load` takes for a run: its name if it is embedded, otherwise its directory."""
        directory = lookup("run", name, self.runs())
        return name if directory.parent == EMBEDDED else str(directory)

    def attends_by_softmax(self, name: str) -> bool:
        """Whether the weights of a run are softmax of its scores."""
        settings = _read_config(lookup("run", name, self.runs())).get("settings")
        return isinstance(settings, dict) and settings.get("mechanism") == "softmax"

    def reports(self) -> dict[str, Path]:
        """The reports in the directory, newest first."""
        own = [path for path in [self.directory / REPORT] if path.is_file()]
        files = sorted([*own, *self._files(REPORT)], key=lambda path: path.stat().st_mtime, reverse=True)
        names = {path: str(path.parent.relative_to(self.directory)) for path in files}
        return {self.directory.resolve().name if name == "." else name: path for path, name in names.items()}

    def indexes(self) -> dict[str, Path]:
        """The directories of indexes to search in, those of LanceDB included."""
        tables = [path for depth in range(DEPTH) for path in sorted(self.directory.glob("*/" * depth + f"*{LANCE}"))]
        home = self.directory.resolve()
        inside = [path for path in tables if path.is_dir() and path.resolve().is_relative_to(home)]
        found = [path.parent for path in self._files(MANIFEST)] + inside
        return {str(path.relative_to(self.directory)): path for path in found}

    def models(self) -> dict[str, Path]:
        """The Hugging Face models in the directory."""
        found = {str(path.parent.relative_to(self.directory)): path.parent for path in self._files(CONFIG)}
        return {name: directory for name, directory in found.items() if "model_type" in _read_config(directory)}

    def model_source(self, name: str) -> str:
        """What `foveate.watch.load_pretrained` takes: the directory of an offered model, or the name itself.

        Raises DataError for a model that is not offered, where visitors may not name any.
        """
        offered = self.models()
        if name in offered:
            return str(offered[name])
        if not self.any_model and name not in NAMED:
            raise DataError(
                f"models: expected one of {', '.join(offered) or 'no models'}, got {name!r:.60}; a server that other "
                "machines can reach only offers the models in its directory of runs"
            )
        return name

    def predictor(self, name: str) -> Any:
        """The predictor of a run; raises UnknownName if no run of this name is offered."""
        return self._load("run", name, hub.load)

    def scorer(self, name: str) -> Any:
        """The predictor of a run with softmax in place of its attention."""
        return self._load("scores", name, with_softmax)

    def cached(self, key: tuple[str, str], compute: Callable[[], Any]) -> Any:
        """The result of `compute` for this key, computed once even if several threads need it at the same time."""
        with self._lock:
            own = self._locks.setdefault(key, Lock())
        with own:
            value = self._cache.get(key)  # not `in`: another thread may be removing it
            value = compute() if value is None else value
            with self._lock:
                self._cache[key] = value
                self._cache.move_to_end(key)
                while len(self._cache) > CACHE_SIZE:
                    old, _ = self._cache.popitem(last=False)
                    self._locks.pop(old, None)
        return value

    def table(self) -> list[list[str]]:
        """Name, task, mechanism and best objective of every run."""
        rows = []
        for name, directory in self.runs().items():
            config = _read_config(directory)
            settings = config.get("settings")
            mechanism = str(settings.get("mechanism", "")) if isinstance(settings, dict) else ""
            rows.append([name, str(config.get("task", "")), mechanism, _best_objective(directory)])
        return rows

    def _load(self, kind: str, name: str, load: Callable[[str], Any]) -> Any:
        directory = lookup("run", name, self.runs())
        return self.cached((kind, name), lambda: load(str(directory)))

    def _files(self, name: str) -> list[Path]:
        """Files of this name up to DEPTH levels below the directory, except those that a link leads out of it."""
        if not self.directory.is_dir():
            return []
        patterns = ["/".join(["*"] * depth + [name]) for depth in range(1, DEPTH + 1)]
        found = [path for pattern in patterns for path in sorted(self.directory.glob(pattern))]
        home = self.directory.resolve()
        return [path for path in found if path.is_file() and path.resolve().is_relative_to(home)]


def _read_config(directory: Path) -> dict[str, Any]:
    """The configuration of a run; empty if it cannot be read."""
    try:
        config = read_json("studio", directory / CONFIG, "it is part of a run")
    except FoveateError:
        return {}
    return config if isinstance(config, dict) else {}


def _best_objective(directory: Path) -> str:
    """The objective of the best evaluation, for instance "accuracy 0.91 on 500", with the number of its examples."""
    try:
        metrics = read_json("studio", directory / METRICS, "it is part of a run")
        objective = metrics["objective"]
        best = f"{objective} {metrics['best']['metrics'][objective]:.4g}"
        count = count_examples(read_examples(directory / EXAMPLES)) if (directory / EXAMPLES).is_file() else 0
    except (FoveateError, OSError, LookupError, TypeError, ValueError):
        return ""
    return best if count == 0 else f"{best} on {count}" + (", too few to compare" if count < FEW else "")
