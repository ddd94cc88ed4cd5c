"""What people said: the results of a study, and the study behind a table of a paper."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foveate.errors import DataError
from foveate.io import atomic_write, write_json
from foveate.lab.papers.rating.rating_store import RatingStore
from foveate.lab.papers.rating.study import LEAST_RUNS, STUDY, Study, make_study
from foveate.lab.papers.tables.run import Session
from foveate.metrics.statistics import (
    Floats,
    Interval,
    PairedDifference,
    bootstrap_interval,
    krippendorff_alpha,
    p_in_words,
    paired_differences,
)

QUALITY, RELEVANCE = "quality", "attention relevance"
HEAD = ("rater", "image", "run", "question", "word", "rating")


@dataclass(frozen=True)
class StudyResults:
    """What raters said.

    Attributes:
        study: what was rated.
        raters: their codes.
        means: per question ("quality", "attention relevance") and run.
        differences: between all pairs of runs, corrected for their number.
        alpha: agreement of the raters per question (Krippendorff, ordinal); NaN with a single rater.
        rows: every rating: rater, image, run, question, word, rating.
    """

    study: Study
    raters: tuple[str, ...]
    means: Mapping[str, Mapping[str, Interval]]
    differences: Sequence[PairedDifference]
    alpha: Mapping[str, float]
    rows: Sequence[tuple[str, str, str, str, str, int]]

    def sentences(self) -> list[str]:
        """The significant differences, one sentence per question."""
        return [self._sentence(question) for question in self.means]

    def _sentence(self, question: str) -> str:
        own = [one for one in self.differences if one.measure == question]
        standing = [one for one in own if one.stands]
        if not standing:
            return (
                f"{question.capitalize()} does not differ significantly between the runs (corrected for {len(own)} "
                "comparisons)."
            )
        parts = []
        for one in standing:
            (better, worse), (high, low) = (one.first, one.second), one.means
            if high < low:
                better, worse, high, low = worse, better, low, high
            parts.append(
                f"{better} is rated higher than {worse} ({high:.2f} against {low:.2f}, {p_in_words(one.corrected)})"
            )
        return f"{question.capitalize()}: {'; '.join(parts)}."

    def to_json(self) -> dict[str, Any]:
        """Everything but the single ratings."""
        return {
            "runs": list(self.study.runs),
            "raters": len(self.raters),
            "images": len({row[1] for row in self.rows}),
            "ratings": len(self.rows),
            "means": {
                question: {run: [one.mean, one.low, one.high] for run, one in runs.items()}
                for question, runs in self.means.items()
            },
            "differences": [
                {
                    "question": one.measure,
                    "first": one.first,
                    "second": one.second,
                    "difference": [one.interval.mean, one.interval.low, one.interval.high],
                    "p": one.p,
                    "corrected p (Holm)": one.corrected,
                    "stands": one.stands,
                }
                for one in self.differences
            ],
            "alpha (Krippendorff, ordinal)": {
                question: None if math.isnan(value) else value for question, value in self.alpha.items()
            },
            "in words": self.sentences(),
        }

    def write(self, directory: Path) -> tuple[Path, Path]:
        """Write `results.json` and `ratings.csv`, and return their paths."""
        summary, table = directory / "results.json", directory / "ratings.csv"
        write_json(summary, self.to_json())
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(self.rows)
        with atomic_write(table) as temporary:
            temporary.write_text(text.getvalue(), encoding="utf-8")
        return summary, table


def read_results(study: Study) -> StudyResults:
    """The results of the ratings so far; raises DataError if there are none."""
    store = RatingStore(study)
    answers = {rater: store.read(rater) for rater in store.raters()}
    answers = {rater: own for rater, own in answers.items() if own}
    if not answers:
        raise DataError(
            f"rate: expected ratings in {store.directory}, got none; open the study with foveate rate STUDY"
        )
    kinds = [QUALITY] * study.rates_text + [RELEVANCE]
    tables = {kind: _tables(study, answers, kind) for kind in kinds}
    means = {kind: {run: bootstrap_interval(v) for run, v in table.items()} for kind, table in tables.items()}
    alpha = {kind: krippendorff_alpha(_units(study, answers, kind)) for kind in kinds}
    rows = [row for rater, own in answers.items() for row in _rows(study, rater, own)]
    return StudyResults(study, tuple(answers), means, paired_differences(tables), alpha, rows)


def _ratings(study: Study, answers: Mapping[int, Mapping[str, int]], item: int, run: int, kind: str) -> list[float]:
    """The ratings by one rater of one run's output for an image: its text, or each of its words; NaN if absent."""
    entry = study.items[item].entries[run]
    names = [f"{run}/quality"] if kind == QUALITY else [f"{run}/{place}" for place in range(len(entry.words))]
    own = answers.get(item, {})
    return [float(own.get(name, math.nan)) for name in names]


def _tables(study: Study, answers: Mapping[str, Mapping[int, Mapping[str, int]]], kind: str) -> dict[str, Floats]:
    """Per run the ratings (raters, images); the relevance of an image is the mean over its words."""
    return {
        name: np.array(
            [
                [float(np.mean(_ratings(study, own, item, run, kind))) for item in range(len(study.items))]
                for own in answers.values()
            ]
        )
        for run, name in enumerate(study.runs)
    }


def _units(study: Study, answers: Mapping[str, Mapping[int, Mapping[str, int]]], kind: str) -> Floats:
    """(raters, units): every text, or every word of every text."""
    places = [(item, run) for item in range(len(study.items)) for run in range(len(study.runs))]
    return np.array(
        [[x for item, run in places for x in _ratings(study, own, item, run, kind)] for own in answers.values()]
    )


def _rows(
    study: Study, rater: str, answers: Mapping[int, Mapping[str, int]]
) -> Iterator[tuple[str, str, str, str, str, int]]:
    for item, own in sorted(answers.items()):
        for name, rating in sorted(own.items()):
            run, _, question = name.partition("/")
            entry = study.items[item].entries[int(run)]
            word = "" if question == QUALITY else entry.words[int(question)].word
            kind = QUALITY if question == QUALITY else RELEVANCE
            yield rater, study.items[item].id, study.runs[int(run)], kind, word, int(rating)


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
