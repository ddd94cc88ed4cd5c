"""Captioning as reports, the demo and the studio show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from foveate.lab.tasks.images import captioned_images
from foveate.lab.tasks.presentation import Demo, DrawnExample, Measure, Presentation, Rated, fraction

if TYPE_CHECKING:
    from foveate.lab.data.samples import Dataset, ImageRecord
    from foveate.lab.tasks.captioning.data import CaptionExamples
    from foveate.lab.tasks.captioning.predictor import CaptionPredictor


def draw_captions(
    predictors: Mapping[str, CaptionPredictor], examples: CaptionExamples, count: int
) -> Iterator[DrawnExample]:
    """Draw the captions that each predictor writes for the same images, with one attention map per word.

    Args:
        predictors: by the names of their runs.
        examples: of the split.
        count: number of images.
    """
    yield from _draw_images(predictors, examples.data, captioned_images(examples.data)[:count])


def draw_chosen_captions(
    predictors: Mapping[str, CaptionPredictor], examples: CaptionExamples, ids: Sequence[str]
) -> Iterator[DrawnExample]:
    """Draw the images with these ids, as `draw_captions` does."""
    known = {str(image.id): image for image in captioned_images(examples.data)}
    yield from _draw_images(predictors, examples.data, [known[key] for key in ids if key in known])


def _draw_images(
    predictors: Mapping[str, CaptionPredictor], data: Dataset, images: Sequence[ImageRecord]
) -> Iterator[DrawnExample]:
    from foveate.plot import strip

    for image in images:
        humans = "; ".join(caption.text for caption in data.captions_of(image.id)[:2])
        for name, predictor in predictors.items():
            found = predictor.caption(image.pixels())
            if found.words and found.attention.grid is not None:
                title = f"{name}: {found.text}"
                figure = strip(image.pixels(), found.words, found.attention, original=True)
                yield DrawnExample(title, f"human captions: {humans}", title, figure)


def rate_caption(predictor: CaptionPredictor, data: Dataset, image: ImageRecord) -> Rated | None:
    """The caption that a run writes, and where it looked for every word."""
    found = predictor.caption(image.pixels())
    return Rated("", found.text, found.words, found.attention)


PRESENTATION = Presentation(
    headlines={
        "cider-d": "CIDEr-D",
        "bleu-4": "BLEU-4",
        "rouge-l": "ROUGE-L",
        "meteor": "METEOR",
        "rep": "REP",
        "js between words": "JS between words",
        "zero area": "zero area",
        "mentioned": "objects",
        "words": "words",
    },
    measures={
        "cider-d": Measure("CIDEr-D", "", "higher", 3),
        **{f"bleu-{n}": fraction(f"BLEU-{n}", "higher") for n in (1, 2, 3, 4)},
        "rouge-l": fraction("ROUGE-L", "higher"),
        "meteor": fraction("METEOR", "higher"),
        "spice": fraction("SPICE", "higher"),
        "rep": Measure("repetition (REP)", "", "lower"),
        "words": Measure("words per caption", digits=1),
        "js between words": Measure("distance between the maps of successive words (JS)", "bits"),
        "zero area": fraction("image that receives no attention"),
        "mentioned": fraction("annotated objects that are mentioned", "higher"),
    },
    title="What they write",
    about="The captions that each run writes for the same images, the first of the split, and where it looked for "
    "every word.",
    draw=draw_captions,
    failures=("cider-d", "rouge-l"),
    draw_failures=draw_chosen_captions,
    rate=rate_caption,
    rated_kind="caption",
    commands=(("caption your own image", "foveate caption RUN image.jpg --plot words.png"),),
)
DEMO = Demo(
    "captioning-lstm-scenes",
    "scenes-captioning",
    ("softmax", "sparsemax", "tvmax", "continuous-softmax", "multimodal"),
    ("softmax", "tvmax"),
)
