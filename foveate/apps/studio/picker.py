"""Choosing an image: one of the examples, or an uploaded file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from foveate.apps.studio import widgets
from foveate.apps.studio.assets import script
from foveate.apps.studio.catalogue import PHOTOGRAPHS, SCENES, RunCatalogue
from foveate.apps.studio.limits import MAX_FILE, MAX_PIXELS, MAX_SIDE
from foveate.errors import DataError
from foveate.io import open_image
from foveate.lab.data.examples import example_photos
from foveate.lab.data.samples import Dataset
from foveate.lab.data.scenes import make_scenes

EXAMPLES = 8
OWN = "own"  # chosen: an uploaded image


@dataclass(frozen=True, eq=False)
class ChosenImage:
    """An image that a visitor chose.

    Attributes:
        pixels: (h, w, 3) uint8.
        example: its number among the examples, None for an uploaded image.
    """

    pixels: np.ndarray
    example: int | None = None

    @property
    def mark(self) -> str:
        """The button of the strip that is marked."""
        return OWN if self.example is None else str(self.example)

    @property
    def domain(self) -> str:
        """SCENES or PHOTOGRAPHS."""
        return SCENES if self.example is not None and self.example < EXAMPLES else PHOTOGRAPHS


@lru_cache(maxsize=1)
def examples() -> Dataset:
    """Images of Scenes that no run has been trained on."""
    return make_scenes(split="test", count=EXAMPLES)


@lru_cache(maxsize=1)
def example_images() -> tuple[np.ndarray, ...]:
    """The images of the strip: Scenes, then the photographs of installed packages, if there are any."""
    return (
        *(image.pixels() for image in examples().images),
        *(_read_photo(path) for path in example_photos().values()),
    )


def _read_photo(path: Path) -> np.ndarray:
    image = open_image(path, max_pixels=MAX_PIXELS)
    image.thumbnail((MAX_SIDE, MAX_SIDE))
    return np.asarray(image)


def choose_example(pick: Any) -> ChosenImage:
    """The example that was picked; raises DataError if there is none of this number."""
    images = example_images()
    number = widgets.picked_number(pick, len(images))
    if number is None:
        raise DataError(f"pick: expected one of {len(images)} examples, got {pick!r:.40}; pick an image")
    return ChosenImage(images[number], number)


def strip_value(mark: str, error: object = "") -> str:
    """The value of the strip: the marked button, and a sentence if something went wrong."""
    return json.dumps({"chosen": mark, "error": str(error)})


def build_strip(gr: Any, page: str, mark: str = "0") -> Any:
    """Add the strip: it sends `select` with `pick`, and `upload` with `address`, a data URL."""
    upload = (
        '<label class="fv-upload"><span>Your own image<br>drop or choose</span>'
        '<input type="file" accept="image/*" aria-label="your own image"></label>'
    )
    thumbs = widgets.thumbnails(example_images(), upload)
    return gr.HTML(
        strip_value(mark),
        html_template=f'{thumbs}<p class="fv-error" role="alert" hidden></p>',
        js_on_load=script("strip", max_file=MAX_FILE),
        elem_id=f"{page}-examples",
    )


def is_without_runs(gr: Any, catalogue: RunCatalogue, task: str, recipe: str) -> bool:
    """True if there is no run of a task; the page then says how to train one."""
    if catalogue.runs(task):
        return False
    advice = f"Train one with foveate train {recipe}, then restart the studio."
    gr.HTML(widgets.error_html(f"There is no run of the task {task} yet. {advice}"))
    return True
