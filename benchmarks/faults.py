"""Kill a training repeatedly at random moments; the result must equal that of an uninterrupted training.

    python benchmarks/faults.py [--kills 20] [--processes 1] [--seed 0]

Trains a small MCAN on a few scenes with a checkpoint after every step. A child process trains and is killed with
SIGKILL at a random moment, then another one resumes. When one finishes, its weights, optimiser, best weights and
evaluations are compared bit for bit, and a new training starts. Children are forked after the imports, so that they are
killed during training and not while Python starts.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")

import accelerate  # noqa: F401  (imported before the forks)
import torch

from foveate.lab.recipes import RECIPES
from foveate.lab.train import Recipe, override, train_recipe
from foveate.lab.train.weights import CHECKPOINT, WEIGHTS, load_tensors

SMALL = (
    "limit=24 hidden=16 heads=2 layers=1 dropout=0.1 channels=8,8,8,8 blocks=0 images.start=random trained=yes "
    "epochs=3 batch_size=4 save_every=0"
)
KEPT = (CHECKPOINT, WEIGHTS, "metrics.json")


def start(recipe: Recipe, directory: Path, processes: int) -> list[int]:
    """Fork the processes of one training and return their ids."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(processes):
        child = os.fork()
        if child == 0:
            _train(recipe, directory, rank, processes, port)
        children.append(child)
    return children


def _train(recipe: Recipe, directory: Path, rank: int, processes: int, port: int) -> None:
    if processes > 1:
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
    code = 1
    try:
        train_recipe(recipe, directory, resume=True, progress=False)
        code = 0
    except BaseException as error:
        print(f"process {rank}: {error}", file=sys.stderr)
    finally:
        os._exit(code)


def finish(children: list[int], seconds: float | None) -> bool:
    """Wait for the children and kill them after some seconds; True if all of them ended successfully before."""
    end = time.monotonic() + (seconds if seconds is not None else 3600)
    codes: dict[int, int] = {}
    killed = False
    while len(codes) < len(children):
        for child in set(children) - set(codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
        if time.monotonic() > end and not killed:
            killed = True
            for child in set(children) - set(codes):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    if not killed and any(codes.values()):
        raise SystemExit(f"a training ended with {sorted(codes.values())} without being killed")
    return not any(codes.values())


def same(first: Path, second: Path) -> bool:
    """True if the files of the result are equal, byte for byte."""
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in KEPT)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = override(RECIPES["vqa-mcan-scenes"](), SMALL.split())
    dice = random.Random(options.seed)
    with TemporaryDirectory() as place:
        whole, cut = Path(place, "whole"), Path(place, "cut")
        begun = time.monotonic()
        assert finish(start(recipe, whole, options.processes), None)
        length = time.monotonic() - begun
        print(f"uninterrupted: {length:.1f} s, {options.processes} process(es)")
        kills = finished = 0
        while kills < options.kills:
            delay = dice.uniform(0, length)
            if not finish(start(recipe, cut, options.processes), delay):
                kills += 1
                print(f"kill {kills:2d} after {delay:5.2f} s, checkpoint of step {saved_step(cut)}")
                continue
            finished += check(whole, cut)
            shutil.rmtree(cut)
        assert finish(start(recipe, cut, options.processes), None)
        finished += check(whole, cut)
    print(f"{kills} kills, {finished} finished trainings, all equal to the uninterrupted one")


def saved_step(directory: Path) -> int:
    """The step of the last checkpoint; 0 if there is none yet."""
    path = directory / CHECKPOINT
    return load_tensors(path)[1]["position"]["step"] if path.exists() else 0


def check(whole: Path, cut: Path) -> int:
    """Exit with an error unless the results are equal."""
    if not same(whole, cut):
        raise SystemExit("a resumed training differs from the uninterrupted one")
    print("finished: identical")
    return 1


if __name__ == "__main__":
    main()
