"""A study: images, what several runs make of each, and one attention map per content word, frozen before anyone rates.

STUDY/study.json     the runs, the seed, the scale of the colours, and per image every text and word
STUDY/images/        the images
STUDY/maps/          one image per word: the attention over the image
STUDY/ratings/       one file per rater, see `foveate.lab.papers.rating.rating_store`
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn.functional import interpolate

from foveate.checks import check_number
from foveate.errors import DataError, WrongValue
from foveate.io import ProgressBar, atomic_write, read_checked_json, with_checksum, write_json
from foveate.lab import hub
from foveate.lab.data.samples import Dataset, ImageRecord
from foveate.lab.tasks.images import is_on_disk
from foveate.lab.tasks.presentation import Rated
from foveate.plot.canvas import heat_colours, heat_scale
from foveate.plot.heat import heat, select_example

STUDY = "study.json"
SOURCE = "foveate rate --make writes it"
FORMAT = 1
LEAST_RUNS = 2
WIDTH = 360  # pixels of an image in a study
PEAK = 0.9  # quantile of the maps' largest values that gets the darkest colour
# Words that point at nothing in an image.
STOP_WORDS = frozenset(
    """
    a an the this that these those some any each of in on at to from by with without and or but as is are was were be
    been being am do does did has have had it its he she they them his her their there here what which who where when
    how why not no n't 's for into onto over under up down out off near next very while than then so such can will would
    """.split()  # noqa: SIM905 (a list of words reads better than a list of literals)
)


@dataclass(frozen=True)
class RatedWord:
    """A content word, and the file with its attention map."""

    word: str
    map: str


@dataclass(frozen=True)
class Entry:
    """What one run made of an image.

    Attributes:
        run: its position among the runs of the study.
        text: what it wrote; "" if it writes nothing.
        words: those that are rated.
    """

    run: int
    text: str
    words: tuple[RatedWord, ...]


@dataclass(frozen=True)
class Item:
    """One image of a study.

    Attributes:
        id: of the image.
        image: its file.
        prompt: what all runs were asked or shown besides; "" if nothing.
        entries: one per run.
    """

    id: str
    image: str
    prompt: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Study:
    """A study on disk.

    Attributes:
        directory: of its files.
        runs: names of the runs; raters never see them.
        seed: drew the images and draws the orders.
        items: the images.
        kind: what the text of an entry is called: "caption", "answer".
    """

    directory: Path
    runs: tuple[str, ...]
    seed: int
    kind: str
    items: tuple[Item, ...] = field(repr=False)

    @classmethod
    def load(cls, directory: Path) -> Study:
        """Read a study; raises DataError if its file is missing, damaged or changed since it was made."""
        found = read_checked_json("rate", directory / STUDY, SOURCE)
        try:
            if found["format"] != FORMAT:
                raise WrongValue(f"format {found['format']}")
            items = tuple(_item(one) for one in found["items"])
            study = cls(directory, tuple(map(str, found["runs"])), int(found["seed"]), str(found["kind"]), items)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"rate: expected a study in {directory / STUDY}, got {error}; {SOURCE}") from None
        for name in study.files():
            if ".." in Path(name).parts or not (directory / name).is_file():
                raise DataError(f"rate: expected the file {directory / name} of the study, got none; restore it")
        return study

    def files(self) -> Iterator[str]:
        """The names of all images and maps."""
        for item in self.items:
            yield item.image
            yield from (word.map for entry in item.entries for word in entry.words)

    def order(self, rater: str) -> list[int]:
        """The order in which a rater sees the images."""
        order = list(range(len(self.items)))
        random.Random(f"{self.seed}/{rater}").shuffle(order)
        return order

    def shuffled(self, rater: str, item: int) -> list[Entry]:
        """The entries of an image in the order in which a rater sees them, without a sign of their run."""
        entries = list(self.items[item].entries)
        random.Random(f"{self.seed}/{rater}/{item}").shuffle(entries)
        return entries

    @cached_property
    def rates_text(self) -> bool:
        """True if the runs write texts, whose quality is rated."""
        return any(entry.text for item in self.items for entry in item.entries)


def make_study(
    directory: Path,
    runs: Sequence[str],
    *,
    count: int = 100,
    seed: int = 0,
    split: str = "test",
    root: Path | None = None,
    max_words: int = 8,
    progress: bool = True,
) -> Study:
    """Draw images, let every run caption, answer or match them, and freeze everything in a new directory.

    Args:
        directory: to create.
        runs: directories or names of two or more runs of one task; fields may follow a run, as in
            "scenes-captioning mechanism=tvmax".
        count: number of images, drawn from the split.
        seed: of the draw, and of the orders in which raters see things.
        split: of the data of the first run.
        root: directory of the data; None for embedded data.
        max_words: content words per text that are rated, the first ones.
        progress: show a progress bar.

    Raises DataError for a directory that holds a study, for runs of different tasks, and if no image can be used.
    """
    check_number("rate", "images", count, least=1, advice="100 is what Martins et al. 2020 used")
    check_number("rate", "max_words", max_words, least=1, advice="use at least one")
    if (directory / STUDY).exists():
        raise DataError(f"rate: expected a new directory, got the study in {directory}; choose another")
    predictors = _load(runs)
    task = predictors[0].task
    rate = task.presentation.rate
    if rate is None:
        raise DataError(f"rate: expected runs whose output can be rated, got {type(task).__name__}; use another task")
    data = task.settings.read(split, root)
    drawn = _draw(data, rate, predictors, count, seed, progress)
    if not drawn:
        raise DataError(f"rate: expected images with attention maps in the split {split}, got none; use another split")
    top = float(
        np.quantile([float(m.max()) for _, rated in drawn for one in rated for _, m in maps_of(one, max_words)], PEAK)
    )
    items = [_freeze(directory, n, image, rated, top, max_words) for n, (image, rated) in enumerate(drawn)]
    names = [" ".join([Path(name).name, *changes]) for name, changes in map(_spec, runs)]
    content = {
        "format": FORMAT,
        "task": type(task).__name__,
        "kind": task.presentation.rated_kind,
        "runs": names if len(set(names)) == len(names) else [f"{n + 1}. {name}" for n, name in enumerate(names)],
        "seed": seed,
        "split": split,
        "darkest": top,
        "items": [asdict(item) for item in items],
    }
    write_json(directory / STUDY, with_checksum(content))
    return Study.load(directory)


def content_words(words: Sequence[str]) -> list[int]:
    """The positions of the words that name something; all of them if none does.

    >>> content_words(["a", "dog", "on", "the", "grass"])
    [1, 4]
    """
    found = [place for place, word in enumerate(words) if word.lower() not in STOP_WORDS]
    return found or list(range(len(words)))


def maps_of(rated: Rated, most: int) -> list[tuple[str, Tensor]]:
    """The content words of an output, each with its map relative to uniform attention."""
    places = content_words(rated.words)[:most]
    return [(rated.words[place], heat(_word(rated, place), cells=False)) for place in places]


def _word(rated: Rated, place: int) -> Any:
    index: Any = (0, place) if rated.attention.weights.ndim == 3 else 0
    return select_example("rate", rated.attention, index)


def _spec(run: str) -> tuple[str, tuple[str, ...]]:
    """A run and the fields to change in it.

    >>> _spec("scenes-captioning mechanism=tvmax")
    ('scenes-captioning', ('mechanism=tvmax',))
    """
    name, *changes = run.split()
    return name, tuple(changes)


def _load(runs: Sequence[str]) -> list[Any]:
    if len(runs) < LEAST_RUNS:
        raise DataError(f"rate: expected at least {LEAST_RUNS} runs to compare, got {len(runs)}; pass --runs A,B,C")
    predictors = [hub.load(*_spec(run)) for run in runs]
    kinds = {type(predictor.task).__name__ for predictor in predictors}
    if len(kinds) > 1:
        raise DataError(f"rate: expected runs of one task, got {', '.join(sorted(kinds))}; compare like with like")
    return predictors


def _draw(
    data: Dataset, rate: Any, predictors: Sequence[Any], count: int, seed: int, progress: bool
) -> list[tuple[ImageRecord, list[Rated]]]:
    """The first images of a random order for which every run has an output."""
    images = [image for image in data.images if is_on_disk(image)]
    random.Random(seed).shuffle(images)
    found = []
    with ProgressBar("study", min(count, len(images)), unit="image", show=progress) as bar:
        for image in images:
            rated = [rate(predictor, data, image) for predictor in predictors]
            if all(one is not None and one.words and one.attention.grid is not None for one in rated):
                found.append((image, rated))
                bar.update()
            if len(found) == count:
                break
    return found


def _freeze(directory: Path, number: int, image: ImageRecord, rated: Sequence[Rated], top: float, most: int) -> Item:
    pixels = _shrink(image.pixels())
    _save(directory / f"images/{number}.jpg", pixels)
    entries = []
    for run, one in enumerate(rated):
        words = []
        for place, (word, shown) in enumerate(maps_of(one, most)):
            # The file name says nothing about the run: a rater could read it in the page.
            name = f"maps/{number}-{random.Random(f'{number}/{run}/{place}/{top}').getrandbits(48):012x}.jpg"
            _save(directory / name, overlay(pixels, shown, top))
            words.append(RatedWord(word, name))
        entries.append(Entry(run, one.text, tuple(words)))
    return Item(str(image.id), f"images/{number}.jpg", rated[0].prompt, tuple(entries))


def overlay(pixels: np.ndarray, shown: Tensor, top: float) -> np.ndarray:
    """The image (h, w, 3) under a map (H, W): without lines, fully transparent where the attention is zero."""
    # Interpolated without regard to where it is zero: an edge there would give sparse attention away.
    fine = interpolate(shown[None, None].float(), pixels.shape[:2], mode="bilinear")[0, 0]
    over = heat_colours()(heat_scale(top)(fine.clamp(max=top).numpy()), bytes=True).astype(np.float32)
    alpha = over[..., 3:] / 255
    return np.asarray(pixels * (1 - alpha) + over[..., :3] * alpha).round().astype(np.uint8)


def _shrink(pixels: np.ndarray) -> np.ndarray:
    from PIL import Image

    image = Image.fromarray(pixels)
    return np.asarray(image.resize((WIDTH, max(1, round(WIDTH * image.height / image.width)))))


def _save(path: Path, pixels: np.ndarray) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        Image.fromarray(pixels).save(temporary, "JPEG", quality=88)


def _item(found: Mapping[str, Any]) -> Item:
    entries = tuple(
        Entry(int(one["run"]), str(one["text"]), tuple(RatedWord(w["word"], w["map"]) for w in one["words"]))
        for one in found["entries"]
    )
    return Item(str(found["id"]), str(found["image"]), str(found["prompt"]), entries)
