"""The texts of a dataset whose place in the image is known: phrases, objects and questions with boxes or human maps."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from foveate.errors import DataError
from foveate.lab.data.samples import Dataset
from foveate.registry import lookup
from foveate.watch.cases import Case


def find_cases(dataset: Dataset, limit: int | None = None, kind: str | None = None) -> list[Case]:
    """The cases of a dataset.

    Args:
        dataset: any; what has no place is skipped.
        limit: the largest number of cases, taken evenly from the whole dataset.
        kind: "questions" (with boxes or human maps), "phrases" (of captions, with boxes) or "objects"; None for the
            first of them that the dataset has.

    Raises DataError if nothing has a place.
    """
    if kind is not None:
        lookup("texts", kind, KINDS)
    kinds = KINDS.values() if kind is None else [KINDS[kind]]
    found = next((cases for cases in (list(read(dataset)) for read in kinds) if cases), [])
    if not found:
        raise DataError(
            f"evaluate-attention: expected questions, phrases or objects with boxes, or human maps, in {dataset.name} "
            f"{dataset.split}, got none; use scenes, flickr30k, vqa-hat, or a directory with lines of objects and boxes"
        )
    if limit is None or limit >= len(found):
        return found
    return [found[number * len(found) // limit] for number in range(limit)]


def _questions(dataset: Dataset) -> Iterator[Case]:
    for question in dataset.questions:
        if question.boxes or question.human_maps:
            maps = () if question.boxes else question.human_maps
            yield Case(dataset.image(question), question.text, question.boxes, maps, is_question=True)


def _phrases(dataset: Dataset) -> Iterator[Case]:
    for caption in dataset.captions:
        for phrase in caption.phrases:
            if phrase.boxes:
                text, span = " ".join(caption.words(phrase)), (phrase.start, phrase.stop)
                # Joined by spaces, the tokens of a caption are its tokens again, so that the positions hold.
                yield Case(dataset.image(caption), text, phrase.boxes, caption=" ".join(caption.tokens), words=span)


def _objects(dataset: Dataset) -> Iterator[Case]:
    for image in dataset.images:
        things = dataset.objects_of(image.id)
        for name in dict.fromkeys(thing.name for thing in things):
            yield Case(image, name, tuple(thing.box for thing in things if thing.name == name))


KINDS: dict[str, Callable[[Dataset], Iterator[Case]]] = {
    "questions": _questions,
    "phrases": _phrases,
    "objects": _objects,
}
