"""What is left of a trained DINOv2 under 1.5-entmax: as it is, calibrated, and adapted by `fv.hf.adapt`.

    python benchmarks/adapting.py --data DIR --directory runs/adapt        # 200 steps; goes on where it was stopped

DIR holds Flickr8k with the split of Karpathy (`dataset_flickr8k.json`, `images/`). Every photograph of the training
split may be drawn, without its captions. Quality is measured on the validation split: a photograph has a word as label
when at least two of its five captions use it; its 10 nearest neighbours by the CLS token vote for each label; the mean
average precision over labels follows. Two sets of labels: 8 groups of words that are often seen, and the 250 words most
frequent in training captions, stop words left out.
Expected: adapted at least 0.95 of softmax, used as it is about 0.6.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from measure import machine, save, show
from torch import Tensor

import foveate as fv
from foveate.io import open_image
from foveate.watch import load_pretrained

GROUPS = (
    "dog man woman child|boy|girl|kid water|pool|ocean|lake|beach snow grass bike|bicycle ball street|road|sidewalk"
)
STOP = "a an the in on of and is are with to at his her it its by as for from another up out some their that"
NEIGHBOURS, WORDS, LEAST, BATCH = 10, 250, 2, 20


def read(data: Path, split: str) -> list[dict[str, Any]]:
    """The images of a split with the words of their captions."""
    rows = json.loads((data / "dataset_flickr8k.json").read_text())["images"]
    return [row for row in rows if row["split"] == split]


def labels(rows: list[dict[str, Any]], words: list[set[str]]) -> Tensor:
    """(B, A) booleans: at least two captions use one of the words."""
    captions = [[set(one["tokens"]) for one in row["sentences"]] for row in rows]
    return torch.tensor([[sum(bool(word & one) for one in row) >= LEAST for word in words] for row in captions])


def frequent(rows: list[dict[str, Any]]) -> list[set[str]]:
    """The words of most captions."""
    count = Counter(
        token for row in rows for one in row["sentences"] for token in set(one["tokens"]) - set(STOP.split())
    )
    return [{word} for word, _ in count.most_common(WORDS)]


def precision(features: Tensor, wanted: Tensor) -> float:
    """The mean average precision of votes of nearest neighbours, over labels with an example."""
    unit = torch.nn.functional.normalize(features, dim=1)
    votes = wanted.float()[(unit @ unit.T).fill_diagonal_(-9).topk(NEIGHBOURS).indices].mean(1)
    found = []
    for column in wanted.any(0).nonzero()[:, 0]:
        right = wanted[votes[:, column].argsort(descending=True, stable=True), column].double()
        found.append((right.cumsum(0) / torch.arange(1, len(right) + 1) * right).sum() / right.sum())
    return float(torch.stack(found).mean())


@torch.no_grad()
def features(model: Any, processor: Any, paths: list[Path]) -> tuple[Tensor, float]:
    """CLS tokens (B, D) and processor seconds of the forward passes."""
    rows, seconds = [], 0.0
    for start in range(0, len(paths), BATCH):
        images = [open_image(path) for path in paths[start : start + BATCH]]
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        before = process_time()
        rows.append(model(pixels).last_hidden_state[:, 0])
        seconds += process_time() - before
    return torch.cat(rows), seconds


@torch.no_grad()
def support(model: Any, processor: Any, paths: list[Path]) -> float:
    """The fraction of weights that are not zero, over all layers and heads."""
    pixels = processor(images=[open_image(path) for path in paths], return_tensors="pt")["pixel_values"]
    with fv.watch(model) as seen:
        model(pixels)
    return float(torch.stack([(row.weights > 0).float().mean() for row in seen]).mean())


def main() -> None:
    """Measure four models."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, required=True)
    options.add_argument("--directory", type=Path, required=True)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--alpha", type=float, default=1.5)
    given = options.parse_args()
    model, processor = load_pretrained("dinov2-small")
    train, val = read(given.data, "train"), read(given.data, "val")
    photos = [given.data / "images" / row["filename"] for row in train]
    paths = [given.data / "images" / row["filename"] for row in val]
    sets = {"8 groups": [set(group.split("|")) for group in GROUPS.split()], "250 words": frequent(train)}
    wanted = {name: labels(val, words) for name, words in sets.items()}
    table: list[dict[str, Any]] = []

    def measure(name: str, minutes: float = 0.0) -> None:
        found, seconds = features(model, processor, paths)
        row: dict[str, Any] = {"model": name}
        row |= {f"mAP, {key}": precision(found, value) for key, value in wanted.items()}
        row |= {"support": support(model, processor, paths[:BATCH]), "time": seconds, "minutes": minutes}
        row["time"] /= table[0]["seconds"] if table else seconds
        table.append({**row, "seconds": seconds})
        print(table[-1], flush=True)

    measure("softmax")
    torch.manual_seed(0)
    print("chance", {key: precision(torch.randn(len(val), 384), value) for key, value in wanted.items()}, flush=True)
    with fv.hf.use(model, "entmax", alpha=given.alpha):
        measure("used as it is")
    with fv.hf.adapt(model, "entmax", photos, processor=processor, steps=0, alpha=given.alpha):
        measure("calibrated")
    before, cpu = perf_counter(), process_time()
    fv.hf.adapt(
        model, "entmax", photos, processor=processor, steps=given.steps, directory=given.directory, alpha=given.alpha
    )
    print("adapt", (perf_counter() - before) / 60, "minutes,", (process_time() - cpu) / 60, "of processor", flush=True)
    measure(f"adapted, {given.steps} steps", (process_time() - cpu) / 60)
    show("Flickr8k val, 500 photographs", table)
    save("adapting", machine(["torch", "transformers"]), {"rows": table})


if __name__ == "__main__":
    main()
