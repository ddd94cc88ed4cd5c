"""Visual question answering as reports, the demo and the studio show it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foveate.lab.data.samples import Dataset, ImageRecord, Question
from foveate.lab.tasks.images import is_on_disk
from foveate.lab.tasks.presentation import Demo, DrawnExample, Measure, Presentation, Rated, fraction

if TYPE_CHECKING:
    from foveate.lab.tasks.vqa.data import QuestionExamples
    from foveate.lab.tasks.vqa.predictor import VQAPredictor

TAGS = ("two-distant", "small")
MAX_COLUMNS = 5


def draw_answers(
    predictors: Mapping[str, VQAPredictor], examples: QuestionExamples, count: int
) -> Iterator[DrawnExample]:
    """Draw the same questions for all predictors, each with its answer and where it looked, beside the truth.

    Args:
        predictors: by the names of their runs.
        examples: of the split to ask about.
        count: number of questions.
    """
    yield from _draw_questions(predictors, examples.data, choose_questions(examples.data, count))


def draw_chosen_answers(
    predictors: Mapping[str, VQAPredictor], examples: QuestionExamples, ids: Sequence[str]
) -> Iterator[DrawnExample]:
    """Draw the questions with these ids, as `draw_answers` does."""
    known = {str(question.id): question for question in examples.data.questions}
    yield from _draw_questions(predictors, examples.data, [known[key] for key in ids if key in known])


def _draw_questions(
    predictors: Mapping[str, VQAPredictor], data: Dataset, questions: Sequence[Question]
) -> Iterator[DrawnExample]:
    from foveate.plot import compare

    for question in questions:
        pixels = data.image(question).pixels()
        maps = {}
        for name, predictor in predictors.items():
            found = predictor.answer(pixels, question.text)
            maps[f"{name}: {found.text} ({found.confidence:.2f})"] = found.attention
        figure = compare(pixels, maps, truth=true_map(question), columns=_columns(len(maps) + 2))
        answer = "not known" if question.answer is None else question.answer
        alt = f"{question.text} {'; '.join(maps)}"
        yield DrawnExample(question.text, f"right answer: {answer}", alt, figure)


def choose_questions(data: Dataset, count: int) -> list[Question]:
    """Questions of as many kinds as possible, the first of each kind, about different images.

    Questions whose image is not on disk are skipped.

    >>> from foveate.lab.data.scenes import make_scenes
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
            if new and (wanted is None or wanted in question.tags) and is_on_disk(data.image(question)):
                chosen.append(question)
                if wanted is not None:
                    break
    return chosen


def true_map(question: Question) -> np.ndarray[Any, Any] | None:
    """The mean human attention map, or the true region; None if neither is known."""
    if question.human_maps:
        maps = [load() for load in question.human_maps]
        average: np.ndarray[Any, Any] = np.mean([each / max(each.sum(), 1e-12) for each in maps], axis=0)
        return average
    return None if question.region is None else question.region()


def _columns(panels: int) -> int:
    """Panels per row, at most five, so that the rows are about equally full.

    >>> [_columns(panels) for panels in (4, 5, 6, 8, 11)]
    [4, 5, 3, 4, 4]
    """
    return math.ceil(panels / math.ceil(panels / MAX_COLUMNS))


def rate_answer(predictor: VQAPredictor, data: Dataset, image: ImageRecord) -> Rated | None:
    """The answer to the first question about an image, and where the model looked for it."""
    questions = data.questions_of(image.id)
    if not questions:
        return None
    found = predictor.answer(image.pixels(), questions[0].text)
    return Rated(questions[0].text, found.text, (found.text,), found.attention)


PRESENTATION = Presentation(
    headlines={
        "accuracy": "accuracy",
        "accuracy/yes/no": "yes/no",
        "accuracy/number": "number",
        "accuracy/other": "other",
        "accuracy/two-distant": "two distant",
        "js": "JS, bits",
        "js/two-distant": "JS, two distant",
        "mass": "mass in region",
        "area": "area",
        "components": "K*",
    },
    measures={
        "accuracy": fraction("right answers", "higher"),
        "js": Measure("distance from the true region (JS)", "bits", "lower"),
        "spearman": Measure("rank correlation with the true region", "", "higher"),
        "mass": fraction("attention inside the true region", "higher"),
        "pointing": fraction("strongest location inside the true region", "higher"),
        "area": fraction("image that receives any attention", digits=0),
        "entropy": Measure("entropy of the attention", "bits"),
        "regions": Measure("connected regions above uniform attention"),
        "components": Measure("components of the density"),
    },
    subsets={
        "yes/no": "yes or no",
        "number": "numbers",
        "other": "other",
        "two-distant": "two distant objects",
        "small": "one small object",
    },
    title="Where they look",
    about="The same questions for every run, the first of each kind in the split, not picked by hand. Above each map "
    "are the answer and its score; below it the fraction of the image that receives any attention (area), the number "
    "of components (K) and the Jensen-Shannon divergence from the truth in bits (JS, lower is better).",
    draw=draw_answers,
    failures=("accuracy", "js"),
    draw_failures=draw_chosen_answers,
    rate=rate_answer,
    rated_kind="answer",
    commands=(
        ("ask about your own image", 'foveate answer RUN image.jpg "QUESTION" --plot attention.png'),
        ("write the result file of an evaluation server", "foveate predict RUN --data DIR --out results.json"),
    ),
)
DEMO = Demo(
    "vqa-mcan-scenes",
    "scenes-vqa",
    ("softmax", "sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "multimodal"),
    ("softmax", "tvmax", "multimodal"),
)
