"""The study behind a table of a paper that people fill: made from its runs, read when it has been rated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foveate.errors import DataError
from foveate.lab.papers.rating.rating_store import RatingStore
from foveate.lab.papers.rating.study import LEAST_RUNS, STUDY, Study, make_study
from foveate.lab.papers.rating.study_results import StudyResults, read_results
from foveate.lab.papers.tables.run import Session

IMAGES = 100  # Martins et al. 2020, appendix B
TINY_IMAGES = 3


@dataclass(frozen=True)
class TableRatings:
    """What people said about the rows of a table.

    Attributes:
        metrics: mean ratings by row, one mapping per study; keys are ": <question>".
        notes: sentences for people: what to do next, or who rated and which differences are significant.
    """

    metrics: dict[str, list[dict[str, float]]]
    notes: list[str]


def table_ratings(session: Session, root: Path, images: int = IMAGES) -> TableRatings:
    """Make the study of a table if there is none, and read its ratings.

    Args:
        session: of a table whose runs are trained; the study compares those of seed 0.
        root: directory of the data.
        images: number of images of a new study.
    """
    metrics: dict[str, list[dict[str, float]]] = {row.name: [] for row in session.rows}
    directory = session.directory / "study"
    try:
        study = Study.load(directory) if (directory / STUDY).is_file() else _make(session, root, directory, images)
    except DataError as error:
        return TableRatings(metrics, [f"no study: {error}"])
    if not RatingStore(study).raters():
        again = "let people rate it, then run this command again"
        return TableRatings(metrics, [f"ratings: none yet; open the study with foveate rate {directory}, {again}"])
    found = read_results(study)
    for row in session.rows:
        run = session.run_directory(row.runs[0], 0).name
        if run in study.runs:
            metrics[row.name] = [{f": {question}": means[run].mean for question, means in found.means.items()}]
    return TableRatings(metrics, _notes(found))


def _make(session: Session, root: Path, directory: Path, images: int) -> Study:
    runs = [str(session.run_directory(row.runs[0], 0)) for row in session.rows]
    if len(runs) < max(LEAST_RUNS, len(session.table.rows)):
        raise DataError(
            f"reproduce: expected all {len(session.table.rows)} rows of {session.name} for its study, got {len(runs)}; "
            "reproduce all rows first"
        )
    return make_study(directory, runs, count=images, root=root, progress=session.progress)


def _notes(found: StudyResults) -> list[str]:
    rated = len({row[1] for row in found.rows})
    agreement = ", ".join(f"{value:.2f} on {question}" for question, value in found.alpha.items())
    return [
        f"{len(found.raters)} raters, {rated} images; Krippendorff's alpha (ordinal) {agreement}",
        *found.sentences(),
    ]
