"""Runs a table: makes the feature stores, trains what is not there yet, evaluates, and compares with the paper."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from foveate.errors import DataError, UnknownName
from foveate.io import read_json, write_json
from foveate.lab import hub
from foveate.lab.data.feature_store import StoreDescription
from foveate.lab.data.published_features import read_published
from foveate.lab.data.store_writer import import_features
from foveate.lab.encoders import directory_images, extract_features, pretrained_encoder
from foveate.lab.papers.tables.cost import recipe_of
from foveate.lab.papers.tables.table import Column, FeatureFile, PaperRow, PaperRun, Table
from foveate.lab.tasks import TASKS
from foveate.lab.train.evaluation import collect, evaluate_together, predict
from foveate.lab.train.override import override
from foveate.lab.train.processes import make_accelerator
from foveate.lab.train.recipe import Recipe, read_run, train_recipe
from foveate.lab.train.records import History
from foveate.lab.train.weights import WEIGHTS

CHOICE = "multiple choice"
SOURCE = "foveate reproduce writes it"
POLL = 0.5  # seconds between two looks for a file


@dataclass(frozen=True)
class Session:
    """One call of `foveate reproduce`.

    Attributes:
        name, table: of the table.
        root: directory of the data; None for a table without data.
        out: directory of all runs; those of other tables are used too.
        rows: of the table that are reproduced.
        seeds: trainings per row.
        small: fields to change in every recipe by the kind of its model, for a run on tiny files.
        progress: show progress.
        own: a run that every row evaluates, with the changes of the row, instead of trainings; None for the paper's.
    """

    name: str
    table: Table
    root: Path | None
    out: Path
    rows: tuple[PaperRow, ...]
    seeds: int = 1
    small: Mapping[type, Sequence[str]] | None = None
    progress: bool = True
    own: str | None = None

    @property
    def directory(self) -> Path:
        """Where the results of the table are written."""
        return self.out / self.name / ("" if self.own is None else Path(self.own).name)

    def recipe(self, run: PaperRun, seed: int) -> Recipe:
        """The recipe of a run with its seed, made small if the files are tiny."""
        recipe = recipe_of(run)
        changes = [] if self.small is None else self.small[type(recipe.settings.model)]
        return override(recipe, [*changes, f"training.seed={seed}"])

    def run_directory(self, run: PaperRun, seed: int) -> Path:
        """The directory of a run."""
        return self.out / f"{run.name}-{seed}"

    def trainings(self) -> Iterator[tuple[PaperRun, int, Path]]:
        """All trainings with their seeds and directories, each once."""
        for run in dict.fromkeys(run for row in self.rows for run in row.runs):
            for seed in range(self.seeds):
                yield run, seed, self.run_directory(run, seed)


def choose_rows(name: str, table: Table, only: Sequence[str]) -> tuple[PaperRow, ...]:
    """The rows called `only`, all of them if it is empty; the first too if others are measured relative to it.

    Raises UnknownName.
    """
    known = [row.name for row in table.rows]
    for wanted in only:
        if wanted not in known:
            raise UnknownName(f"row of {name}", wanted, known)
    relative = any(column.relative for column in table.columns)
    return tuple(
        row for place, row in enumerate(table.rows) if not only or row.name in only or (relative and place == 0)
    )


def check_files(name: str, table: Table, root: Path) -> None:
    """Raises DataError that names every missing file and where it comes from."""
    missing = table.missing(root)
    if missing:
        listed = "\n".join(f"  {file.name}  from {file.source}" for file in missing)
        raise DataError(
            f"reproduce: expected the files of {name} in {root}, got none of these {len(missing)}; put them there:\n"
            f"{listed}"
        )


def make_stores(session: Session, encoder: str | None = None) -> None:
    """Write the feature stores that are not there yet; an interrupted extraction resumes.

    Args:
        session: of a table with features.
        encoder: instead of the encoders of the table, for tiny files.
    """
    root, accelerator = session.root, make_accelerator()
    assert root is not None  # tables with features have data
    missing = [feature for feature in session.table.features if not (root / feature.store).is_file()]
    accelerator.wait_for_everyone()  # all processes have the same list
    for feature in missing:
        # Under torchrun every process encodes its part of the images; an import is the work of one.
        if feature.is_encoder or accelerator.is_main_process:
            _make_store(root, feature, encoder)
        while not (root / feature.store).is_file():  # an import may take longer than a collective call may wait
            time.sleep(POLL)
    accelerator.wait_for_everyone()


def _make_store(root: Path, feature: FeatureFile, encoder: str | None) -> None:
    source, out = feature.made_from.find(root), root / feature.store
    assert source is not None  # check_files found it
    out.parent.mkdir(parents=True, exist_ok=True)
    if feature.is_encoder:
        size = feature.size if encoder is None else 64
        extract_features(pretrained_encoder(encoder or feature.format, size=size), directory_images(source), out)
        return
    names = None if feature.names is None else root / feature.names
    records = read_published(feature.format, source, feature.split, names)
    import_features(records, out, StoreDescription(feature.format))


def train_all(session: Session) -> None:
    """Train or resume the runs of the rows; finished ones are skipped, whatever number of processes trained them."""
    planned = [(session.recipe(run, seed), directory) for run, seed, directory in session.trainings()]
    remaining = [(recipe, directory) for recipe, directory in planned if not _is_finished(recipe, directory)]
    make_accelerator().wait_for_everyone()  # all processes have the same list
    for recipe, directory in remaining:
        train_recipe(recipe, directory, root=session.root, resume=True, progress=session.progress)


def _is_finished(recipe: Recipe, directory: Path) -> bool:
    """True if the directory holds this very training with its last evaluation."""
    if not (directory / WEIGHTS).is_file():
        return False
    evaluations = History.load(directory, TASKS[recipe.task].objective).evaluations
    ended = bool(evaluations) and evaluations[-1].epoch >= recipe.training.epochs
    return ended and read_run(directory)[0] == recipe


def evaluate_all(session: Session) -> dict[str, list[dict[str, float]]]:
    """The metrics of every row, one mapping per seed; keys are "<split>: <metric>"."""
    if session.table.kind == "ratings":  # what people say, see foveate.lab.papers.rating.study_results
        return {row.name: [] for row in session.rows}
    return {
        row.name: [] if row.quoted else [_evaluate(session, row, seed) for seed in range(session.seeds)]
        for row in session.rows
    }


def _evaluate(session: Session, row: PaperRow, seed: int) -> dict[str, float]:
    """The metrics of a row, from a file if the row was evaluated before."""
    path = session.directory / f"{file_name(row.name)}-{seed}.json"
    if path.is_file():
        found: dict[str, float] = read_json("reproduce", path, SOURCE)
        return found | server_numbers(session, row, seed)
    runs = [str(session.run_directory(run, seed)) for run in row.runs]
    found = {}
    for split in session.table.splits:
        columns = [column for column in session.table.columns if column.split == split]
        found |= _evaluate_split(session, row, seed, runs, split, any(c.metric == CHOICE for c in columns))
    if make_accelerator().is_main_process:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, found)
    return found | server_numbers(session, row, seed)


def _evaluate_split(
    session: Session, row: PaperRow, seed: int, runs: list[str], split: str, choice: bool
) -> dict[str, float]:
    """Metrics of one split; without published answers, the result files for the evaluation server."""
    runs = runs if session.own is None else [session.own]
    changes = list(row.changes)
    loaded = [hub.load(run, changes) for run in runs]
    batch = read_run(runs[0])[0].training.batch_size
    examples = [one.task.examples(split, session.root) for one in loaded]
    if not _is_answered(examples[0]):
        _submit(session, row, seed, split, loaded[0], "")
        if choice:
            other = hub.load(runs[0], [*changes, "dataset=vqa-v1-choice"])
            _submit(session, row, seed, split, other, "-choice")
        return {}
    start = time.perf_counter()
    together = [
        collect(one.task, one.model, own, batch_size=batch, progress=session.progress)
        for one, own in zip(loaded, examples, strict=True)
    ]
    seconds = (time.perf_counter() - start) / len(examples[0])  # of the models, not of the metrics
    found = evaluate_together(together) | {"seconds": seconds}
    return {f"{split}: {name}": value for name, value in found.items()}


def _is_answered(examples: Any) -> bool:
    """False for questions without published answers."""
    questions = getattr(examples.data, "questions", ())
    return not questions or any(question.answers for question in questions)


def _submit(session: Session, row: PaperRow, seed: int, split: str, loaded: Any, end: str) -> None:
    rows = predict(loaded.task, loaded.model, loaded.task.examples(split, session.root))
    if make_accelerator().is_main_process:
        path = submission(session, row, seed, f"{split}{end}")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rows)


def submission(session: Session, row: PaperRow, seed: int, split: str) -> Path:
    """The result file of a row for the evaluation server."""
    return session.directory / "server" / f"{file_name(row.name)}-{seed}-{split}.json"


# How the evaluation server names its numbers, which are percentages.
SERVER = {
    "overall": "accuracy",
    "yes/no": "accuracy/yes/no",
    "number": "accuracy/number",
    "other": "accuracy/other",
}


def server_numbers(session: Session, row: PaperRow, seed: int) -> dict[str, float]:
    """What the evaluation server reported, from "<result file>-score.json" next to a result file.

    The file holds {"overall": 65.9, "yes/no": ..., "number": ..., "other": ...}.
    """
    found: dict[str, float] = {}
    for split in session.table.splits:
        for end in ("", "-choice"):
            path = submission(session, row, seed, f"{split}{end}-score")
            if path.is_file():
                given: dict[str, float] = read_json("reproduce", path, "write the server's numbers into it")
                known = SERVER if not end else {"overall": CHOICE}
                found |= {f"{split}: {ours}": given[name] / 100 for name, ours in known.items() if name in given}
    return found


def measure_all(session: Session, repetitions: int, tolerance: float) -> dict[str, list[dict[str, float]]]:
    """The metrics of a table that is measured without data."""
    assert session.table.measure is not None  # a table of this kind has one
    found = session.table.measure(repetitions, tolerance)
    return {row.name: [{f": {name}": value for name, value in found[row.name].items()}] for row in session.rows}


def value_of(
    session: Session, column: Column, row: PaperRow, found: Mapping[str, list[dict[str, float]]]
) -> float | None:
    """Our number of a cell in the paper's unit, the mean over seeds; None if there is none."""
    own = _raw(column, found[row.name])
    if own is None or not column.relative:
        return None if own is None else own * column.scale
    first = _raw(column, found[session.rows[0].name])
    return None if not first else own / first


def _raw(column: Column, metrics: Sequence[Mapping[str, float]]) -> float | None:
    key = f"{column.split}: {column.metric}"
    # A number of components that no example has is absent from the metrics.
    missing = 0.0 if column.metric.startswith("components =") else None
    values = [one.get(key, missing) for one in metrics if any(name.startswith(f"{column.split}:") for name in one)]
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def file_name(row: str) -> str:
    """The name of a row as that of a file.

    >>> file_name("test-MCA, λ = 10")
    'test-MCA-λ-=-10'
    """
    return re.sub(r"[^\w.=+-]+", "-", row)
