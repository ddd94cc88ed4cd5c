"""Matching as reports, the demo and the studio show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from foveate.lab.tasks.images import captioned_images
from foveate.lab.tasks.presentation import Demo, DrawnExample, Measure, Presentation, Rated, fraction

if TYPE_CHECKING:
    from foveate.lab.data.samples import Caption, Dataset, ImageRecord
    from foveate.lab.tasks.matching.data import CaptionPairs
    from foveate.lab.tasks.matching.predictor import MatchingPredictor


def draw_words(
    predictors: Mapping[str, MatchingPredictor], examples: CaptionPairs, count: int
) -> Iterator[DrawnExample]:
    """Draw where the words of the same captions look with each predictor, with one attention map per word.

    Models whose words do not attend to the image are skipped.

    The arguments are those of `Presentation.draw`.
    """
    data = examples.data
    first = [data.captions_of(image.id)[0] for image in captioned_images(data)[:count]]
    yield from _draw_captions(predictors, data, first)


def draw_chosen_words(
    predictors: Mapping[str, MatchingPredictor], examples: CaptionPairs, ids: Sequence[str]
) -> Iterator[DrawnExample]:
    """Draw the captions with these ids, as `draw_words` does."""
    data = examples.data
    known = {str(caption.id): caption for image in captioned_images(data) for caption in data.captions_of(image.id)}
    yield from _draw_captions(predictors, data, [known[key] for key in ids if key in known])


def _draw_captions(
    predictors: Mapping[str, MatchingPredictor], data: Dataset, captions: Sequence[Caption]
) -> Iterator[DrawnExample]:
    from foveate.plot import strip

    for caption in captions:
        image, text = data.image(caption), caption.text
        for name, predictor in predictors.items():
            if not predictor.words_attend:
                continue
            found = predictor.look(image.pixels(), text)
            if found.attention.grid is not None:
                score = float(predictor.match([image.pixels()], [text]))
                figure = strip(image.pixels(), found.words, found.attention)
                yield DrawnExample(text, f"{name}, score {score:.2f}", f"{name}: {text}", figure)


def rate_words(predictor: MatchingPredictor, data: Dataset, image: ImageRecord) -> Rated | None:
    """Draw where the words of the first caption of an image look; None for models whose words do not attend."""
    captions = data.captions_of(image.id)
    if not captions or not predictor.words_attend:
        return None
    found = predictor.look(image.pixels(), captions[0].text)
    return Rated(captions[0].text, "", found.words, found.attention)


def _recall(label: str) -> Measure:
    return Measure(label, "%", "higher", 1)


PRESENTATION = Presentation(
    headlines={
        "rsum": "rsum",
        "i2t_r1": "i2t R@1",
        "i2t_r5": "i2t R@5",
        "i2t_r10": "i2t R@10",
        "t2i_r1": "t2i R@1",
        "t2i_r5": "t2i R@5",
        "t2i_r10": "t2i R@10",
        "attention_precision": "precision",
        "attention_recall": "recall",
        "attention_f1": "F1",
    },
    measures={
        "rsum": Measure("sum of the six recalls", "", "higher", 1),
        **{f"i2t_r{k}": _recall(f"a caption of the image among the first {k}") for k in (1, 5, 10)},
        **{f"t2i_r{k}": _recall(f"the image of a caption among the first {k}") for k in (1, 5, 10)},
        "attention_precision": fraction("attended locations that belong to the named object", "higher"),
        "attention_recall": fraction("locations of the named object that are attended to", "higher"),
        "attention_f1": fraction("both (F1)", "higher"),
    },
    title="Where words look",
    about="The first caption of the same images, the first of the split, and where each of its words looks.",
    draw=draw_words,
    failures=("t2i_r1", "t2i_r5", "t2i_r10", "attention_f1"),
    draw_failures=draw_chosen_words,
    rate=rate_words,
    commands=(
        ("embed a directory of images", "foveate index RUN IMAGES images.index"),
        ("search it by a sentence", 'foveate search images.index "SENTENCE"'),
    ),
)
DEMO = Demo(
    "matching-scan-scenes",
    "scenes-matching",
    ("softmax", "sparsemax", "entmax", "tvmax"),
    ("softmax", "sparsemax"),
)
