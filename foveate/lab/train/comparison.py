"""Several trainings of a recipe, with other mechanisms or other folds of the data: their plan and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from foveate.attention import MECHANISMS
from foveate.errors import DataError
from foveate.io import write_json
from foveate.lab.data.samples import DataRoot
from foveate.lab.train.config import Cosine
from foveate.lab.train.override import override
from foveate.lab.train.recipe import Recipe, train_recipe
from foveate.lab.train.records import LOG, read_log
from foveate.registry import lookup

SCRATCH = "from scratch"
FOLDS = "folds.json"
CURVE_POINTS = 8  # small evaluations of every training, for the curves of the report


@dataclass(frozen=True)
class Planned:
    """One training of a comparison.

    Attributes:
        label: the row of the table it belongs to: a mechanism, or "<mechanism> from scratch".
        directory: of its run.
        recipe: with its mechanism, seed and start.
    """

    label: str
    directory: Path
    recipe: Recipe


@dataclass(frozen=True)
class Result:
    """The result of one training: the metrics of its best evaluation, and the time of a step."""

    metrics: dict[str, float]
    seconds_per_step: float


@dataclass(frozen=True)
class CrossValidation:
    """The metrics of each fold of a cross-validation, at its best evaluation.

    >>> result = CrossValidation(({"accuracy": 0.5}, {"accuracy": 0.7}))
    >>> result.mean["accuracy"], round(result.spread["accuracy"], 3)
    (0.6, 0.141)
    """

    folds: tuple[Mapping[str, float], ...]

    @property
    def mean(self) -> dict[str, float]:
        """Of every metric that all folds have."""
        return {name: fmean(fold[name] for fold in self.folds) for name in self._names()}

    @property
    def spread(self) -> dict[str, float]:
        """The standard deviation between folds."""
        return {name: stdev(fold[name] for fold in self.folds) for name in self._names()}

    def _names(self) -> list[str]:
        return [name for name in self.folds[0] if all(name in fold for fold in self.folds)]


def plan_comparison(
    base: Recipe,
    directory: Path,
    mechanisms: Sequence[str],
    *,
    seeds: int = 1,
    finetune: int | None = None,
    scratch: Iterable[str] = (),
) -> Iterator[Planned]:
    """The trainings of a comparison, each after the one it starts from.

    Args:
        base: the recipe that all of them share.
        directory: of all runs.
        mechanisms: the first one is trained from scratch by the recipe.
        seeds: trainings per mechanism, with the seeds 0, 1, ...
        finetune: epochs for which the other mechanisms are fine-tuned from the run of the first one with the same seed,
            see `fine_tuned`; None trains them from scratch too.
        scratch: mechanisms that are also trained from scratch, once.
    """
    first, *others = mechanisms
    for seed in range(seeds):
        start = directory / f"{first}-{seed}"
        yield Planned(first, start, _with(base, first, seed))
        for name in others:
            recipe = _with(base, name, seed)
            if finetune is not None:
                recipe = fine_tuned(recipe, start, epochs=finetune)
            yield Planned(name, directory / f"{name}-{seed}", recipe)
    for name in scratch:
        if name != first:
            yield Planned(f"{name} {SCRATCH}", directory / f"{name}-scratch-0", _with(base, name, 0))


def fine_tuned(recipe: Recipe, start: str | Path, *, epochs: int = 1, steps: int | None = None) -> Recipe:
    """The recipe as fine-tuning of a run: half the learning rate with cosine decay, evaluated at the end only.

    Args:
        recipe: of a training from scratch.
        start: directory or name of the run.
        epochs, steps: length of the training; `steps` ends it earlier.
    """
    training = recipe.training
    return replace(
        recipe,
        start=str(start),
        training=replace(
            training,
            optimiser=replace(training.optimiser, lr=training.optimiser.lr / 2),
            schedule=Cosine(warmup=0.1),
            epochs=epochs,
            steps=steps,
            evaluate_every=epochs,
            patience=None,
        ),
    )


def run_comparison(planned: Iterable[Planned], root: DataRoot = None) -> dict[str, list[Result]]:
    """Run or resume the planned trainings, skip finished ones, and return the results of each row of the table."""
    results: dict[str, list[Result]] = {}
    for one in planned:
        history = train_recipe(one.recipe, one.directory, root=root, resume=True)
        assert history.best is not None  # the end of a training is always evaluated
        result = Result(dict(history.best.metrics), _seconds_per_step(one))
        results.setdefault(one.label, []).append(result)
    return results


def cross_validate(recipe: Recipe, directory: Path, root: DataRoot = None, *, progress: bool = True) -> CrossValidation:
    """Train a recipe `settings.folds` times, each time with another part of the data as val.

    A training that is finished is not repeated. The numbers are written to `folds.json` beside the runs.

    Args:
        recipe: with `settings.folds` above 1.
        directory: of the runs, `fold-0`, `fold-1`, ...
        root, progress: as in `train_recipe`.
    """
    found = []
    for number in range(recipe.settings.folds):
        one = replace(recipe, settings=replace(recipe.settings, fold=number))
        history = train_recipe(one, directory / f"fold-{number}", root=root, resume=True, progress=progress)
        assert history.best is not None  # the end of a training is always evaluated
        found.append(dict(history.best.metrics))
    result = CrossValidation(tuple(found))
    write_json(directory / FOLDS, {"recipe": recipe.name, "folds": found, "mean": result.mean, "spread": result.spread})
    return result


def check_mechanisms(text: str, where: str = "") -> list[str]:
    """The mechanisms of a comma-separated list; "all" stands for every one, softmax first.

    Args:
        text: the list.
        where: the caller, if there must be at least one; otherwise the list may be empty.

    >>> check_mechanisms("softmax, tvmax")
    ['softmax', 'tvmax']
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    names = list(MECHANISMS) if names == ["all"] else names
    if where and not names:
        raise DataError(f"{where}: expected at least one mechanism, got {text!r}; write for instance softmax,tvmax")
    for name in names:
        lookup("mechanism", name, MECHANISMS)
    return names


def to_json(recipe: str, results: dict[str, list[Result]]) -> dict[str, Any]:
    """All results of a comparison as JSON."""
    return {
        "recipe": recipe,
        "split": "val",
        "results": {label: [dict(vars(run)) for run in runs] for label, runs in results.items()},
    }


def _with(base: Recipe, mechanism: str, seed: int) -> Recipe:
    return override(
        base, [f"settings.mechanism={mechanism}", f"training.seed={seed}", f"training.curve_points={CURVE_POINTS}"]
    )


def _seconds_per_step(one: Planned) -> float:
    lines = [line for line in read_log(one.directory / LOG) if line["event"] == "train"]
    size = one.recipe.training.batch_size * one.recipe.training.accumulate
    return median(float(size / line["examples_per_second"]) for line in lines)
