"""Mechanisms with adjustable options on given scores, and scores to begin with, for the pages that show maps."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from foveate.attention import MECHANISMS, Attended, mechanism
from foveate.lab import hub
from foveate.lab.tasks import Predictor
from foveate.lab.train.recipe import read_run
from foveate.ops.grid import cell_centres
from foveate.registry import lookup


@dataclass(frozen=True)
class Knob:
    """A number that visitors can adjust.

    Attributes:
        label: shown next to the slider.
        about: what it does.
        low, high, step, value: of the slider.
        options: the name of the option that it sets, by mechanism.
    """

    label: str
    about: str
    low: float
    high: float
    step: float
    value: float
    options: Mapping[str, str]

    def clamp(self, value: Any) -> float:
        """A number within the range of the slider; its initial value for anything that is not a finite number."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return min(max(float(value), float(self.low)), float(self.high)) if is_number else float(self.value)


KNOBS: Mapping[str, Knob] = {
    "smoothness": Knob(
        "smoothness",
        "How strongly neighbours are pulled to the same weight: 0 is sparsemax, more makes larger patches.",
        0, 1, 0.01, 0.1, dict.fromkeys(("tvmax", "fusedmax", "gfusedmax"), "smoothness"),
    ),
    "alpha": Knob(
        "alpha",
        "How sparse: near 1 like softmax, 2 is sparsemax.",
        1.05, 2, 0.05, 1.5, dict.fromkeys(("entmax", "continuous-entmax"), "alpha"),
    ),
    "components": Knob(
        "components K",
        "The number of components, or the largest number that may be chosen.",
        1, 6, 1, 4, {"multimodal": "max_components", "multimodal-sparse": "max_components", "k-mca": "components"},
    ),
    "penalty": Knob(
        "penalty",
        "What a further component must gain to be used: more means fewer components.",
        0, 2, 0.05, 0.3, {"multimodal": "penalty"},
    ),
}  # fmt: skip


def attend(
    scores: Tensor, grid: tuple[int, int], names: Iterable[str], knobs: Mapping[str, float]
) -> dict[str, Attended]:
    """The attention of several mechanisms on the same scores.

    Args:
        scores: (N,), one per location.
        grid: rows and columns of the locations.
        names: of mechanisms, as in MECHANISMS.
        knobs: values by name, as in KNOBS; the mechanism's own default for those that are absent.

    Returns:
        `Attended` of batch size one, by mechanism.

    >>> attended = attend(torch.tensor([2.0, 0, 0, 0]), (2, 2), ["entmax"], {"alpha": 2.0})
    >>> attended["entmax"].weights.tolist()
    [[1.0, 0.0, 0.0, 0.0]]
    """
    values = scores.new_zeros(1, scores.shape[-1], 1)
    attended: dict[str, Attended] = {}
    for name in names:
        lookup("mechanism", name, MECHANISMS)
        with torch.no_grad():
            attended[name] = mechanism(name, **set_options(name, knobs)).eval()(scores[None], values, grid=grid)
    return attended


def scores_of(attended: Attended) -> Tensor:
    """The scores (N,) behind softmax weights, up to a constant, to which every mechanism is invariant.

    >>> scores_of(Attended(torch.zeros(1, 1), torch.tensor([[1.0, 2.0]]).softmax(-1))).diff().tolist()
    [1.0]
    """
    return attended.weights[0].clamp_min(torch.finfo(attended.weights.dtype).tiny).log()


def with_softmax(run: str) -> Predictor[Any, Any]:
    """A run with softmax in place of its attention, so that its weights reveal the scores."""
    predictor = hub.load(run)
    recipe, task = read_run(run)
    settings = replace(recipe.settings, mechanism="softmax", mechanism_options={})
    other = type(task).from_vocabulary(settings, task.vocabulary())
    model = other.build_model()
    model.load_state_dict(predictor.model.state_dict())
    return other.predictor(model.eval())


def set_options(name: str, knobs: Mapping[str, float]) -> dict[str, float]:
    """The options that the knobs set for a mechanism, clamped to the range of their sliders."""
    found: dict[str, float] = {}
    for knob, value in knobs.items():
        row = lookup("knob", knob, KNOBS)
        if name in row.options:
            within = row.clamp(value)
            found[row.options[name]] = int(within) if row.step == 1 else within
    return found


SIDE = 14


def _bump(x: float, y: float, width: float) -> Tensor:
    """Scores of an object at (x, y): flat inside its width, falling outside."""
    away = (cell_centres(SIDE, SIDE) - torch.tensor([x, y])).norm(dim=-1)
    return torch.exp(-((away / width) ** 4) / 2)


def _ring() -> Tensor:
    away = (cell_centres(SIDE, SIDE) - 0.5).norm(dim=-1)
    return torch.exp(-((away - 0.3) ** 2) / (2 * 0.05**2))


def _noise() -> Tensor:
    return 0.5 * torch.randn(SIDE * SIDE, generator=torch.Generator().manual_seed(0))


PRESETS: Mapping[str, Callable[[], Tensor]] = {
    "two objects": lambda: 5 * (_bump(0.25, 0.3, 0.12) + _bump(0.75, 0.7, 0.15)),
    "one object": lambda: 5 * _bump(0.6, 0.4, 0.2),
    "three objects and noise": lambda: (
        5 * (_bump(0.2, 0.2, 0.12) + _bump(0.8, 0.3, 0.12) + _bump(0.45, 0.8, 0.12)) + _noise()
    ),
    "two stars": lambda: (
        3 * (_bump(0.35, 0.5, 0.1) + 0.94 * _bump(0.65, 0.5, 0.1)) + 1.5 * _bump(0.5, 0.5, 0.1) + 0.3 * _noise()
    ),
    "ring": lambda: 4 * _ring(),
    "noise": lambda: 2 * _noise(),
    "nothing": lambda: torch.zeros(SIDE * SIDE),
}


def preset_scores(name: str) -> Tensor:
    """The scores (N,) of a preset, rounded as the painter keeps them; raises UnknownName for any other name."""
    return (100 * lookup("preset", name, PRESETS)()).round() / 100


def preset(name: str) -> str:
    """The scores of a preset, as JSON for the painter.

    >>> preset("nothing")[:6]
    '[0.0, '
    """
    return json.dumps([round(score, 2) for score in preset_scores(name).tolist()])
