"""`foveate compare`: the same training with several attentions, in one table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

from foveate.attention import MECHANISMS
from foveate.cli.tables import print_table
from foveate.cli.train import folder_name, is_first_process
from foveate.errors import UnknownName
from foveate.recipes import RECIPES, Recipe, override, train_recipe
from foveate.registry import lookup
from foveate.train.files import write_json
from foveate.train.folder import LOG
from foveate.train.log import read_log


@dataclass(frozen=True)
class Result:
    """What one training gave: its best evaluation and the seconds a step took."""

    metrics: dict[str, float]
    seconds_per_step: float


def compare(
    task: str,
    changes: tuple[str, ...] = (),
    *,
    mechanisms: str,
    seeds: int = 1,
    finetune: int | None = None,
    data: Path | None = None,
    out: Path | None = None,
) -> None:
    """Train with several attentions and print what each gives; started again, it goes on where it stopped.

    Args:
        task: a task, whose recipe for the embedded data is taken, or a recipe.
        changes: fields to change in all trainings, as field=value or --field value.
        mechanisms: names with commas between; the first is the one the others start from with --finetune.
        seeds: trainings of each, with the seeds 0, 1, ...; the table shows mean and standard deviation.
        finetune: epochs of the other mechanisms, which then start from the first one's weights.
        data: folder of the data; not needed for embedded data.
        out: folder of the runs; runs/compare-<recipe>-<changes> when absent.
    """
    name = recipe_of(task)
    base = override(RECIPES[name](), changes)
    names = [part.strip() for part in mechanisms.split(",") if part.strip()]
    for mechanism in names:
        lookup("mechanism", mechanism, MECHANISMS)
    folder = out or Path("runs") / folder_name(f"compare-{name}", changes)
    results: dict[str, list[Result]] = {}
    for seed in range(seeds):
        for mechanism in names:
            made = override(base, [f"settings.mechanism={mechanism}", f"training.seed={seed}"])
            if finetune is not None and mechanism != names[0]:
                made = _continued(made, folder / f"{names[0]}-{seed}", finetune)
            results.setdefault(mechanism, []).append(_train(made, folder / f"{mechanism}-{seed}", data))
    if is_first_process():
        _show(name, folder, results)


def recipe_of(task: str) -> str:
    """The recipe itself, or the first of a task, embedded data before others."""
    if task in RECIPES:
        return task
    own = [name for name in RECIPES if name.startswith(f"{task}-")]
    if not own:
        raise UnknownName("compare", task, [*RECIPES, *{name.partition("-")[0] for name in RECIPES}])
    return next((name for name in own if name.endswith("-scenes")), own[0])


def _continued(recipe: Recipe, start: Path, epochs: int) -> Recipe:
    return replace(recipe, start=str(start), training=replace(recipe.training, epochs=epochs))


def _train(recipe: Recipe, folder: Path, data: Path | None) -> Result:
    history = train_recipe(recipe, folder, root=data, resume=True)
    assert history.best is not None  # the end of a training is always evaluated
    return Result(dict(history.best.metrics), _seconds_per_step(folder, recipe))


def _seconds_per_step(folder: Path, recipe: Recipe) -> float:
    lines = [line for line in read_log(folder / LOG) if line["event"] == "train"]
    size = recipe.training.batch_size * recipe.training.accumulate
    return mean(size / line["examples_per_second"] for line in lines)


def _show(recipe: str, folder: Path, results: dict[str, list[Result]]) -> None:
    metrics = dict.fromkeys(metric for runs in results.values() for run in runs for metric in run.metrics)
    rows = [
        (m, *(spread([r.metrics[m] for r in runs if m in r.metrics]) for runs in results.values())) for m in metrics
    ]
    times = ("seconds a step", *(spread([r.seconds_per_step for r in runs]) for runs in results.values()))
    count = len(next(iter(results.values())))
    print_table(f"{recipe}, val, {count} seed(s)", ("metric", *results), [*rows, times])
    table = {
        name: [{"metrics": r.metrics, "seconds_per_step": r.seconds_per_step} for r in runs]
        for name, runs in results.items()
    }
    write_json(folder / "compare.json", {"recipe": recipe, "split": "val", "results": table})


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation, the latter when there are several values; a dash when there is none.

    >>> spread([0.5]), spread([0.4, 0.6]), spread([])
    ('0.5', '0.5 ± 0.14', '-')
    """
    if not values:
        return "-"
    text = f"{mean(values):.4g}"
    return f"{text} ± {stdev(values):.2g}" if len(values) > 1 else text
