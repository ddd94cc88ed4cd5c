"""Measure what the training images of finished runs look like, for runs that were trained before this was kept.

python tools/familiarity.py RUN [RUN ...] [--data DIR]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from foveate.lab import hub
from foveate.lab.train.evaluation import save_familiarity
from foveate.lab.train.recipe import run_directory

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--data", type=Path)
    given = parser.parse_args()
    for run in given.runs:
        predictor = hub.load(run)
        kept = save_familiarity(predictor.task, predictor.model, run_directory(run), given.data)
        print(f"{run}: {'kept' if kept else 'too few images'}")
