"""Apply every mechanism to one score map and draw where each of them looks.

    python examples/see_mechanisms.py [--out runs/demo]

Prints one table and writes mechanisms.png.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import matplotlib
import torch

import foveate as fv

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GRID, FINE = (14, 14), (70, 70)


def score_map() -> torch.Tensor:
    """Two bumps of different size on noise, like the scores of a model for an image with two relevant objects."""
    centres = fv.ops.cell_centres(*GRID)
    scores = 0.12 * torch.randn(GRID[0] * GRID[1], generator=torch.Generator().manual_seed(3))
    for x, y, height, width in ((0.3, 0.35, 1.0, 0.015), (0.72, 0.7, 1.0, 0.01)):
        scores += height * torch.exp(-((centres - torch.tensor([x, y])) ** 2).sum(-1) / (2 * width))
    return 0.35 * scores


def attend(name: str, scores: torch.Tensor) -> tuple[torch.Tensor, float]:
    """The attention map (H, W) of a mechanism, and the fraction of the image with exactly zero attention.

    Densities are fitted to sparsemax weights and drawn on a finer grid.
    """
    continuous = fv.MECHANISMS[name].continuous
    module = fv.mechanism(name, **({"transform": "sparsemax"} if continuous else {})).eval()
    attended = module(scores[None], torch.zeros(1, scores.numel(), 1), grid=GRID)
    if attended.density is None:
        return attended.map()[0], float((attended.weights == 0).float().mean())
    return attended.map(*FINE)[0], 1 - float(attended.density.support_area())


def draw(scores: torch.Tensor, maps: dict[str, tuple[torch.Tensor, float]], path: Path) -> None:
    """Draw the scores and all maps side by side."""
    columns = 5
    rows = -(-(len(maps) + 1) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.3 * columns, 2.6 * rows), layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    axes.flat[0].imshow(scores.reshape(GRID), cmap="Greys")
    axes.flat[0].set_title("scores", fontsize=11)
    colours = plt.get_cmap("viridis").with_extremes(bad="white")
    for axis, (name, (weights, zero_area)) in zip(list(axes.flat)[1:], maps.items(), strict=False):
        shown = torch.where(
            (weights > 0) | (zero_area == 0), weights, torch.nan
        )  # white where attention is exactly zero
        axis.imshow(shown, cmap=colours, vmin=0)
        axis.set_title(f"{name}\nzero on {zero_area:.0%}", fontsize=9)
        for side in ("top", "right", "bottom", "left"):
            axis.spines[side].set_visible(True)
        axis.set_axis_on()
        axis.set_xticks([])
        axis.set_yticks([])
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/demo"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    scores = score_map()
    maps = {name: attend(name, scores) for name in fv.MECHANISMS}
    print(f"{'mechanism':20} {'zero area':>9} {'bits':>6}   description")
    for name, (weights, zero_area) in maps.items():
        cells = fv.ops.resample_map(weights, *GRID)
        bits = float(torch.special.entr(cells).sum()) / math.log(2)
        print(f"{name:20} {zero_area:>9.0%} {bits:>6.2f}   {fv.MECHANISMS[name].summary}")
    path = options.out / "mechanisms.png"
    draw(scores, maps, path)
    print(f"image: {path}")
    print(
        "This shows the mechanisms without a model; `make demo` trains models with them and compares where they look."
    )


if __name__ == "__main__":
    main()
