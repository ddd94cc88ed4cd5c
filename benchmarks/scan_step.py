"""Time and peak memory of a training step of SCAN (text to image), beside a loop over captions, in one run.

    python benchmarks/scan_step.py [--rounds 3] [--save]

128 images of 36 regions with 128 captions of about 12 words, 1 024 dimensions, float32, one thread: scores, hinge loss
with the hardest negatives and backward, from unit vectors to their gradients. "loop" scores one caption after the other
with all images and computes the context vectors. Seconds are processor time of the fastest round; memory is the
increase of the peak resident memory of a separate process during its first step. Target: at least 4x faster with at
most 1/5 of the memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

import torch
from measure import machine, save, show
from torch.nn import functional

from foveate.attention import mechanism
from foveate.lab.losses import ranking_hinge
from foveate.lab.models import BFAN, SCAN, Fragments

IMAGES, REGIONS, WORDS, DIM = 128, 36, 12, 1024
TEMPERATURE, LSE = 9.0, 6.0


def loop_scores(images: Fragments, texts: Fragments) -> torch.Tensor:
    """The scores, caption by caption, with a context vector for every image and word."""
    assert texts.mask is not None
    columns = []
    for words, mask in zip(texts.values, texts.mask, strict=True):
        query = words[mask].expand(len(images), -1, -1)
        attention = functional.leaky_relu(images.values @ query.mT, 0.1)
        attention = attention / (attention.norm(dim=2, keepdim=True) + 1e-8)
        weights = (attention.mT * TEMPERATURE).softmax(-1)
        attended = weights @ images.values
        inner = (query * attended).sum(-1)
        relevance = inner / (query.norm(dim=-1) * attended.norm(dim=-1)).clamp(min=1e-8)
        columns.append((relevance * LSE).logsumexp(-1) / LSE)
    return torch.stack(columns, 1)


def scan(images: Fragments, texts: Fragments) -> torch.Tensor:
    return SCAN(mechanism("softmax"))(images, texts)


def scan_sparsemax(images: Fragments, texts: Fragments) -> torch.Tensor:
    return SCAN(mechanism("sparsemax"))(images, texts)


def bfan(images: Fragments, texts: Fragments) -> torch.Tensor:
    return BFAN(mechanism("softmax"), mechanism("softmax"))(images, texts)


CASES: dict[str, tuple[Callable[[Fragments, Fragments], torch.Tensor], str]] = {
    "loop": (loop_scores, "hardest"),
    "SCAN": (scan, "hardest"),
    "loop, all negatives": (loop_scores, "all"),
    "SCAN, all negatives": (scan, "all"),
    "SCAN sparsemax": (scan_sparsemax, "hardest"),
    "BFAN": (bfan, "hardest"),
}


def batch() -> tuple[Fragments, Fragments]:
    generator = torch.Generator().manual_seed(0)
    lengths = (WORDS + 3 * torch.randn(IMAGES, generator=generator)).round().long().clamp(5, 25)
    images = torch.randn(IMAGES, REGIONS, DIM, generator=generator)
    texts = torch.randn(IMAGES, int(lengths.max()), DIM, generator=generator)
    mask = torch.arange(texts.shape[1]) < lengths[:, None]
    seen, read = Fragments(images).unit(), Fragments(texts, mask).unit()
    return Fragments(seen.values.requires_grad_()), Fragments(read.values.requires_grad_(), mask)


def step(name: str, images: Fragments, texts: Fragments) -> tuple[float, torch.Tensor]:
    """One step: the loss and the gradient with respect to the images."""
    score, negatives = CASES[name]
    loss = ranking_hinge(score(images, texts), torch.arange(IMAGES), negatives=negatives)
    gradient, _ = torch.autograd.grad(loss, (images.values, texts.values))
    return loss.item(), gradient


def measure(name: str, rounds: int, pipe: Connection) -> None:
    """Seconds, megabytes, loss and gradient, measured in a separate process."""
    torch.set_num_threads(1)
    images, texts = batch()
    before, times = restart_peak(), []
    for number in range(rounds):
        start = process_time()
        loss, gradient = step(name, images, texts)
        times.append(process_time() - start)
        if number == 0:
            peak = memory("VmHWM") - before
    pipe.send((min(times), peak, loss, gradient.numpy()))


def restart_peak() -> float:
    """Reset the peak of resident memory (Linux) and return the resident memory, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory("VmRSS")


def memory(field: str) -> float:
    """A field of /proc/self/status in MB: VmRSS is the resident memory, VmHWM its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field))


def apart(name: str, rounds: int) -> tuple[float, float, float, torch.Tensor]:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=measure, args=(name, rounds, there))
    process.start()
    there.close()  # so that receiving ends if the process dies
    seconds, megabytes, loss, gradient = here.recv()
    process.join()
    return seconds, megabytes, loss, torch.from_numpy(gradient)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, loops = [], {}
    for name in CASES:
        seconds, megabytes, loss, gradient = apart(name, options.rounds)
        negatives = CASES[name][1]
        loops.setdefault(negatives, (seconds, megabytes, loss, gradient))
        base = loops[negatives]
        same = CASES[name][0] in (loop_scores, scan)
        rows.append(
            {
                "step": name,
                "seconds": seconds,
                "MB": megabytes,
                "times faster": base[0] / seconds,
                "of the memory": megabytes / base[1],
                "loss off by": abs(loss - base[2]) / base[2] if same else None,
                "gradient off by": float((gradient - base[3]).norm() / base[3].norm()) if same else None,
            }
        )
        print(rows[-1], flush=True)
    show("A SCAN step, batch 128, 36 regions, 1 024 dimensions", rows)
    if options.save:
        print(save("scan_step", machine(["torch"]), {"steps": rows}))


if __name__ == "__main__":
    main()
