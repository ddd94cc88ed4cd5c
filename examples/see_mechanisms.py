"""Apply every mechanism to one score map and draw where each of them looks.

    python examples/see_mechanisms.py [--out runs/demo]

Prints one table and writes mechanisms.png.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

import foveate as fv

GRID = (14, 14)


def score_map() -> torch.Tensor:
    """Two bumps of different size on noise, like the scores of a model for an image with two relevant objects."""
    centres = fv.ops.cell_centres(*GRID)
    scores = 0.12 * torch.randn(GRID[0] * GRID[1], generator=torch.Generator().manual_seed(3))
    for x, y, height, width in ((0.3, 0.35, 1.0, 0.015), (0.72, 0.7, 1.0, 0.01)):
        scores += height * torch.exp(-((centres - torch.tensor([x, y])) ** 2).sum(-1) / (2 * width))
    return 0.35 * scores


def attend(name: str, scores: torch.Tensor) -> fv.Attended:
    """The attention of a mechanism; densities are fitted to sparsemax weights."""
    options = {"transform": "sparsemax"} if fv.MECHANISMS[name].continuous else {}
    return fv.mechanism(name, **options).eval()(scores[None], torch.zeros(1, scores.numel(), 1), grid=GRID)


def zero_area(attended: fv.Attended) -> float:
    """The fraction of the image with exactly zero attention."""
    if attended.density is None:
        return float((attended.weights == 0).float().mean())
    return 1 - float(attended.density.support_area())


def draw(scores: torch.Tensor, maps: dict[str, fv.Attended], path: Path) -> None:
    """Draw the scores and all maps side by side."""
    light = (scores.max() - scores) / (scores.max() - scores.min())  # dark where the score is high
    figure = fv.plot.compare(light.reshape(GRID).numpy(), maps, columns=5)
    figure.axes[0].set_title("scores", fontsize=9, pad=4)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scores = score_map()
    maps = {name: attend(name, scores) for name in fv.MECHANISMS}
    print(f"{'mechanism':20} {'zero area':>9} {'bits':>6}   description")
    for name, attended in maps.items():
        bits = float(torch.special.entr(attended.map()).sum()) / math.log(2)
        print(f"{name:20} {zero_area(attended):>9.0%} {bits:>6.2f}   {fv.MECHANISMS[name].summary}")
    path = options.out / "mechanisms.png"
    draw(scores, maps, path)
    print(f"image: {path}")
    print(
        "This shows the mechanisms without a model; `make demo` trains models with them and compares where they look."
    )


if __name__ == "__main__":
    main()
