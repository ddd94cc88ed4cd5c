"""Self-attention to J functions beside softmax self-attention to N tokens: its time, and what it loses on Scenes.

    python benchmarks/self_attention.py
    python benchmarks/self_attention.py --scenes runs/self-attention --epochs 4

Without arguments, each row: N tokens, milliseconds of forward and backward of torch's multi-head attention on one
thread, of `ContinuousSelfAttention` with J functions, and the ratio. With `--scenes`, the tiny MCAN of
`vqa-mcan-scenes` is trained with tokens, and with 49, 16 and 4 functions, in the self-attention of the image (7 x 7
cells), and its accuracy on val is printed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

import foveate as fv
from foveate.attention import Attended, Grid
from foveate.lab.models import MCANSettings
from foveate.lab.models.answering import AnyImageEncoder
from foveate.lab.models.mcan import MCAN
from foveate.lab.recipes import RECIPES
from foveate.lab.tasks import TASKS
from foveate.lab.train import fit

DIM, HEADS, FUNCTIONS = 64, 4, 49
SIDES = (14, 28, 56, 112)
KINDS = ("yes/no", "number", "other")


def milliseconds(call: Callable[[], Tensor], repeats: int = 3) -> float:
    """The shortest of a few runs of forward and backward."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call().sum().backward()
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def print_times() -> None:
    """Print the table of times."""
    torch.set_num_threads(1)
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True)
    ours = fv.ContinuousSelfAttention(DIM, HEADS, FUNCTIONS)
    print("| N | softmax, ms | functions, ms | ratio |\n|---|---|---|---|")
    for side in SIDES:
        x = torch.randn(1, side * side, DIM, requires_grad=True)
        ours(x, grid=(side, side))  # the regression matrix is kept between calls
        full = milliseconds(lambda x=x: theirs(x, x, x, need_weights=False)[0])
        few = milliseconds(lambda x=x, side=side: ours(x, grid=(side, side)).context)
        print(f"| {side * side} | {full:.1f} | {few:.1f} | {full / few:.1f} |", flush=True)


class ToFunctions(nn.Module):
    """`ContinuousSelfAttention` where a layer of MCAN calls multi-head attention."""

    def __init__(self, functions: int) -> None:
        super().__init__()
        self.attend = fv.ContinuousSelfAttention(DIM, HEADS, functions)

    def forward(self, x: Tensor, y: Tensor, *, grid: Grid, mask: Tensor | None) -> Attended:
        """Attend from x to x; the images of Scenes have one size and no mask."""
        seen: Attended = self.attend(x, grid)
        return seen


@dataclass(frozen=True)
class MCANOfFunctions(MCANSettings):
    """MCAN whose image tokens attend to functions; None for tokens."""

    functions: int | None = None

    def build(self, vocabulary: int, word_dim: int, image: AnyImageEncoder, attend: nn.Module, *, answers: int) -> MCAN:
        model = super().build(vocabulary, word_dim, image, attend, answers=answers)
        if self.functions is not None:
            for layer in model.decoder:
                layer.attend = ToFunctions(self.functions)
        return model


def train_on_scenes(out: Path, epochs: int, functions: list[int]) -> None:
    """Train with each number of functions and print the table of accuracies."""
    recipe = RECIPES["vqa-mcan-scenes"]()
    print("| self-attention of the image | accuracy, % | yes/no | number | other | JS |\n|---|---|---|---|---|---|")
    for count in functions:
        model = MCANOfFunctions(hidden=DIM, heads=HEADS, layers=2, dropout=0.0, functions=count or None)
        task = TASKS["vqa"].from_data(replace(recipe.settings, model=model), None)
        config = {"script": "benchmarks/self_attention.py", "functions": count, "epochs": epochs}
        history = fit(task, replace(recipe.training, epochs=epochs), out / str(count), config=config, progress=False)
        assert history.best is not None
        best = history.best.metrics
        shown = [f"{100 * best[name]:.1f}" for name in ("accuracy", *(f"accuracy/{kind}" for kind in KINDS))]
        name = f"{count} functions" if count else "49 tokens"
        print(f"| {name} | {' | '.join(shown)} | {best['js']:.3f} |", flush=True)


def main() -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=Path, metavar="OUT", help="train on Scenes, with the runs in this directory")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--functions", type=int, nargs="+", default=[0, 49, 16, 4], help="0 for tokens")
    given = parser.parse_args()
    if given.scenes is None:
        print_times()
    else:
        train_on_scenes(given.scenes, given.epochs, given.functions)


if __name__ == "__main__":
    main()
