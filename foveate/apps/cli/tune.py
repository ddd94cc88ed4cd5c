"""`foveate tune`: search for the best fields of a recipe."""

from __future__ import annotations

import shlex
from pathlib import Path

from foveate.apps.cli.terminal import Count, Directory, print_table
from foveate.apps.cli.train import directory_name, more_help
from foveate.lab.data.samples import DataDirectory
from foveate.lab.recipes import RECIPES
from foveate.lab.train.tuning import TrialResult
from foveate.lab.train.tuning import tune as search
from foveate.registry import lookup

__all__ = ["more_help", "tune"]
SHOWN = 10


def tune(
    recipe: str,
    changes: tuple[str, ...] = (),
    *,
    trials: Count = 20,
    data: Path | None = None,
    out: Directory | None = None,
    storage: str | None = None,
    no_prune: bool = False,
    quiet: bool = False,
    no_verify: bool = False,
    allow_outside: bool = False,
) -> list[TrialResult]:
    """Search for the fields of a recipe with the best objective on val; repeat the command to continue a search.

    Args:
        recipe: name of a recipe; `foveate list recipes` shows them.
        changes: fields to change, as in `foveate train`, with a range or choices for those to search:
            lr=log:1e-4..1e-2 dropout=0.0..0.5 hidden=64..512 mechanism=softmax|tvmax.
        trials: trainings of the study, complete or stopped early, over all processes and restarts.
        data: directory of the data; not needed for embedded data.
        out: directory of the study; by default runs/tune-<recipe>-<changes>.
        storage: address of a database that several machines share, such as postgresql://user@host/name; by default an
            SQLite file in the directory.
        no_prune: train all trials to the end instead of stopping those below the median.
        quiet: print no progress.
        no_verify: skip the checksums of feature stores.
        allow_outside: read images outside the directory of the data, where its files name any path.
    """
    made = lookup("recipe", recipe, RECIPES)()
    directory = out or Path("runs") / directory_name(f"tune-{recipe}", changes)
    root = DataDirectory(data, verify=not no_verify, allow_outside=allow_outside)
    found = search(
        made,
        changes,
        directory,
        trials=trials,
        storage=storage,
        root=root,
        prune=not no_prune,
        progress=not quiet,
    )
    rows = [
        (str(one.number), "" if one.value is None else f"{one.value:.4g}", one.state, *one.changes) for one in found
    ]
    heads = ("trial", "val", "state", *(change.partition("=")[0] for change in found[0].changes))
    cells = [tuple(cell.partition("=")[2] or cell for cell in row) for row in rows[:SHOWN]]
    print_table(f"{directory}: {len(found)} trials", heads, cells)
    best = found[0]
    rest = f" --data {shlex.quote(str(data))}" if data is not None else ""
    print(f"the best run: {best.directory}\ntrain it again:\n  foveate train {recipe} {shlex.join(best.changes)}{rest}")
    return found
