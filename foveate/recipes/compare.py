"""The same training with several attentions: what is trained, from where, and what each gave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from foveate.attention import MECHANISMS
from foveate.recipes.recipe import Recipe, override
from foveate.recipes.run import train_recipe
from foveate.registry import lookup
from foveate.train import Cosine
from foveate.train.folder import LOG
from foveate.train.log import read_log

SCRATCH = "from scratch"


@dataclass(frozen=True)
class Planned:
    """One training of a comparison.

    Attributes:
        label: the row of the table it belongs to: a mechanism, or "<mechanism> from scratch".
        folder: of its run.
        recipe: with the mechanism, the seed and the start filled in.
    """

    label: str
    folder: Path
    recipe: Recipe


@dataclass(frozen=True)
class Result:
    """What one training gave: its best evaluation, and how long a step took."""

    metrics: dict[str, float]
    seconds_per_step: float


def plan_comparison(
    base: Recipe,
    folder: Path,
    mechanisms: Sequence[str],
    *,
    seeds: int = 1,
    finetune: int | None = None,
    scratch: Iterable[str] = (),
) -> Iterator[Planned]:
    """The trainings of a comparison, each after the one it starts from.

    Args:
        base: what all have in common.
        folder: of all runs.
        mechanisms: the first one is trained whole, as the recipe says.
        seeds: trainings of each, with the seeds 0, 1, ...
        finetune: epochs of the other mechanisms, see `fine_tuned`, from the weights of the first one's run of the same
            seed; None trains them whole too.
        scratch: mechanisms that are trained whole besides, once.
    """
    first, *others = mechanisms
    for seed in range(seeds):
        start = folder / f"{first}-{seed}"
        yield Planned(first, start, _with(base, first, seed))
        for name in others:
            recipe = _with(base, name, seed)
            if finetune is not None:
                recipe = fine_tuned(recipe, start, epochs=finetune)
            yield Planned(name, folder / f"{name}-{seed}", recipe)
    for name in scratch:
        if name != first:
            yield Planned(f"{name} {SCRATCH}", folder / f"{name}-scratch-0", _with(base, name, 0))


def fine_tuned(recipe: Recipe, start: str | Path, *, epochs: int = 1, steps: int | None = None) -> Recipe:
    """The recipe as a short training from the weights of a run: half the rate, falling at once, judged at the end.

    Args:
        recipe: of a whole training.
        start: folder or name of the run.
        epochs, steps: how long; `steps` ends it earlier.
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


def run_comparison(planned: Iterable[Planned], root: Path | None = None) -> dict[str, list[Result]]:
    """Train what is not trained yet, and what each row of the table got; started again, it goes on where it stopped."""
    results: dict[str, list[Result]] = {}
    for one in planned:
        history = train_recipe(one.recipe, one.folder, root=root, resume=True)
        assert history.best is not None  # the end of a training is always evaluated
        result = Result(dict(history.best.metrics), _seconds_per_step(one))
        results.setdefault(one.label, []).append(result)
    return results


def check_mechanisms(text: str) -> list[str]:
    """The mechanisms of a list with commas; "all" names every one, softmax first.

    >>> check_mechanisms("softmax, tvmax")
    ['softmax', 'tvmax']
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    names = list(MECHANISMS) if names == ["all"] else names
    for name in names:
        lookup("mechanism", name, MECHANISMS)
    return names


def to_json(recipe: str, results: dict[str, list[Result]]) -> dict[str, Any]:
    """Every number of a comparison."""
    return {
        "recipe": recipe,
        "split": "val",
        "results": {label: [dict(vars(run)) for run in runs] for label, runs in results.items()},
    }


def _with(base: Recipe, mechanism: str, seed: int) -> Recipe:
    return override(base, [f"settings.mechanism={mechanism}", f"training.seed={seed}"])


def _seconds_per_step(one: Planned) -> float:
    lines = [line for line in read_log(one.folder / LOG) if line["event"] == "train"]
    size = one.recipe.training.batch_size * one.recipe.training.accumulate
    return median(size / line["examples_per_second"] for line in lines)
