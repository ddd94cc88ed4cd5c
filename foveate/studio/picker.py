"""Choosing an image: one of the examples of Scenes, or an uploaded file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from foveate.data.samples import Dataset
from foveate.data.scenes import make_scenes
from foveate.errors import DataError
from foveate.studio import widgets
from foveate.studio.catalogue import RunCatalogue

EXAMPLES = 8


@lru_cache(maxsize=1)
def examples() -> Dataset:
    """Images that no run has been trained on."""
    return make_scenes(split="test", count=EXAMPLES)


def example_number(pick: Any) -> int:
    """The number of the example that was picked; raises DataError if there is none of this number."""
    number = widgets.picked_number(pick, EXAMPLES)
    if number is None:
        raise DataError(f"pick: expected one of {EXAMPLES} examples, got {pick!r:.40}; pick an image")
    return number


def example_pixels(pick: Any) -> np.ndarray:
    """The pixels of the example that was picked."""
    return examples().images[example_number(pick)].pixels()


@dataclass(frozen=True)
class Picker:
    """Components to choose an image with: thumbnails of the examples, a drop area for a file, the chosen image."""

    thumbs: Any
    drop: Any
    image: Any


def lay_out(gr: Any, page: str) -> Picker:
    """Add a picker; the element ids of its components begin with the name of the page."""
    thumbs = widgets.thumbnails([image.pixels() for image in examples().images])
    return Picker(
        gr.HTML(thumbs, js_on_load=widgets.PICK, elem_id=f"{page}-examples"),
        gr.HTML(widgets.drop_html(), js_on_load=widgets.DROP, elem_id=f"{page}-drop"),
        gr.HTML(elem_id=f"{page}-image"),
    )


@contextmanager
def beside_picker(gr: Any, page: str) -> Iterator[Picker]:
    """Add a row with a picker on the left; components created inside the context are placed on its right."""
    with gr.Row():
        with gr.Column(scale=1, min_width=300):
            chooser = lay_out(gr, page)
        with gr.Column(scale=2, min_width=320):
            yield chooser


def is_without_runs(gr: Any, catalogue: RunCatalogue, task: str, recipe: str) -> bool:
    """True if there is no run of a task; the page then says how to train one."""
    if catalogue.runs(task):
        return False
    advice = f"Train one with foveate train {recipe}, then restart the studio."
    gr.HTML(widgets.error_html(f"There is no run of the task {task} yet. {advice}"))
    return True
