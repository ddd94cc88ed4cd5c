"""The table of Chen et al. 2021: retrieval and attention metrics with and without the contrastive constraints.

    python benchmarks/constraints.py epochs=2 matching-scan-scenes matching-bfan-scenes --out runs/table \
        --save matching_scenes

A field=value before the first recipe applies to all of them, one after a recipe to that recipe. Every recipe is trained
with every seed without constraints, with CCR, with CCS, and with both; m-DAN, which has no cross attention, only
without. Finished runs in the directory are kept, unfinished ones are resumed; `--at-once` trainings run at the same
time, each on one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from keep_comparison import without_baselines
from measure import machine, save

from foveate.lab.tasks.matching import Matching
from foveate.lab.train.records import History

KINDS = {"scan": "SCAN", "bfan": "BFAN", "mdan": "m-DAN"}
ROWS = {"none": "", "ccr": " + CCR", "ccs": " + CCS", "both": " + CCR + CCS"}


@dataclass(frozen=True)
class Job:
    """One training: its row in the table, its directory, its recipe and the changed fields."""

    label: str
    directory: Path
    recipe: str
    changes: tuple[str, ...]

    def run(self, data: Path | None) -> None:
        """Train or resume, and print one line at the end."""
        command = [sys.executable, "-m", "foveate", "train", self.recipe, *self.changes]
        command += ["--out", str(self.directory), "--resume", "--quiet"]
        command += [] if data is None else ["--data", str(data)]
        subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL)
        found = self.metrics()
        shown = (f"{name} {found[name]:.4g}" for name in ("rsum", "attention_f1") if name in found)
        print(f"{self.directory.name}: {', '.join(shown)}", flush=True)

    def metrics(self) -> dict[str, float]:
        """The metrics of its best evaluation."""
        best = History.load(self.directory, Matching.objective).best
        return {} if best is None else without_baselines(dict(best.metrics))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "recipes",
        nargs="+",
        help="field=value for all recipes, then names of recipes, each followed by its own field=value",
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--save", metavar="NAME", help="save the rows in benchmarks/results/NAME.json")
    parser.add_argument(
        "--seeds", default="3", help="number of seeds; numbers separated by commas are for one recipe each"
    )
    parser.add_argument("--variants", default="none,ccr,ccs,both")
    parser.add_argument("--ccr", type=float, default=1.0, help="weight of CCR")
    parser.add_argument("--ccs", type=float, default=0.1, help="weight of CCS")
    parser.add_argument("--at-once", type=int, default=2)
    given = parser.parse_args()
    jobs = planned(given)
    with ThreadPoolExecutor(given.at_once) as pool:
        list(pool.map(lambda job: job.run(given.data), jobs))
    rows: dict[str, list[dict[str, float]]] = {}
    for job in jobs:
        rows.setdefault(job.label, []).append(job.metrics())
    if given.save:
        chosen = {"ccr": given.ccr, "ccs": given.ccs, "fields": by_recipe(given.recipes)}
        print(save(given.save, machine(["torch"]), {"chosen": chosen, "rows": rows}))


def planned(given: argparse.Namespace) -> list[Job]:
    """The jobs: every recipe with every variant and seed."""
    ccr, ccs = f"ccr={given.ccr}", f"ccs={given.ccs}"
    weights = {"none": (), "ccr": (ccr,), "ccs": (ccs,), "both": (ccr, ccs)}
    recipes = by_recipe(given.recipes)
    seeds = [int(number) for number in given.seeds.split(",")]
    seeds = seeds * len(recipes) if len(seeds) == 1 else seeds
    if len(seeds) != len(recipes) or len({recipe.split("-")[1] for recipe in recipes}) < len(recipes):
        raise SystemExit(
            f"constraints: expected recipes of different models and a number of seeds for each, got {list(recipes)} "
            f"and {given.seeds}; make a table for each data set"
        )
    jobs = []
    for (recipe, fields), count in zip(recipes.items(), seeds, strict=True):
        kind = recipe.split("-")[1]
        variants = ["none"] if kind == "mdan" else given.variants.split(",")
        jobs += [
            Job(
                KINDS[kind] + ROWS[variant],
                given.out / f"{recipe}-{variant}-{seed}",
                recipe,
                (*fields, *weights[variant], f"training.seed={seed}"),
            )
            for variant in variants
            for seed in range(count)
        ]
    return jobs


def by_recipe(words: list[str]) -> dict[str, tuple[str, ...]]:
    """The changed fields of each recipe.

    >>> by_recipe(["epochs=2", "matching-scan-scenes", "matching-bfan-scenes", "ccr.margin=0.1"])
    {'matching-scan-scenes': ('epochs=2',), 'matching-bfan-scenes': ('epochs=2', 'ccr.margin=0.1')}
    """
    shared: tuple[str, ...] = ()
    fields: dict[str, tuple[str, ...]] = {}
    for word in words:
        if "=" not in word:
            if word in fields:
                raise SystemExit(f"constraints: expected every recipe once, got {word} again; leave one out")
            fields[word] = shared
        elif fields:
            fields[next(reversed(fields))] += (word,)
        else:
            shared += (word,)
    return fields


if __name__ == "__main__":
    main()
