"""Time and memory to rank 1 000 images with 5 000 captions by SCAN; memory does not grow with their number.

    python benchmarks/scan_ranking.py [--threads 2] [--save]

36 regions, about 12 words, 1 024 dimensions, float32. Memory is the peak resident memory besides the images and the
captions, including the scores. Target: at most 3 minutes on two cores, and the same memory for a quarter of the images.
"""

from __future__ import annotations

import argparse
import multiprocessing
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any

import torch
from measure import machine, save, show
from scan_step import memory, restart_peak

from foveate.attention import mechanism
from foveate.lab.metrics import retrieval_metrics
from foveate.lab.models import SCAN, Fragments

CAPTIONS, REGIONS, WORDS, DIM = 5, 36, 12, 1024


def measure(count: int, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    lengths = (WORDS + 3 * torch.randn(count * CAPTIONS, generator=generator)).round().long().clamp(5, 25)
    images = Fragments(torch.randn(count, REGIONS, DIM, generator=generator)).unit()
    texts = Fragments(torch.randn(count * CAPTIONS, int(lengths.max()), DIM, generator=generator))
    texts = Fragments(texts.unit().values, torch.arange(int(lengths.max())) < lengths[:, None])
    scorer, owner = SCAN(mechanism("softmax")), torch.arange(count * CAPTIONS) // CAPTIONS
    before = restart_peak()
    wall, cpu = perf_counter(), process_time()
    with torch.no_grad():
        found = retrieval_metrics(lambda rows: scorer(images[rows], texts), owner, count)
    wall, cpu = perf_counter() - wall, process_time() - cpu
    pipe.send(
        {
            "images": count,
            "captions": count * CAPTIONS,
            "threads": threads,
            "seconds": wall,
            "processor seconds": cpu,
            "MB beyond the input": memory("VmHWM") - before,
            "rsum of noise": found["rsum"],
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    context = multiprocessing.get_context("spawn")
    for images in (250, 1000):
        here, there = context.Pipe()
        process = context.Process(target=measure, args=(images, options.threads, there))
        process.start()
        rows.append(here.recv())
        process.join()
        print(rows[-1], flush=True)
    show("Ranking with SCAN, 36 regions, 1 024 dimensions", rows)
    if options.save:
        print(save("scan_ranking", machine(["torch"]), {"rankings": rows}))


if __name__ == "__main__":
    main()
