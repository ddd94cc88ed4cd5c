"""Number of components that multimodal attention chooses, by penalty: table 6.4 of Farinhas 2021, per example.

    python benchmarks/components.py [RUN]

For every penalty and floor: the fractions of the validation questions with 1, 2, 3, 4 components, the divergence from
the true regions, also for questions about two distant objects, and the accuracy. The weights are those of one run; only
the choice of K differs. Writes benchmarks/results/components.json. Takes two minutes on one core for the embedded run.
"""

from __future__ import annotations

import argparse

from keep_comparison import measured
from measure import machine, save, show

PENALTIES = (0.05, 0.1, 0.3, 0.5, 0.625, 1.0, 2.0, 5.0, 10.0)
FLOORS = ("cell", "1e-6")
SHOWN = ("accuracy", "js", "js/two-distant", "components", *(f"components = {k}" for k in (1, 2, 3, 4)))


def row(run: str, penalty: float, floor: str) -> dict[str, float | str]:
    """The results of a penalty and a floor on the validation split."""
    options = [f"mechanism_options.penalty={penalty}", f"mechanism_options.floor={floor}"]
    metrics = measured(run, ["mechanism=multimodal", *options])
    return {"penalty": penalty, "floor": floor, **{name: metrics.get(name, 0.0) for name in SHOWN}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?", default="scenes-vqa")
    run = parser.parse_args().run
    rows = [row(run, penalty, floor) for floor in FLOORS for penalty in PENALTIES]
    show("components against the penalty", rows)
    save("components", machine(["torch"]), {"components": rows})


if __name__ == "__main__":
    main()
