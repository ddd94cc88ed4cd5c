"""Embed a trained run in the package: matrices in float16, with the metrics that this precision has on val.

python tools/embed_run.py RUN NAME [--data DIR] [--attention-only]

The card, README.md, stays as it is; write the printed metrics into it. With `--attention-only`, a matcher beside a dual
encoder is embedded without the dual encoder.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from foveate.io import write_json
from foveate.lab import hub
from foveate.lab.train.evaluation import evaluate
from foveate.lab.train.recipe import Recipe, read_run, to_config
from foveate.lab.train.records import History
from foveate.lab.train.weights import load_tensors, save_tensors

RUNS = Path(hub.__file__).parent / "runs"
LIMIT = 10_000_000  # bytes of an embedded run
BESIDE = ("whole.", "balance")  # weights of the dual encoder beside the attention


def embed(run: Path, name: str, data: Path | None, *, attention_only: bool) -> dict[str, float]:
    """Write the run to the package and return the metrics of what was written."""
    with tempfile.TemporaryDirectory() as place:
        kept = Path(place) / "run"
        shutil.copytree(run, kept)
        recipe, _ = read_run(kept)
        if attention_only:
            recipe = _without_dual(recipe, kept)
        # What a training starts from is not in the package.
        if hasattr(recipe.settings, "dual_start"):
            recipe = replace(recipe, settings=replace(recipe.settings, dual_start=None))
        write_json(kept / hub.CONFIG, to_config(replace(recipe, start=None)))
        small = hub.save_pretrained(kept, Path(place) / name, half=True)
        predictor = hub.load(small)
        metrics = evaluate(predictor.task, predictor.model, predictor.task.examples("val", data), progress=True)
        best = History.load(run, predictor.task.objective).best
        if best is None:
            raise SystemExit(f"{run}: expected a run that was evaluated, got none; finish its training")
        History(predictor.task.objective, (replace(best, metrics=metrics),)).save(small)
        size = sum(path.stat().st_size for path in small.iterdir())
        if size > LIMIT:
            raise SystemExit(f"{name}: expected at most {LIMIT:,} bytes, got {size:,}; use a smaller model")
        (RUNS / name).mkdir(exist_ok=True)
        for path in small.iterdir():
            shutil.copyfile(path, RUNS / name / path.name)
    return metrics


def _without_dual(recipe: Recipe, run: Path) -> Recipe:
    """The recipe of the attention alone, whose weights replace those of the run."""
    tensors, state = load_tensors(run / hub.WEIGHTS)
    save_tensors(run / hub.WEIGHTS, {key: x for key, x in tensors.items() if not key.startswith(BESIDE)}, state)
    settings = recipe.settings
    alone = replace(settings, model=replace(settings.model, whole=None), ranking=replace(settings.ranking, parts="sum"))
    return replace(recipe, settings=alone)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--attention-only", action="store_true")
    given = parser.parse_args()
    for name, value in embed(given.run, given.name, given.data, attention_only=given.attention_only).items():
        print(f"{name} {value:.4g}")
