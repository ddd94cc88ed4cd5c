"""`foveate compare`: the same training with several mechanisms, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.apps.cli.terminal import Count, Directory, print_table
from foveate.apps.cli.train import directory_name, is_first_process
from foveate.apps.report import ReportRun, compare_runs, short_table, write_report
from foveate.errors import UnknownName
from foveate.io import write_json
from foveate.lab.data.samples import DataDirectory
from foveate.lab.recipes import RECIPES
from foveate.lab.train.comparison import check_mechanisms, plan_comparison, run_comparison, to_json
from foveate.lab.train.override import override


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
