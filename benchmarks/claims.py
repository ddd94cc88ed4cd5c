"""What options of the papers change on a trained run: EM iterations, λ of TVmax and test-MCA, N and padding.

python benchmarks/claims.py scenes-vqa --images 150
python benchmarks/claims.py runs/softmax --images 150 --data DATA

The weights are those of the run, only the attention over the image differs; docs/claims.md has the tables.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

from foveate.lab import hub
from foveate.lab.papers.tables.vqa_tables import TEST_MCA
from foveate.lab.train.evaluation import collect, evaluate_together

OPTION = "mechanism_options"
SHOWN = ("accuracy", "accuracy/number", "accuracy/two-distant", "js", "js/two-distant", "area", "regions", "entropy")


def settings() -> Iterator[tuple[str, list[str]]]:
    """Name and changes of every row."""
    yield "as trained", []
    for steps in (2, 5, 10, 20):
        yield f"multimodal, {steps} EM iterations", ["mechanism=multimodal", f"{OPTION}.iterations={steps}"]
    for K, counts in ((2, (2,)), (4, (2, 5, 10, 20))):
        for steps in counts:
            options = [f"{OPTION}.components={K}", f"{OPTION}.iterations={steps}"]
            yield f"{K}-MCA, {steps} EM iterations", ["mechanism=k-mca", *options]
    yield "sparsemax", ["mechanism=sparsemax"]
    for smoothness in (0.001, 0.01, 0.03, 0.1, 0.3):
        yield f"TVmax, λ = {smoothness:g}", ["mechanism=tvmax", f"{OPTION}.smoothness={smoothness}"]
    for penalty in (10, 100, 500):
        yield f"test-MCA, λ = {penalty}", [*TEST_MCA, f"{OPTION}.floor=1e-6", f"{OPTION}.penalty={penalty}"]
    for name in ("continuous-softmax", "continuous-sparsemax"):
        for count in (100, 49):
            for padding in ("true", "false"):
                basis = json.dumps({"count": count, "variance": 0.001})
                options = [f"{OPTION}.basis={basis}", f"{OPTION}.padding={padding}", f"{OPTION}.floor=1e-6"]
                yield f"{name}, N = {count}, padding {padding}", [f"mechanism={name}", *options]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=150, help="the first ones of val, with all their questions")
    arguments = parser.parse_args()
    for name, changes in settings():
        loaded = hub.load(arguments.run, changes)
        examples = loaded.task.examples("val", arguments.data)
        found = collect(loaded.task, loaded.model, examples, batch_size=8, limit=arguments.images)
        metrics = evaluate_together([found])
        numbers = "  ".join(f"{key} {metrics[key]:.3f}" for key in SHOWN if key in metrics)
        shares = "  ".join(
            f"K*={k} {metrics[f'components = {k}']:.3f}" for k in range(1, 6) if f"components = {k}" in metrics
        )
        print(name, numbers, shares, sep="  ", flush=True)


if __name__ == "__main__":
    main()
