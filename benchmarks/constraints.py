"""The table of 002: a matcher with and without the contrastive constraints, by retrieval and by where its words look.

    python benchmarks/constraints.py matching-scan-scenes matching-bfan-scenes --out runs/table --save matching_scenes

For every recipe and seed one run is trained without constraints; from its weights four more go on for `--more` epochs
at `--lower` times the rate: without constraints, with CCR, with CCS and with both. So all rows have learnt for the same
number of epochs, and no constraint acts on a model that knows nothing yet. Finished runs in the folder are kept,
unfinished ones resumed; `--at-once` trainings run at a time, each on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keep_comparison import without_rivals
from measure import machine, save

from foveate.recipes import RECIPES
from foveate.registry import lookup

KINDS = {"scan": "SCAN", "bfan": "BFAN", "mdan": "m-DAN"}


@dataclass(frozen=True)
class Job:
    """One training: its row in the table, its folder, the recipe and what is changed in it."""

    label: str
    folder: Path
    recipe: str
    changes: tuple[str, ...]

    def run(self, data: Path | None) -> None:
        """Train, or go on; prints a line when done."""
        command = [sys.executable, "-m", "foveate", "train", self.recipe, *self.changes]
        command += ["--out", str(self.folder), "--resume", "--quiet"]
        command += [] if data is None else ["--data", str(data)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        found = self.metrics()
        shown = (f"{name} {found[name]:.4g}" for name in ("rsum", "attention_f1") if name in found)
        print(f"{self.folder.name}: {', '.join(shown)}", flush=True)

    def metrics(self) -> dict[str, float]:
        """Of its best evaluation."""
        kept = json.loads((self.folder / "metrics.json").read_text(encoding="utf-8"))
        return without_rivals(kept["best"]["metrics"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="+", help="names of recipes, and field=value for all of them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--save", metavar="NAME", help="keep the rows in benchmarks/results/NAME.json")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--variants", default="none,ccr,ccs,both")
    parser.add_argument("--ccr", nargs=2, type=float, default=(0.3, 0.2), metavar=("WEIGHT", "MARGIN"))
    parser.add_argument("--ccs", nargs=2, type=float, default=(0.1, 0.2), metavar=("WEIGHT", "MARGIN"))
    parser.add_argument("--more", type=int, default=1)
    parser.add_argument("--lower", type=float, default=0.5)
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    first = [job for name in names(given) for job in beginnings(given, name)]
    then = [job for name in names(given) for job in variants(given, name)]
    with ThreadPoolExecutor(given.at_once) as pool:
        for jobs in (first, then):
            list(pool.map(lambda job: job.run(given.data), jobs))
    rows: dict[str, list[dict[str, float]]] = {}
    for job in then or first:
        rows.setdefault(job.label, []).append(job.metrics())
    print(json.dumps(rows, indent=1))
    if given.save:
        chosen = {name: getattr(given, name) for name in ("ccr", "ccs", "more", "lower")}
        print(save(given.save, machine(["torch"]), {"chosen": chosen, "rows": rows}))


def names(given: argparse.Namespace) -> list[str]:
    """The recipes that were named."""
    return [name for name in given.recipes if "=" not in name]


def changes(given: argparse.Namespace) -> tuple[str, ...]:
    """What is changed in all of them."""
    return tuple(change for change in given.recipes if "=" in change)


def beginnings(given: argparse.Namespace, name: str) -> list[Job]:
    """One training without constraints a seed."""
    return [
        Job(kind(name), given.out / f"{name}-{seed}", name, (*changes(given), f"training.seed={seed}"))
        for seed in range(given.seeds)
    ]


def variants(given: argparse.Namespace, name: str) -> list[Job]:
    """What goes on from each of them."""
    rate = lookup("recipe", name, RECIPES)().training.optimiser.lr * given.lower
    ccr = (f"ccr={given.ccr[0]}", f"ccr_margin={given.ccr[1]}")
    ccs = (f"ccs={given.ccs[0]}", f"ccs_margin={given.ccs[1]}")
    rows = {"none": ("", ()), "ccr": (" + CCR", ccr), "ccs": (" + CCS", ccs), "both": (" + CCR + CCS", ccr + ccs)}
    return [
        Job(
            kind(name) + rows[variant][0],
            given.out / f"{begun.folder.name}-{variant}",
            name,
            (
                *begun.changes,
                f"start={begun.folder}",
                f"epochs={given.more}",
                f"lr={rate}",
                "easy_batches=0",
                "evaluate_every=1",
                *rows[variant][1],
            ),
        )
        for variant in given.variants.split(",")
        if variant
        for begun in beginnings(given, name)
    ]


def kind(name: str) -> str:
    """The network of a recipe, as it is written.

    >>> kind("matching-scan-scenes")
    'SCAN'
    """
    return KINDS[name.split("-")[1]]


if __name__ == "__main__":
    main()
