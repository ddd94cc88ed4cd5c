"""`foveate demo`: the main job on embedded data. A trained model gets other attentions, learns a little, is judged."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from foveate.attention import MECHANISMS
from foveate.cli.tables import print_table
from foveate.cli.train import is_first_process
from foveate.data.files import read_json
from foveate.errors import DataError
from foveate.recipes import RECIPES, Recipe, read_run, to_config, train_recipe
from foveate.registry import lookup
from foveate.report import ReportRun, short_table, write_report
from foveate.train import Cosine, Training, fit
from foveate.train.folder import CONFIG, run_folder
from foveate.train.history import History

STEPS, QUICK_STEPS, QUICK_PICTURES = 200, 30, 240
RATE = 0.5  # of the rate that the run was trained with
FOREVER = 10**6
COMPARE = "train longer: the same mechanisms, three seeds, whole epochs"


@dataclass(frozen=True)
class Demo:
    """A row of the table of demonstrations.

    Attributes:
        recipe: of that run, trained whole with --from-scratch.
        run: the embedded run that all start from; a version may be without it.
        mechanisms: compared when nobody says which.
        quick: compared with --quick.
    """

    recipe: str
    run: str
    mechanisms: tuple[str, ...]
    quick: tuple[str, ...]


DEMOS: Mapping[str, Demo] = {
    "vqa": Demo(
        "vqa-mcan-scenes",
        "scenes-vqa",
        ("softmax", "sparsemax", "tvmax", "continuous-softmax", "continuous-sparsemax", "multimodal"),
        ("softmax", "tvmax", "multimodal"),
    ),
    "matching": Demo(
        "matching-scan-scenes",
        "scenes-matching",
        ("softmax", "sparsemax", "entmax", "tvmax"),
        ("softmax", "sparsemax"),
    ),
    "captioning": Demo(
        "captioning-lstm-scenes",
        "scenes-captioning",
        ("softmax", "sparsemax", "tvmax", "continuous-softmax", "multimodal"),
        ("softmax", "tvmax"),
    ),
}


def demo(
    *,
    task: str = "vqa",
    mechanisms: str | None = None,
    steps: int | None = None,
    quick: bool = False,
    from_scratch: bool = False,
    examples: int = 6,
    out: Path | None = None,
) -> Path:
    """Compare attentions on Scenes, nothing to download: fine-tune from an embedded run, measure, write a report.

    Every mechanism starts from the same trained softmax model and gets the same number of steps. About four minutes on
    two cores, --quick half a minute; started again, it goes on where it stopped.

    Args:
        task: which problem: vqa, matching or captioning.
        mechanisms: names with commas between; six that differ most when absent.
        steps: of fine-tuning, 200 (30 with --quick) when absent.
        quick: fewer mechanisms, steps and pictures.
        from_scratch: train the softmax model too, by its recipe, instead of taking the embedded one.
        examples: questions drawn in the report.
        out: folder of the runs and of report.html; runs/demo when absent.
    """
    row = lookup("demo", task, DEMOS)
    names = [name.strip() for name in mechanisms.split(",")] if mechanisms else row.quick if quick else row.mechanisms
    for name in names:
        lookup("mechanism", name, MECHANISMS)
    folder = out or Path("runs") / ("demo" if task == "vqa" else f"demo-{task}")
    start = _first_run(row.recipe, folder) if from_scratch else _embedded(row)
    kind = "-".join(["scratch"] * from_scratch + ["quick"] * quick)
    runs = []
    for place, name in enumerate(names):
        own = folder / (f"{kind}-{name}" if kind else name)
        _say(f"{name} ({place + 1} of {len(names)}): {MECHANISMS[name].summary}")
        _fine_tune(start, name, own, steps or (QUICK_STEPS if quick else STEPS), QUICK_PICTURES if quick else None)
        runs.append(ReportRun(name, (own,)))
    return _tell(task, start, runs, folder, examples)


def _embedded(row: Demo) -> str:
    """The name of the embedded run; DataError when this version has none."""
    try:
        run_folder(row.run)
    except DataError:
        raise DataError(
            f"demo: expected the embedded run {row.run}, got none in this version; "
            f"train its model first by --from-scratch, or start with foveate demo --task vqa"
        ) from None
    return row.run


def _first_run(name: str, folder: Path) -> str:
    """The folder of a model trained anew by a recipe."""
    recipe, trained = RECIPES[name](), folder / "scratch-first"
    _say(f"{name}: from the beginning, {recipe.about}")
    train_recipe(recipe, trained, resume=True)
    return str(trained)


def _fine_tune(start: str, mechanism: str, folder: Path, steps: int, pictures: int | None) -> None:
    """Train on from a run with another mechanism; the words stay those of the run, whatever data is read."""
    changes = [f"settings.mechanism={mechanism}"] + ([] if pictures is None else [f"settings.limit={pictures}"])
    recipe, task = read_run(start, changes)
    recipe = replace(recipe, start=str(start), training=_shortened(recipe.training, steps))
    if _is_done(recipe, folder, task.objective):
        _say(f"  {folder} is there already")
        return
    fit(task, recipe.training, folder, config=to_config(recipe), start=run_folder(start), resume=True)


def _shortened(training: Training, steps: int) -> Training:
    """So many steps at half the rate, measured at the end alone."""
    optimiser = replace(training.optimiser, lr=RATE * training.optimiser.lr)
    return replace(
        training,
        optimiser=optimiser,
        schedule=Cosine(),
        steps=steps,
        epochs=FOREVER,
        evaluate_every=FOREVER,
        patience=None,
    )


def _is_done(recipe: Recipe, folder: Path, objective: str) -> bool:
    """True when the folder holds this very training to its end."""
    if not (folder / CONFIG).exists():
        return False
    same = read_json("demo", folder / CONFIG, "it is written by foveate demo") == to_config(recipe)
    return same and History.load(folder, objective).has(recipe.training.steps or 0)


def _tell(task: str, start: str, runs: Sequence[ReportRun], folder: Path, examples: int) -> Path:
    """Print one table and write the report."""
    steps = runs[0].opened[0].training.steps
    print_table(f"{task} on Scenes, val, {steps} steps from {start}", *short_table(runs))
    path = write_report(
        folder,
        f"Attention on Scenes: {', '.join(run.name for run in runs)}",
        runs,
        about=f"Every mechanism took over the weights of the trained model {start} and was trained for {steps} more "
        "steps on Scenes, pictures of coloured shapes whose relevant regions are known. Few steps: read the numbers as "
        "a first look, not as a verdict.",
        examples=examples,
        commands=[(COMPARE, f"foveate compare {runs[0].opened[0].name} --mechanisms {','.join(r.name for r in runs)}")],
        progress=True,
    )
    print(f"report: {path}\nlook around in the browser: foveate studio")
    return path


def _say(text: str) -> None:
    if is_first_process():
        print(text, file=sys.stderr)
