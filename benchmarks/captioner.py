"""Time to write captions with every mechanism, as a multiple of softmax, in one run.

    OMP_NUM_THREADS=1 python benchmarks/captioner.py [--save] [--rounds 7]

Processor time of inference in float32 on one thread, without encoding the images. "paper": the sizes of Martins et al.
2020, 8x8 features of 2048, 10 000 words; "small": the recipe captioning-lstm-flickr8k. Every caption gets 12 words, so
that all mechanisms do the same work. Weights are random; the scores of the output attention are scaled to a standard
deviation of one. Target: at most 1.2x of softmax for TVmax and 1.05x for sparsemax (Martins et al. report 1.3x and
1.1x).

The mechanisms are measured in turns. "caption" is the median over the rounds of the time per image, with its ratio to
softmax. Since the noise of the machine is often larger than the differences, "reading" is the time of the output
attention of one word for the whole batch alone, its lower quartile, and "by parts" is the ratio computed from it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from measure import machine, save, seconds, show
from turns import beside_softmax, by_turns, softmax_first

from foveate.attention import MECHANISMS, mechanism
from foveate.lab.data.vocabulary import BOS, EOS, PAD, UNKNOWN
from foveate.lab.encoders import StoredFeatures
from foveate.lab.features import ImageFeatures
from foveate.lab.models import Captioner

WORDS = 12
AIMS = {"sparsemax": 1.05, "tvmax": 1.2}


@dataclass(frozen=True)
class Setting:
    side: int
    features: int
    vocabulary: int
    hidden: int
    score_dim: int
    beams: int
    batch: int

    def model(self) -> Captioner:
        """A captioner whose output attention has scores with a standard deviation of one."""
        torch.manual_seed(0)
        model = Captioner(
            StoredFeatures(self.features),
            mechanism("softmax"),
            vocabulary=self.vocabulary,
            hidden=self.hidden,
            score_dim=self.score_dim,
        ).eval()
        tokens = torch.randint(4, self.vocabulary, (self.batch, WORDS))
        with torch.no_grad():
            scores = model(self.images(), tokens, torch.ones_like(tokens, dtype=torch.bool)).image_scores
            model.out_scores.weight /= scores.std()
        return model

    def images(self) -> ImageFeatures:
        return ImageFeatures(torch.randn(self.batch, self.side**2, self.features), grid=(self.side, self.side))


SETTINGS = {
    "small, greedy": Setting(7, 1280, 2700, 256, 128, beams=1, batch=64),
    "small, 3 beams": Setting(7, 1280, 2700, 256, 128, beams=3, batch=64),
    "paper, greedy": Setting(8, 2048, 10000, 512, 512, beams=1, batch=32),
    "paper, 3 beams": Setting(8, 2048, 10000, 512, 512, beams=3, batch=32),
}


def write(model: Captioner, setting: Setting) -> float:
    """Processor time, in seconds, to write the captions of a batch."""
    images = setting.images()
    start = process_time()
    model.caption(images, bos=BOS, eos=EOS, forbidden=(PAD, UNKNOWN, BOS, EOS), max_words=WORDS, beams=setting.beams)
    return process_time() - start


def reading(name: str, setting: Setting) -> float:
    """Processor time of the part that differs: the output attention of one word of every caption."""
    N, attend = setting.side**2, mechanism(name).eval()
    scores = torch.randn(setting.batch, setting.beams, N)
    values = torch.randn(setting.batch, N, setting.hidden)
    with torch.no_grad():
        return seconds(lambda: attend(scores, values, grid=(setting.side, setting.side)))


def rows(setting: Setting, names: list[str], rounds: int) -> list[dict[str, Any]]:
    model = setting.model()
    write(model, setting)

    def once(name: str) -> float:
        model.attend = mechanism(name).eval()
        return write(model, setting)

    whole = by_turns(names, once, rounds)
    parts = {name: reading(name, setting) for name in names}
    return beside_softmax(whole, parts, AIMS, head="caption ms", batch=setting.batch, calls=WORDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="save the rows in benchmarks/results/captioner.json")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = softmax_first(options.mechanisms)
    tables = {}
    for key, setting in SETTINGS.items():
        title = f"{key}, {setting.side}x{setting.side}, {setting.batch} images"
        tables[title] = rows(setting, names, options.rounds)
        show(title, tables[title])
    if options.save:
        print(save("captioner", {**machine(["torch"]), "rounds": str(options.rounds)}, tables))


if __name__ == "__main__":
    main()
