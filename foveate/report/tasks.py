"""What only a report of one task shows: examples drawn for all runs, and commands; one row a task."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from foveate import hub
from foveate.data.samples import Dataset, Picture, Question
from foveate.models import Scorer
from foveate.report.runs import ReportRun
from foveate.tasks.captioning_predictor import CaptionPredictor
from foveate.tasks.matching_predictor import MatchingPredictor
from foveate.tasks.vqa import VQA
from foveate.tasks.vqa_predictor import VQAPredictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TAGS = ("two-distant", "small")


@dataclass(frozen=True)
class Drawn:
    """One example of a report.

    Attributes:
        title: what was asked.
        below: what is known about it.
        alt: the figure in words.
        figure: the example for all runs.
    """

    title: str
    below: str
    alt: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A row of the table of tasks.

    Attributes:
        title, about: of the section.
        draw: so many examples of a split for all runs, one after the other.
        commands: what to do with a run, as pairs of what it does and the command.
    """

    title: str
    about: str
    draw: Callable[[Sequence[ReportRun], Path | None, str, int], Iterator[Drawn]]
    commands: Callable[[str], Sequence[tuple[str, str]]]


def draw_vqa(runs: Sequence[ReportRun], data: Path | None, split: str, count: int) -> Iterator[Drawn]:
    """The same questions for all runs, each with its answer and where it looked, the truth beside it.

    Args:
        runs: of visual question answering on the same data.
        data: folder of the data, None for embedded data.
        split: to ask about.
        count: how many questions.
    """
    from foveate.plot import compare

    task = runs[0].opened[1]
    assert isinstance(task, VQA)
    asked = task.examples(split, data).data
    predictors = {run.name: hub.load(run.folders[0]) for run in runs}
    for question in choose_questions(asked, count):
        pixels = asked.picture(question).pixels()
        looks = {}
        for name, predictor in predictors.items():
            assert isinstance(predictor, VQAPredictor)
            found = predictor.answer(pixels, question.text)
            looks[f"{name}: {found.text} ({100 * found.confidence:.0f} %)"] = found.attention
        figure = compare(pixels, looks, truth=truth_of(question), columns=_columns(len(looks) + 2))
        right = "not known" if question.answer is None else question.answer
        yield Drawn(question.text, f"right answer: {right}", f"{question.text} {'; '.join(looks)}", figure)


def draw_captioning(runs: Sequence[ReportRun], data: Path | None, split: str, count: int) -> Iterator[Drawn]:
    """The captions that each run writes for the same pictures, with one map a word; the arguments of `draw_vqa`."""
    from foveate.plot import strip

    asked = cast(Any, runs[0].opened[1]).examples(split, data).data
    predictors = {run.name: hub.load(run.folders[0]) for run in runs}
    for picture in _there(asked)[:count]:
        people = "; ".join(caption.text for caption in asked.captions_of(picture.id)[:2])
        for name, predictor in predictors.items():
            assert isinstance(predictor, CaptionPredictor)
            found = predictor.caption(picture.pixels())
            if found.words and found.attention.grid is not None:
                figure = strip(picture.pixels(), found.words, found.attention)
                yield Drawn(f"{name}: {found.text}", f"people: {people}", f"{name}: {found.text}", figure)


def draw_matching(runs: Sequence[ReportRun], data: Path | None, split: str, count: int) -> Iterator[Drawn]:
    """Where the words of the same captions look with each run, with one map a word; the arguments of `draw_vqa`.

    Runs whose words do not look are passed over.
    """
    from foveate.plot import strip

    asked = cast(Any, runs[0].opened[1]).examples(split, data).data
    predictors = {run.name: hub.load(run.folders[0]) for run in runs}
    for picture in _there(asked)[:count]:
        text = asked.captions_of(picture.id)[0].text
        for name, predictor in predictors.items():
            assert isinstance(predictor, MatchingPredictor)
            if not isinstance(predictor.model.scorer, Scorer):
                continue
            looks = predictor.look(picture.pixels(), text)
            if looks.attention.grid is not None:
                score = float(predictor.match([picture.pixels()], [text]))
                figure = strip(picture.pixels(), looks.words, looks.attention)
                yield Drawn(text, f"{name}, score {score:.2f}", f"{name}: {text}", figure)


def choose_questions(data: Dataset, count: int) -> list[Question]:
    """Questions of as many kinds as possible, each the first of its kind and about a picture of its own.

    Those whose picture is not on disk are passed over.

    >>> from foveate.data.scenes import make_scenes
    >>> chosen = choose_questions(make_scenes(split="val", count=30), 3)
    >>> ["two-distant" in chosen[0].tags, "small" in chosen[1].tags, len({q.question_type for q in chosen})]
    [True, True, 3]
    """
    chosen: list[Question] = []
    for wanted in (*TAGS, None):
        for question in data.questions:
            if len(chosen) == count:
                return chosen
            new = all(q.question_type != question.question_type and q.image_id != question.image_id for q in chosen)
            if new and (wanted is None or wanted in question.tags) and _is_there(data.picture(question)):
                chosen.append(question)
                if wanted is not None:
                    break
    return chosen


def truth_of(question: Question) -> np.ndarray | None:
    """Where people looked on the whole, or the region one must look at; None where neither is known."""
    if question.looks:
        maps = [look() for look in question.looks]
        return np.mean([each / max(each.sum(), 1e-12) for each in maps], axis=0)
    return None if question.region is None else question.region()


def _columns(panels: int) -> int:
    """Panels in a row, at most five, so that the rows are filled alike.

    >>> [_columns(panels) for panels in (4, 5, 6, 8, 11)]
    [4, 5, 3, 4, 4]
    """
    return math.ceil(panels / math.ceil(panels / 5))


def _is_there(picture: Picture) -> bool:
    return not isinstance(picture.source, Path) or picture.source.is_file()


def _there(data: Dataset) -> list[Picture]:
    """The pictures that are on disk and have captions."""
    return [picture for picture in data.pictures if data.captions_of(picture.id) and _is_there(picture)]


def _vqa_commands(run: str) -> Iterable[tuple[str, str]]:
    folder = shlex.quote(run)
    yield "ask about a picture of yours", f'foveate answer {folder} picture.jpg "What is this?" --plot look.png'
    yield "answer a split for an evaluation server", f"foveate predict {folder} --data DIR --out results.json"


def _captioning_commands(run: str) -> Iterable[tuple[str, str]]:
    yield "write a caption for a picture of yours", f"foveate caption {shlex.quote(run)} picture.jpg --plot words.png"


SECTIONS: Mapping[str, Section] = {
    "vqa": Section(
        "Where they look",
        "The same questions for every run, the first of their kind in the split, not picked by hand. Above each map "
        "the answer and the confidence of the model, below it how much of the picture gets any attention (area), the "
        "number of components (K) and the Jensen-Shannon divergence from the truth in bits (JS, lower is better).",
        draw_vqa,
        lambda run: tuple(_vqa_commands(run)),
    ),
    "captioning": Section(
        "What they write",
        "The captions that each run writes for the same pictures, the first of the split, and where it looked for "
        "every word.",
        draw_captioning,
        lambda run: tuple(_captioning_commands(run)),
    ),
    "matching": Section(
        "Where words look",
        "The first caption of the same pictures, the first of the split, and where each of its words looks.",
        draw_matching,
        lambda run: (),
    ),
}
