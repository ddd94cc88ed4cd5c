"""`foveate compare` and `foveate demo`: the same training with several mechanisms, in one table and a report."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import Count, Directory, print_table
from foveate.apps.cli.train import directory_name, is_first_process
from foveate.apps.report import ReportRun, compare_runs, short_table, write_report
from foveate.attention import MECHANISMS
from foveate.errors import DataError, UnknownName
from foveate.io import read_json, write_json
from foveate.lab.data.samples import DataDirectory
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.tasks.presentation import Demo
from foveate.lab.train import Cosine, Recipe, Training, from_config, read_run, train_recipe
from foveate.lab.train.comparison import check_mechanisms, plan_comparison, run_comparison, to_json
from foveate.lab.train.override import override
from foveate.lab.train.recipe import run_directory
from foveate.lab.train.records import CONFIG, History
from foveate.registry import lookup


def compare(
    task: str,
    changes: tuple[str, ...] = (),
    *,
    mechanisms: str = "all",
    seeds: Count = 3,
    finetune: int = 1,
    scratch: str = "tvmax,continuous-softmax,multimodal",
    data: Path | None = None,
    out: Directory | None = None,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> dict[str, Any] | None:
    """Train with several mechanisms, print one table and write a report with attention maps and curves.

    If it is interrupted, repeat the command to continue where it stopped.

    Args:
        task: a task, whose recipe for embedded data is used, or a recipe.
        changes: fields to change in all trainings, as field=value or --field value.
        mechanisms: names separated by commas, or "all"; the first one is trained from the beginning.
        seeds: trainings per mechanism, with the seeds 0, 1, ...; the table shows mean and standard deviation.
        finetune: epochs of the other mechanisms, which start from the first one's weights; 0 trains them from the
            beginning too.
        scratch: mechanisms that are also trained from the beginning, once; "" for none.
        data: directory of the data; not needed for embedded data.
        out: directory of the runs; by default runs/compare-<recipe>-<changes>.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    name = recipe_of(task)
    base = override(RECIPES[name](), changes)
    directory = out or Path("runs") / directory_name(f"compare-{name}", changes)
    planned = list(
        plan_comparison(
            base,
            directory,
            check_mechanisms(mechanisms, "compare"),
            seeds=seeds,
            finetune=finetune or None,
            scratch=check_mechanisms(scratch) if finetune else (),
        )
    )
    root = DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    results = run_comparison(planned, root)
    if is_first_process():
        title = f"{name}, val, {seeds} seed(s)"
        runs = [ReportRun(label, tuple(one.directory for one in planned if one.label == label)) for label in results]
        print_table(title, *short_table(runs))
        comparison = compare_runs(runs)
        print(comparison.sentence())
        numbers = {**to_json(name, results), "differences": comparison.to_json()}
        write_json(directory / "compare.json", numbers)
        print(f"all metrics: {directory / 'compare.json'}")
        print(f"report: {write_report(directory, title, runs, data=root, progress=True)}")
        return numbers
    return None


def recipe_of(task: str) -> str:
    """The recipe itself, or the first of a task, embedded data before others."""
    if task in RECIPES:
        return task
    own = [name for name in RECIPES if name.startswith(f"{task}-")]
    if not own:
        raise UnknownName("compare", task, [*RECIPES, *{name.partition("-")[0] for name in RECIPES}])
    return next((name for name in own if name.endswith("-scenes")), own[0])


STEPS, QUICK_STEPS, QUICK_IMAGES = 200, 30, 240
RATE = 0.5  # of the learning rate that the run was trained with
FOREVER = 10**6
CURVE_STEPS, CURVE_POINTS, CURVE_EXAMPLES = (
    10,
    5,
    32,
)  # steps between the points of a curve, at least; their number; examples of each
COMPARE = "train longer: the same mechanisms, three seeds, whole epochs"


