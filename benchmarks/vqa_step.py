"""A training step of MCAN with every mechanism, relative to softmax, in one run.

    python benchmarks/vqa_step.py [--rounds 5]

Forward, loss and backward at batch 64 in float32 on one thread; the mechanisms take turns and the fastest round of each
counts. "small": 6 layers of 512 on a 14x14 grid of 2048 features; "tiny": the recipe vqa-mcan-scenes without its
picture encoder, 7x7. Aim: at most 1.05x (small) and 1.3x (tiny) of softmax.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from torch import nn

from foveate.attention import MECHANISMS, mechanism
from foveate.data.features import ImageFeatures
from foveate.encoders import StoredFeatures, TextEncoder
from foveate.losses import answer_bce
from foveate.models import MCAN

BATCH, WORDS = 64, 14


@dataclass(frozen=True)
class Setting:
    hidden: int
    heads: int
    layers: int
    side: int
    features: int
    answers: int
    word_dim: int
    aim: float


SETTINGS = {
    "tiny": Setting(hidden=64, heads=4, layers=2, side=7, features=96, answers=25, word_dim=64, aim=1.3),
    "small": Setting(hidden=512, heads=8, layers=6, side=14, features=2048, answers=3129, word_dim=300, aim=1.05),
}


def step(model: nn.Module, setting: Setting) -> float:
    """Seconds of processor time of one step: other programs do not count."""
    side = setting.side
    features = ImageFeatures(torch.randn(BATCH, side * side, setting.features), grid=(side, side))
    tokens, mask = torch.randint(4, 100, (BATCH, WORDS)), torch.ones(BATCH, WORDS, dtype=torch.bool)
    targets = torch.rand(BATCH, setting.answers).round()
    start = time.process_time()
    answer_bce(model(features, tokens, mask).scores, targets).backward()
    seconds = time.process_time() - start
    model.zero_grad()
    return seconds


def measure(setting: Setting, names: list[str], rounds: int) -> dict[str, float]:
    """The fastest round of every mechanism in one model, by turns."""
    text = TextEncoder(100, word_dim=setting.word_dim, hidden=setting.hidden)
    model = MCAN(
        text,
        StoredFeatures(setting.features),
        mechanism("softmax"),
        answers=setting.answers,
        heads=setting.heads,
        layers=setting.layers,
    )
    best = dict.fromkeys(names, float("inf"))
    for number in range(rounds + 1):
        for name in names:
            torch.manual_seed(number)
            model.flat_image.attend = mechanism(name)
            seconds = step(model, setting)
            if number:  # the first round warms up
                best[name] = min(best[name], seconds)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = ["softmax", *(name for name in options.mechanisms.split(",") if name != "softmax")]
    for key in options.settings.split(","):
        setting = SETTINGS[key]
        best = measure(setting, names, options.rounds)
        print(f"MCAN {key}, {setting.side}x{setting.side}, batch {BATCH}, aim {setting.aim}x")
        for name, seconds in best.items():
            print(f"  {name:22} {1e3 * seconds:9.1f} ms  {seconds / best['softmax']:6.3f}x", flush=True)


if __name__ == "__main__":
    main()
