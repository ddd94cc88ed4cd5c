"""`foveate compare`: the same training with several attentions, in one table."""

from __future__ import annotations

from pathlib import Path

from foveate.cli.tables import print_table
from foveate.cli.train import folder_name, is_first_process
from foveate.data.writing import write_json
from foveate.errors import UnknownName
from foveate.recipes import RECIPES, override
from foveate.recipes.compare import check_mechanisms, plan_comparison, run_comparison, to_json
from foveate.report import ReportRun, short_table, write_report


def compare(
    task: str,
    changes: tuple[str, ...] = (),
    *,
    mechanisms: str = "all",
    seeds: int = 3,
    finetune: int = 1,
    scratch: str = "tvmax,continuous-softmax,multimodal",
    data: Path | None = None,
    out: Path | None = None,
) -> None:
    """Train with several attentions, print one table and write a report with maps and curves.

    Started again, it goes on where it stopped.

    Args:
        task: a task, whose recipe for the embedded data is taken, or a recipe.
        changes: fields to change in all trainings, as field=value or --field value.
        mechanisms: names with commas between, or "all"; the first one is trained whole.
        seeds: trainings of each, with the seeds 0, 1, ...; the table shows mean and standard deviation.
        finetune: epochs of the other mechanisms, which start from the first one's weights; 0 trains them whole too.
        scratch: mechanisms that are trained whole besides, once; "" for none.
        data: folder of the data; not needed for embedded data.
        out: folder of the runs; runs/compare-<recipe>-<changes> when absent.
    """
    name = recipe_of(task)
    base = override(RECIPES[name](), changes)
    folder = out or Path("runs") / folder_name(f"compare-{name}", changes)
    planned = list(
        plan_comparison(
            base,
            folder,
            check_mechanisms(mechanisms),
            seeds=seeds,
            finetune=finetune or None,
            scratch=check_mechanisms(scratch) if finetune else (),
        )
    )
    results = run_comparison(planned, data)
    if is_first_process():
        title = f"{name}, val, {seeds} seed(s)"
        runs = [ReportRun(label, tuple(one.folder for one in planned if one.label == label)) for label in results]
        print_table(title, *short_table(runs))
        write_json(folder / "compare.json", to_json(name, results))
        print(f"every number: {folder / 'compare.json'}")
        print(f"report: {write_report(folder, title, runs, data=data, progress=True)}")


def recipe_of(task: str) -> str:
    """The recipe itself, or the first of a task, embedded data before others."""
    if task in RECIPES:
        return task
    own = [name for name in RECIPES if name.startswith(f"{task}-")]
    if not own:
        raise UnknownName("compare", task, [*RECIPES, *{name.partition("-")[0] for name in RECIPES}])
    return next((name for name in own if name.endswith("-scenes")), own[0])
