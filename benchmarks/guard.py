"""What became slower: the rows of `benchmarks/native.py` beside the committed ones, in units of torch.softmax.

    OMP_NUM_THREADS=1 python benchmarks/guard.py [--only sparsemax]

A row that takes more than 1.2 times as many softmaxes as in benchmarks/results/native.json is measured again, and
reported if it still does. Exit code 1 when there is one. A measurement, not a test: run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
from measure import RESULTS
from native import GROUPS

MOST = 1.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="rows whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    kept = json.loads((RESULTS / "native.json").read_text(encoding="utf-8"))["speed"]
    before = {row["work"]: row["softmaxes"] for row in kept}
    grown = 0
    for measure in (m for group in GROUPS for m in group() if options.only in m.work):
        if measure.work not in before:
            print(f"new       {measure.work}")
            continue
        ratio = measure()["softmaxes"] / before[measure.work]
        if ratio > MOST:
            ratio = min(ratio, measure()["softmaxes"] / before[measure.work])
        grown += ratio > MOST
        print(f"{'GREW' if ratio > MOST else 'ok':6s}{ratio:6.2f}x  {measure.work}", flush=True)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
