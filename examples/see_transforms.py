"""See the transforms: one score map, every discrete mechanism beside it, and what each one costs in area.

    python examples/see_transforms.py [--out runs/demo]

Prints one table and writes transforms.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import torch

import foveate as fv

matplotlib.use("Agg")
import matplotlib.pyplot as plt

GRID = (14, 14)


def score_map() -> torch.Tensor:
    """Two bumps of different height and size on noise: what a model's scores look like when two things matter."""
    centres = fv.ops.cell_centres(*GRID)
    scores = 0.12 * torch.randn(GRID[0] * GRID[1], generator=torch.Generator().manual_seed(3))
    for x, y, height, width in ((0.3, 0.35, 1.0, 0.015), (0.72, 0.7, 0.8, 0.008)):
        scores += height * torch.exp(-((centres - torch.tensor([x, y])) ** 2).sum(-1) / (2 * width))
    return 0.35 * scores


def look(name: str, scores: torch.Tensor) -> torch.Tensor:
    """The map of a mechanism, (H, W)."""
    attend = fv.mechanism(name).eval()
    return attend(scores[None], torch.zeros(1, scores.numel(), 1), grid=GRID).map()[0]


def draw(scores: torch.Tensor, maps: dict[str, torch.Tensor], path: Path) -> None:
    """Scores and maps side by side; white is exactly zero."""
    columns = 4
    rows = -(-(len(maps) + 1) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(2.6 * columns, 2.9 * rows), layout="constrained")
    for axis in axes.flat:
        axis.set_axis_off()
    axes.flat[0].imshow(scores.reshape(GRID), cmap="Greys")
    axes.flat[0].set_title("scores", fontsize=11)
    colours = plt.get_cmap("viridis").with_extremes(bad="white")
    for axis, (name, weights) in zip(list(axes.flat)[1:], maps.items(), strict=False):
        shown = torch.where(weights > 1e-9, weights, torch.nan)
        axis.imshow(shown, cmap=colours, vmin=0)
        axis.set_title(f"{name}\n{(weights <= 1e-9).float().mean():.0%} of the cells get nothing", fontsize=9)
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
    maps = {name: look(name, scores) for name in fv.MECHANISMS}
    print(f"{'mechanism':20} {'zero cells':>10} {'largest weight':>15} {'different values':>17}")
    for name, weights in maps.items():
        zero = float((weights <= 1e-9).float().mean())
        values = len(torch.unique((weights * 1e6).round()))
        print(f"{name:20} {zero:>10.0%} {float(weights.max()):>15.4f} {values:>17}")
    path = options.out / "transforms.png"
    draw(scores, maps, path)
    print(f"picture: {path}")
    print("This shows the mechanisms alone; training and comparing models on embedded data joins `make demo` later.")


if __name__ == "__main__":
    main()
