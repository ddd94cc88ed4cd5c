"""Time of a training step of MCAN with every mechanism, as a multiple of softmax, in one run.

    OMP_NUM_THREADS=1 python benchmarks/vqa_step.py [--save] [--rounds 5]

Processor time of forward, loss and backward in float32 on one thread. "small": 6 layers of 512 units on a 14x14 grid of
2048 features, batch size 4 (a larger batch would spread the fixed cost of a call over more examples); "tiny": the
recipe vqa-mcan-scenes without its image encoder, 7x7, batch size 64. Target: at most 1.05x (small) and 1.3x (tiny) of
softmax.

The mechanisms are measured in turns. "step" is the median over the rounds, with its ratio to softmax. Only the last
attention over the image differs between mechanisms, a small part of the step, and the noise of a busy machine is often
larger; "reading" is the time of this part alone, forward and backward, its lower quartile, and "by parts" is the ratio
computed from it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from measure import machine, save, seconds, show
from torch import nn
from turns import beside_softmax, by_turns, softmax_first

from foveate.attention import MECHANISMS, mechanism
from foveate.lab.encoders import StoredFeatures, TextEncoder
from foveate.lab.features import ImageFeatures
from foveate.lab.losses import answer_bce
from foveate.lab.models import MCAN

WORDS = 14


@dataclass(frozen=True)
class Setting:
    hidden: int
    heads: int
    layers: int
    side: int
    features: int
    answers: int
    word_dim: int
    batch: int
    aim: float


SETTINGS = {
    "tiny": Setting(hidden=64, heads=4, layers=2, side=7, features=96, answers=25, word_dim=64, batch=64, aim=1.3),
    "small": Setting(
        hidden=512, heads=8, layers=6, side=14, features=2048, answers=3129, word_dim=300, batch=4, aim=1.05
    ),
}


def step(model: nn.Module, setting: Setting) -> float:
    """Processor time of one step, in seconds."""
    side, batch = setting.side, setting.batch
    features = ImageFeatures(torch.randn(batch, side * side, setting.features), grid=(side, side))
    tokens, mask = torch.randint(4, 100, (batch, WORDS)), torch.ones(batch, WORDS, dtype=torch.bool)
    targets = torch.rand(batch, setting.answers).round()
    start = process_time()
    answer_bce(model(features, tokens, mask).scores, targets).backward()
    spent = process_time() - start
    model.zero_grad()
    return spent


def reading(name: str, setting: Setting) -> float:
    """Processor time of the part that differs: from the scores and values of a batch to the context, and back."""
    N, grid = setting.side**2, (setting.side, setting.side)
    attend = mechanism(name)
    scores = torch.randn(setting.batch, N, requires_grad=True)
    values = torch.randn(setting.batch, N, setting.hidden, requires_grad=True)
    grad = torch.randn(setting.batch, setting.hidden)
    return seconds(lambda: torch.autograd.grad(attend(scores, values, grid=grid).context, (scores, values), grad))


def rows(setting: Setting, names: list[str], rounds: int) -> list[dict[str, Any]]:
    text = TextEncoder(100, word_dim=setting.word_dim, hidden=setting.hidden)
    model = MCAN(
        text,
        StoredFeatures(setting.features),
        mechanism("softmax"),
        answers=setting.answers,
        heads=setting.heads,
        layers=setting.layers,
    )
    step(model, setting)

    def once(name: str) -> float:
        model.flat_image.attend = mechanism(name)
        return step(model, setting)

    whole = by_turns(names, once, rounds)
    parts = {name: reading(name, setting) for name in names}
    return beside_softmax(whole, parts, dict.fromkeys(names, setting.aim), head="step ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results/vqa_step.json")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = softmax_first(options.mechanisms)
    tables = {}
    for key in options.settings.split(","):
        setting = SETTINGS[key]
        title = f"MCAN {key}, {setting.side}x{setting.side}, batch {setting.batch}"
        tables[title] = rows(setting, names, options.rounds)
        show(title, tables[title])
        if options.save:
            print(save("vqa_step", {**machine(["torch"]), "rounds": str(options.rounds)}, tables))


if __name__ == "__main__":
    main()
