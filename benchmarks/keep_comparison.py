"""Save the results of a comparison beside the benchmarks, for the tables of the docs.

    foveate compare vqa --out runs/vqa
    python benchmarks/keep_comparison.py runs/vqa/compare.json vqa_scenes --rest two-distant
    python benchmarks/keep_comparison.py vqa_scenes --rest two-distant --add "tvmax from scratch=runs/tvmax"

Several files are merged: of one recipe, rows of the same name become further seeds; of several recipes, rows are called
"<recipe> <attention>". With `--add "LABEL=RUN"` the best evaluation of a run becomes the row LABEL of results that were
saved before, with `--add "LABEL+=RUN"` a further seed of it. Baselines, attention maps that do not depend on the input,
are the same for all runs and saved once. `--rest TAG` adds the accuracy on the questions of Scenes without the tag;
`--again` evaluates every run again, with the metrics that training leaves out because they are slow (METEOR, the
tokenizer of the evaluation server), on `--data`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import RESULTS, machine, save

from foveate.lab import hub
from foveate.lab.data.scenes import scenes
from foveate.lab.train import evaluate


def without_baselines(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics of the model itself, to five digits."""
    return {name: float(f"{value:.5g}") for name, value in metrics.items() if " of " not in name}


def baselines(metrics: dict[str, float]) -> dict[str, float]:
    """The metrics of the baselines, over the whole split."""
    return {name: float(f"{value:.5g}") for name, value in metrics.items() if " of " in name and "/" not in name}


def fraction_of(tag: str) -> float:
    """The fraction of the validation questions of Scenes that have a tag."""
    questions = scenes(split="val").questions
    return sum(tag in question.tags for question in questions) / len(questions)


def rest_of(metrics: dict[str, float], tag: str, fraction: float) -> dict[str, float]:
    """The accuracy on the questions without the tag, from the accuracy on all and on those with it."""
    rest = (metrics["accuracy"] - fraction * metrics[f"accuracy/{tag}"]) / (1 - fraction)
    return {f"accuracy/not {tag}": float(f"{rest:.5g}")}


def measured(run: str | Path, changes: Iterable[str] = (), data: Path | None = None) -> dict[str, float]:
    """The metrics of a trained run on val, with some fields of its recipe changed."""
    loaded = hub.load(run, changes)
    return evaluate(loaded.task, loaded.model, loaded.task.examples("val", data), batch_size=16, progress=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("name")
    parser.add_argument("--rest", metavar="TAG")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--add", metavar="LABEL=RUN", action="append", default=[])
    given = parser.parse_args()
    fraction = fraction_of(given.rest) if given.rest else 0.0
    rows: dict[str, list[dict[str, Any]]] = {}
    known: dict[str, float] = {}
    where = machine(["torch"])
    if given.add:
        saved = json.loads((RESULTS / f"{given.name}.json").read_text(encoding="utf-8"))
        rows, known, where = saved["rows"], saved["baselines"], saved["machine"]
    for label, run in (pair.rsplit("=", 1) for pair in given.add):
        best = json.loads((Path(run) / "metrics.json").read_text(encoding="utf-8"))["best"]["metrics"]
        seed = without_baselines(best) | (rest_of(best, given.rest, fraction) if given.rest else {})
        name, more = label.removesuffix("+"), label.endswith("+")
        rows[name] = [*rows[name], seed] if more else [seed]
    files = [json.loads(path.read_text(encoding="utf-8")) for path in given.files]
    several = len({file["recipe"] for file in files}) > 1
    for path, file in zip(given.files, files, strict=True):
        for attention, runs in file["results"].items():
            label = f"{file['recipe']} {attention}" if several else attention
            for seed, run in enumerate(runs):
                directory = path.parent / f"{attention}-{seed}"
                metrics = measured(directory, data=given.data) if given.again else run["metrics"]
                known |= baselines(metrics)
                kept = {"seconds_per_step": run["seconds_per_step"], **without_baselines(metrics)}
                if given.rest:
                    kept |= rest_of(metrics, given.rest, fraction)
                rows.setdefault(label, []).append(kept)
    tables: dict[str, Any] = {"baselines": known, "rows": rows}
    print(save(given.name, where, tables))


if __name__ == "__main__":
    main()
