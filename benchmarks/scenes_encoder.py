"""Teach the picture encoder of the Scenes recipes what things are, and keep its weights.

    python benchmarks/scenes_encoder.py foveate/tasks/scenes_encoder.safetensors

Prints, after each epoch, the share of cells of the validation pictures that are right. Two minutes on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from foveate.data.scenes import make_scenes
from foveate.tasks.scenes_encoder import pretrain


def main() -> None:
    torch.set_num_threads(1)
    encoder = pretrain(make_scenes(split="train"), make_scenes(split="val"))
    save_file({name: tensor.half() for name, tensor in encoder.state_dict().items()}, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