def demo(
    *,
    task: str = "vqa",
    mechanisms: str | None = None,
    steps: Count | None = None,
    quick: bool = False,
    from_scratch: bool = False,
    examples: int = 6,
    out: Directory | None = None,
) -> Path:
    """Compare mechanisms on Scenes without a download: fine-tune from an embedded run, measure, write a report.

    Every mechanism starts from the same trained softmax model and is trained for the same number of steps. Takes about
    three minutes of processor time, half a minute with --quick. If it is interrupted, repeat the command to continue.

    Args:
        task: vqa, matching, captioning or another task with a demo.
        mechanisms: names separated by commas; by default a choice of the task.
        steps: number of fine-tuning steps; by default 200, or 30 with --quick.
        quick: fewer mechanisms, steps and images.
        from_scratch: train the softmax model too, by its recipe, instead of loading the embedded one.
        examples: number of examples drawn in the report.
        out: directory of the runs and of report.html; by default runs/demo.
    """
    demos = {name: kind.demo for name, kind in TASKS.items() if kind.demo is not None}
    row = lookup("demo", task, demos)
    names = check_mechanisms(mechanisms, "demo") if mechanisms else row.quick if quick else row.mechanisms
    directory = out or Path("runs") / ("demo" if task == "vqa" else f"demo-{task}")
    start = _first_run(row.recipe, directory) if from_scratch else _embedded(row)
    kind = "-".join(["scratch"] * from_scratch + ["quick"] * quick)
    runs = []
    for place, name in enumerate(names):
        own = directory / (f"{kind}-{name}" if kind else name)
        _say(f"{name} ({place + 1} of {len(names)}): {MECHANISMS[name].summary}")
        _fine_tune(start, name, own, steps or (QUICK_STEPS if quick else STEPS), QUICK_IMAGES if quick else None)
        runs.append(ReportRun(name, (own,)))
    return _report(task, start, runs, directory, examples)


def _embedded(row: Demo) -> str:
    """The name of the embedded run; raises DataError if this version has none."""
    try:
        run_directory(row.run)
    except DataError:
        raise DataError(
            f"demo: expected the embedded run {row.run}, got none in this version; "
            "train its model with --from-scratch, or run foveate demo --task vqa"
        ) from None
    return row.run


def _first_run(name: str, directory: Path) -> str:
    """The directory of a model trained by a recipe."""
    recipe, trained = RECIPES[name](), directory / "scratch-first"
    _say(f"{name}: training from the beginning, {recipe.about}")
    train_recipe(recipe, trained, resume=True)
    return str(trained)


def _fine_tune(start: str, mechanism: str, directory: Path, steps: int, images: int | None) -> None:
    """Fine-tune a run with another mechanism; the tokens stay those of the run, whatever the data."""
    changes = [f"settings.mechanism={mechanism}"] + ([] if images is None else [f"settings.limit={images}"])
    recipe, task = read_run(start, changes)
    recipe = replace(recipe, start=str(start), training=_shortened(recipe.training, steps))
    if _is_done(recipe, directory, task.objective):
        _say(f"  {directory} already exists")
        return
    train_recipe(recipe, directory, resume=True)


def _shortened(training: Training, steps: int) -> Training:
    """This many steps at half the learning rate, evaluated on all of val at the end only."""
    optimiser = replace(training.optimiser, lr=RATE * training.optimiser.lr)
    return replace(
        training,
        optimiser=optimiser,
        schedule=Cosine(),
        steps=steps,
        epochs=FOREVER,
        evaluate_every=FOREVER,
        curve_points=min(CURVE_POINTS, max(1, steps // CURVE_STEPS)),
        curve_examples=CURVE_EXAMPLES,
        patience=None,
    )


def _is_done(recipe: Recipe, directory: Path, objective: str) -> bool:
    """True if the directory holds this very training, finished."""
    if not (directory / CONFIG).exists():
        return False
    config = read_json("demo", directory / CONFIG, "it is written by foveate demo")
    done = History.load(directory, objective).has(recipe.training.steps or 0)
    return done and from_config(config, str(directory / CONFIG)) == recipe


def _report(task: str, start: str, runs: Sequence[ReportRun], directory: Path, examples: int) -> Path:
    """Print one table and write the report."""
    steps = runs[0].opened[0].training.steps
    print_table(f"{task} on Scenes, val, {steps} steps from {start}", *short_table(runs))
    path = write_report(
        directory,
        f"Attention on Scenes: {', '.join(run.name for run in runs)}",
        runs,
        about=f"Every mechanism started from the weights of the trained model {start} and was trained for {steps} more "
        "steps on Scenes, images of coloured shapes whose relevant regions are known. These are few steps: the numbers "
        "are a first impression, not a verdict.",
        examples=examples,
        commands=[(COMPARE, f"foveate compare {runs[0].opened[0].name} --mechanisms {','.join(r.name for r in runs)}")],
        progress=True,
    )
    print(f"report: {path}\nexplore in the browser: foveate studio")
    return path


def _say(text: str) -> None:
    if is_first_process():
        print(text, file=sys.stderr)
