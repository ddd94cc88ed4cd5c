"""Choosing a picture: examples of Scenes, or a file of the visitor's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from foveate.data.samples import Dataset
from foveate.data.scenes import make_scenes
from foveate.errors import DataError
from foveate.studio import widgets
from foveate.studio.shelf import Shelf

EXAMPLES = 8


@lru_cache(maxsize=1)
def examples() -> Dataset:
    """Pictures that no run has been trained on."""
    return make_scenes(split="test", count=EXAMPLES)


def example_number(pick: Any) -> int:
    """Which example was picked; DataError when there is no such one."""
    if not (isinstance(pick, str) and pick.isdecimal() and int(pick) < EXAMPLES):
        raise DataError(f"pick: expected one of {EXAMPLES} examples, got {pick!r:.40}; pick a picture")
    return int(pick)


def example_pixels(pick: Any) -> np.ndarray:
    """The pixels of an example."""
    return examples().pictures[example_number(pick)].pixels()


@dataclass(frozen=True)
class Picker:
    """The components: examples to pick, a place for a file, the chosen picture."""

    thumbs: Any
    drop: Any
    picture: Any


def lay_out(gr: Any, page: str) -> Picker:
    """The picker of a page, whose name begins the ids of its parts."""
    faces = widgets.thumbnails([picture.pixels() for picture in examples().pictures])
    return Picker(
        gr.HTML(faces, js_on_load=widgets.PICK, elem_id=f"{page}-examples"),
        gr.HTML(widgets.drop_html(), js_on_load=widgets.DROP, elem_id=f"{page}-drop"),
        gr.HTML(elem_id=f"{page}-picture"),
    )


def no_run(gr: Any, shelf: Shelf, task: str, recipe: str) -> bool:
    """Say how to get a run of a task where the shelf has none, and whether that was so."""
    if shelf.runs(task):
        return False
    gr.HTML(
        widgets.trouble(
            f"No run of the task {task} yet. Train one with: foveate train {recipe}   and start the studio again."
        )
    )
    return True
