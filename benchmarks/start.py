"""Processor seconds of a start beyond those of `import torch`: import, loading a run, `foveate answer`.

    OMP_NUM_THREADS=1 python benchmarks/start.py [--save]

Each is a new process; medians of 7 interleaved rounds, children included.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from measure import machine, save, show
from PIL import Image

ROUNDS = 7
BARS = {"import foveate; fv.sparsemax": 0.15, "fv.load": 0.5, "foveate answer": 0.7}


def spent(command: list[str]) -> float:
    """Processor seconds of a child, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the rows in benchmarks/results/start.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory) / "image.png"
        Image.new("RGB", (96, 96), (200, 30, 30)).save(image)
        run = [sys.executable, "-c"]
        commands = {
            "import torch": [*run, "import torch"],
            "import foveate; fv.sparsemax": [*run, "import torch, foveate; foveate.sparsemax(torch.zeros(1, 4))"],
            "fv.load": [*run, "import foveate; foveate.load('scenes-vqa')"],
            "foveate answer": [sys.executable, "-m", "foveate", "answer", "scenes-vqa", str(image), "Is it red?"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(ROUNDS):
            for name, command in commands.items():
                times[name].append(spent(command))
    base = median(times.pop("import torch"))
    rows = [
        {"start": name, "beyond torch s": median(seen) - base, "bar": BARS[name], "import torch s": base}
        for name, seen in times.items()
    ]
    where = machine(["foveate", "torch"])
    show("processor seconds beyond import torch", rows)
    if options.save:
        print("kept in", save("start", where, {"start": rows}))


if __name__ == "__main__":
    main()
