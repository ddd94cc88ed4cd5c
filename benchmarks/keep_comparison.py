"""Keep the numbers of a comparison beside the benchmarks, for the tables of the docs.

    foveate compare vqa --out runs/vqa
    python benchmarks/keep_comparison.py runs/vqa/compare.json vqa_scenes --rest two-distant

Merges several files when more are given: of one recipe, rows of the same name become further seeds; of several recipes,
rows are called "<recipe> <attention>". Numbers of maps that know nothing are the same for all and kept once. The option
`--rest TAG` adds the accuracy on the questions of Scenes without the tag; `--again` measures every run anew, with what
trainings leave out because it takes long (METEOR, the tokenizer of the evaluation server), on the data of `--data`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from measure import machine, save

from foveate import hub
from foveate.data.scenes import scenes
from foveate.train import evaluate


def without_rivals(metrics: dict[str, float]) -> dict[str, float]:
    """The numbers of the model itself, to five digits."""
    return {name: float(f"{value:.5g}") for name, value in metrics.items() if " of " not in name}


def rivals(metrics: dict[str, float]) -> dict[str, float]:
    """The numbers of maps that know nothing, over the whole split."""
    return {name: float(f"{value:.5g}") for name, value in metrics.items() if " of " in name and "/" not in name}


def share_of(tag: str) -> float:
    """The share of the validation questions of Scenes that have a tag."""
    questions = scenes(split="val").questions
    return sum(tag in question.tags for question in questions) / len(questions)


def rest_of(metrics: dict[str, float], tag: str, share: float) -> dict[str, float]:
    """The accuracy on all questions without the tag, from that on all and on those with it."""
    rest = (metrics["accuracy"] - share * metrics[f"accuracy/{tag}"]) / (1 - share)
    return {f"accuracy/not {tag}": float(f"{rest:.5g}")}


def measured(run: str | Path, changes: Iterable[str] = (), data: Path | None = None) -> dict[str, float]:
    """The numbers of a trained run on val, with fields of its recipe changed."""
    used = hub.load(run, changes)
    return evaluate(used.task, used.model, used.task.examples("val", data), batch_size=16, progress=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("name")
    parser.add_argument("--rest", metavar="TAG")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    share = share_of(given.rest) if given.rest else 0.0
    rows: dict[str, list[dict[str, Any]]] = {}
    known: dict[str, float] = {}
    files = [json.loads(path.read_text(encoding="utf-8")) for path in given.files]
    several = len({file["recipe"] for file in files}) > 1
    for path, file in zip(given.files, files, strict=True):
        for attention, runs in file["results"].items():
            label = f"{file['recipe']} {attention}" if several else attention
            for seed, run in enumerate(runs):
                folder = path.parent / f"{attention}-{seed}"
                metrics = measured(folder, data=given.data) if given.again else run["metrics"]
                known |= rivals(metrics)
                kept = {"seconds_per_step": run["seconds_per_step"], **without_rivals(metrics)}
                if given.rest:
                    kept |= rest_of(metrics, given.rest, share)
                rows.setdefault(label, []).append(kept)
    tables: dict[str, Any] = {"rivals": known, "rows": rows}
    print(save(given.name, machine(["torch"]), tables))


if __name__ == "__main__":
    main()
